"""Measures how long bytes take between places of a machine, checks what must hold, and shows both."""
