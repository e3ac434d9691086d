"""From an address to the node that serves it, and from one node to another."""
