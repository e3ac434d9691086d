"""Workloads: one family a file. A new file that registers with `@bench` is in `kernbench list` at once."""
