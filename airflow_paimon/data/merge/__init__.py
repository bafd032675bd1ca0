"""Merging sorted runs: keys, sections, one module for each merge engine."""
