"""Evaluations: sweeps that produce a results file and figures."""
