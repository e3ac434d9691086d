"""Collectives: what the host asks for, who is whose neighbour, rings between them, and algorithms written with `tl`."""
