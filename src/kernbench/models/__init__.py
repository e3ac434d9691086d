"""Shapes of public models, and a decoder layer of them on a machine: parts, mapping, bounds."""
