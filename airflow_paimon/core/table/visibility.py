"""Which live files a batch read skips until a compaction has moved their rows.

Paimon's batch readers leave out level 0 of a primary-key table with deletion vectors (unless these are merged on
read) or with ``merge-engine=first-row``, and bucket -2 of postponed tables. Rows in such files are committed: whoever
replaces a bucket by a query's result would lose them. Other merge engines and changelog producers hide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions

POSTPONED_BUCKET = -2


def hides_level_zero(schema: TableSchema) -> bool:
    """Whether batch reads of the table leave out files of level 0."""
    options = TableOptions(schema.options)
    if not schema.primary_keys:
        return False
    merged_on_read = options.flag("deletion-vectors.merge-on-read")
    return options.merge_engine == "first-row" or (options.deletion_vectors and not merged_on_read)


def not_visible(entries: Iterable[ManifestEntry], schema: TableSchema) -> list[ManifestEntry]:
    """Return the live files whose rows a batch read skips. ``schema``: the schema of the read."""
    hidden_level = 0 if hides_level_zero(schema) else None
    keyed = bool(schema.primary_keys)
    return [e for e in entries if e.file.level == hidden_level or (keyed and e.bucket == POSTPONED_BUCKET)]
