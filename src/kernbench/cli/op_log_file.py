"""The file of `--oplog`, written atomically: after the run it is complete, or unchanged if the run failed.

Records are written to a temporary file next to it, which is renamed at the end, or removed on an error. A device or a
pipe cannot be renamed and is written directly. A file that holds no Parquet is not replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernbench.common.output_files import PARQUET, check_output
from kernbench.sim_engine.op_stream import StreamingOpLog


@contextmanager
def op_log_file(name: str) -> Iterator[StreamingOpLog]:
    """A log that becomes `name` if the block succeeds; raises UsageError for a name that cannot be written."""
    target = Path(os.path.realpath(name))  # the target of a link is replaced, not the link
    check_output(name, PARQUET, f"--oplog {name}")
    plain = not target.exists() or target.is_file()
    part = target.with_name(f".{target.name}.{os.getpid()}.part") if plain else target
    log = StreamingOpLog(part)
    try:
        yield log
        log.close()
        if plain:
            part.replace(target)
    except BaseException:
        with suppress(Exception):
            log.close()
        if plain:
            part.unlink(missing_ok=True)
        raise
