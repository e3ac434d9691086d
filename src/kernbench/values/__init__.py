"""Tensor values as a graph: arrays, and pending results of ops on other values."""
