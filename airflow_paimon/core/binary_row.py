"""Paimon's BinaryRow: the binary form of a row in manifests, statistics and bucket hashes."""

from __future__ import annotations

EMPTY_ROW_BYTES = bytes(12)
"""A row of arity 0: big-endian arity prefix and 8 bytes of header."""
