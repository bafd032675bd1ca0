"""Publishes: merge, fast-forward, replace main, rollback, undo; each is one snapshot that takes files by reference."""
