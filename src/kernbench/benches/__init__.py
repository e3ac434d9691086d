"""Workloads: one family per file. A new file that registers with `@bench` is in `kernbench list` at once."""
