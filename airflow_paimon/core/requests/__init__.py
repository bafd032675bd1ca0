"""Requests, their flags, and results of all operations."""
