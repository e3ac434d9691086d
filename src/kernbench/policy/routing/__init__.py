"""Routing: the node that serves an address, and the path between two nodes."""
