"""Collectives: what the host asks for, which PEs are neighbours, and algorithms written with `tl`."""
