"""Collectives: who is whose neighbour, the rings between them, and algorithms written with `tl`."""
