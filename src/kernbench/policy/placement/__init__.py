"""Placement of tensors: which part is stored in which PE's memory."""
