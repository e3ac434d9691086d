"""Explains the time of a run: its critical path, idle time of lanes, and what-if estimates."""
