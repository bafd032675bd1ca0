"""The lists of names in table options, divided as Paimon divides each of them: no other place does it."""

from __future__ import annotations

_TRIMMED = frozenset({
    "blob-descriptor-field", "blob-field", "blob-view-field", "blob.stored-descriptor-fields",
    "chain-table.chain-partition-keys", "clustering.columns", "partition", "pk-bitmap.index.columns",
    "pk-btree.index.columns", "pk-full-text.index.columns", "pk-multivalue.index.columns", "pk-vector.index.columns",
    "primary-key", "sequence.field", "sink.clustering.by-columns", "airflow-paimon.masked-columns",
})  # fmt: skip
_TRIMMED_OF_COLUMNS = (".nested-key", ".nested-sequence-field")
"""Of ``fields.<column>``."""


def trims(key: str) -> bool:
    """Whether blanks around the names in the value of an option count for nothing.

    In other options, such as ``bucket-key`` and sequence groups, they are part of the name: no column is found there.
    """
    of_columns = key.startswith("fields.") and key.endswith(_TRIMMED_OF_COLUMNS)
    return key in _TRIMMED or of_columns or (key.startswith("file-index.") and key.endswith(".columns"))


def split_names(key: str, text: str) -> tuple[str, ...]:
    """Return the names in the value of an option, empty ones too, but for those after the last comma.

    This is Java's ``String.split``, of which Paimon makes use.
    """
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(part.strip() for part in parts) if trims(key) else tuple(parts)
