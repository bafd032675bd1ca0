"""Which live files a batch read skips until a compaction has moved their rows.

Paimon's batch readers leave out level 0 of a primary-key table with deletion vectors (unless these are merged on
read) or with ``merge-engine=first-row``, and bucket -2 of postponed tables. Rows in such files are committed: whoever
replaces a bucket by a query's result would lose them. Other merge engines and changelog producers hide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_paimon.core.format.manifest import DataFile, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN, POSTPONED_BUCKET


def hides_level_zero(schema: TableSchema) -> bool:
    """Whether batch reads of the table leave out files of level 0."""
    options = TableOptions(schema.options)
    if not schema.primary_keys:
        return False
    merged_on_read = options.flag("deletion-vectors.merge-on-read")
    return options.merge_engine == "first-row" or (options.deletion_vectors and not merged_on_read)


def waits_for_compaction(schema: TableSchema, branch: str) -> bool:
    """Whether readers of a branch get appended rows only from a compaction that the writer is expected to run.

    Batch readers, or streaming readers of a changelog that compactions write. With ``write-only`` somebody else
    compacts; a branch has that option from us, so there it does not count.
    """
    options = TableOptions(schema.options)
    if not schema.primary_keys or options.chain_table:
        return False
    if branch != MAIN:
        return hides_level_zero(schema)
    has_changelog = options.text("changelog-producer", "none").lower() in ("lookup", "full-compaction")
    return not options.write_only and (has_changelog or hides_level_zero(schema))


def invisible_files(entries: Iterable[ManifestEntry], schema: TableSchema) -> list[ManifestEntry]:
    """Return the live files whose rows a batch read skips. ``schema``: the schema of the read."""
    hidden_level = 0 if hides_level_zero(schema) else None
    keyed = bool(schema.primary_keys)
    return [e for e in entries if e.file.level == hidden_level or (keyed and e.bucket == POSTPONED_BUCKET)]


def shown_files(files: Sequence[DataFile], schema: TableSchema) -> tuple[DataFile, ...]:
    """Return the files of a bucket whose rows a batch read shows."""
    return tuple(f for f in files if f.level > 0) if hides_level_zero(schema) else tuple(files)


def has_unique_keys(files: Sequence[DataFile], schema: TableSchema) -> bool:
    """Whether the shown files of a bucket hold each key once, so that nothing has to be merged.

    With deletion vectors and ``merge-engine=first-row`` Paimon's compactions see to it. Files of Paimon 0.7 and earlier
    don't tell whether they hold deletes, and count as without.
    """
    options = TableOptions(schema.options)
    if not options.deletion_vectors and options.merge_engine != "first-row":
        return False
    return all(f.level > 0 and not f.delete_row_count for f in files)


def is_clustered(schema: TableSchema) -> bool:
    """Whether files above level 0 are sorted, and their key bounds given, by other columns than the key."""
    return bool(schema.primary_keys) and TableOptions(schema.options).flag("pk-clustering-override")
