"""Probes: measure transfers between places of a machine, check invariants, and report both."""
