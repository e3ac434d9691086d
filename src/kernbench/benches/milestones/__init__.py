"""Evaluations: one file each, which holds its points, what is measured at each, and its figures."""
