"""Runs as traces that other tools open."""
