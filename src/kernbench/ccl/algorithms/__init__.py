"""Collective algorithms, one per module."""
