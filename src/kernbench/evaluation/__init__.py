"""Evaluations: a sweep whose rows are a results file and figures."""
