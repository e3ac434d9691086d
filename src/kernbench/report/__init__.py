"""Figures, tables, charts and pictures, made from results."""
