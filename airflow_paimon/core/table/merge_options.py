"""The options of merge engines: sequence groups of columns, and the look-up rule."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions

_PREFIX, _GROUP = "fields.", ".sequence-group"


def sequence_groups(schema: TableSchema) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the sequence fields and the other columns of each group (``fields.g1,g2.sequence-group = a,b``).

    Names are divided at commas, blanks are part of them. Columns that the schema doesn't have (in an older version) are
    left out.
    """
    known = set(schema.field_names)
    for key, text in sorted(schema.options.items()):
        if key.startswith(_PREFIX) and key.endswith(_GROUP):
            fields = tuple(key[len(_PREFIX) : -len(_GROUP)].split(","))
            if known.issuperset(fields):
                yield fields, tuple(c for c in text.split(",") if c in known)


def looks_up(schema: TableSchema) -> bool:
    """Whether of a key's versions above level 0 only that on the lowest level counts: it contains those below it.

    Paimon's look-up compactions, by which a table is compacted with these options, write complete rows.
    """
    options = TableOptions(schema.options)
    producer = options.text("changelog-producer", "none").lower()
    asked = producer == "lookup" or options.deletion_vectors or options.flag("force-lookup")
    return asked and options.merge_engine != "first-row"
