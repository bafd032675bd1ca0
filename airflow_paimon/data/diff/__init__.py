"""Diffs of two versions of a table: what to read, and how rows are compared."""
