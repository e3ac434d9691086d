"""Saved runs: writing, opening and listing run folders."""
