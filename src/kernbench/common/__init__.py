"""Ids, units, messages and errors: what every other package stands on. Imports nothing of ours."""
