"""Collectives: what the host asks for, and algorithms written with `tl` that do it."""
