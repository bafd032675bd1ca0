"""Marks that a partition is complete, for whoever waits for it."""
