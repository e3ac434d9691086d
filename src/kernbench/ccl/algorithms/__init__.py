"""Collective algorithms, one a module."""
