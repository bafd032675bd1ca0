"""Data files: read and write, per file format; schema evolution; statistics."""
