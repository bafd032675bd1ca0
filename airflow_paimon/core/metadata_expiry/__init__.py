"""Expiry of snapshots, tags and branches, and orphan files: roots, references, the trash."""
