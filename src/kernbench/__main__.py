"""`python -m kernbench` is the `kernbench` command."""

from kernbench.cli.main import main

main()
