"""Collectives: what the host asks for, who is whose neighbour, and algorithms written with `tl` that do it."""
