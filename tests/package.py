"""Where processes that a test starts find the package under test: `scripts/suite-on` tests a copy of the sources."""

from pathlib import Path

import kernbench

SOURCE = str(Path(kernbench.__file__).parents[1])
