"""Which part of a tensor lies where."""
