"""Whether a snapshot partition of a chain table could be rebuilt from the branches, or its rows would be lost.

It can be rebuilt if its record names its inputs and all of them exist: the deltas, and the anchor or the anchor's own
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from airflow_paimon.core.chain.layout import ChainLayout, Values
from airflow_paimon.core.chain.provenance import read_provenance
from airflow_paimon.core.chain.record import Part, Provenance
from airflow_paimon.core.table.table import Table

ASSUMED = "assumed"
"""Origin of records that were not written when the partition was built."""

UNPROVEN = "its inputs were not recorded, and its rows may be nowhere else"

RecordOf = Callable[[Part], Provenance | None]
"""Returns the record of a partition as of the time when another one was built from it."""

_LONGEST = 10_000


def records_of(table: Table, layout: ChainLayout) -> RecordOf:
    """Look up records by the files of a partition, whether or not it still exists."""
    return lambda part: read_provenance(table, layout, part.values, part.files)


def is_proven(built: Provenance | None) -> bool:
    """Return whether a record was written when the partition was built."""
    return built is not None and built.origin != ASSUMED


def what_is_lacking(
    layout: ChainLayout,
    built: Provenance | None,
    snapshots: Set[Values],
    deltas: Set[Values],
    record_of: RecordOf,
) -> str | None:
    """Return why a partition can't be rebuilt from live partitions; None: it can."""
    if built is None or not is_proven(built):
        return UNPROVEN
    current: Provenance | None = built
    text = layout.text_of
    anchor = built.anchor
    for _ in range(_LONGEST):
        if current is None or not is_proven(current):
            break
        gone = [text(d.values) for d in current.deltas if d.values not in deltas]
        if gone:
            return f"{', '.join(gone)} is gone"
        anchor = current.anchor
        if anchor is None or anchor.values in snapshots:
            return None
        current = record_of(anchor)
    return f"its anchor {text(anchor.values)} is gone" if anchor is not None else UNPROVEN
