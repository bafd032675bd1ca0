"""Checks, repairs and expiry of a table."""
