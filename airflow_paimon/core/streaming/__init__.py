"""Streams of a branch's changes: positions, what each snapshot gives, and what protects a position from expiry."""
