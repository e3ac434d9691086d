"""Composites whose course is known beforehand: foreseen once, used wherever nobody comes in between."""
