"""The site: `make docs` builds it into docs/_build/html. It loads nothing from a network, when built or when viewed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "KernBench"
author = "the KernBench authors"
copyright = "the KernBench authors, Apache-2.0"
extensions = ["myst_parser", "sphinx_click", "kernbench_site"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_ext", "results/*/*.md"]  # captions of figures are in results/README.md
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.xref_ambiguous", "misc.highlighting_failure"]
html_theme = "furo"
html_title = "KernBench"
html_theme_options = {"navigation_with_keys": True}
smartquotes = False  # `--option` keeps its two dashes
html_show_sphinx = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
