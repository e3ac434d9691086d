"""The `kernbench` command: parse, call, print. No logic lives here."""
