"""Expiry of partitions by value or update time."""
