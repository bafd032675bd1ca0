"""The effects of a write on the other branches of a chain table, for its result: stale full partitions, hidden rows.

The report is derived from the branches, so that a retry of the write reports the same.
"""

from __future__ import annotations

from typing import Any

from airflow_paimon.core.chain.guard import chain_role
from airflow_paimon.core.chain.layout import Branch, TimeLines, Values
from airflow_paimon.core.chain.staleness import StalePartition, find_stale, gather_provenances
from airflow_paimon.core.chain.state import ChainState, gather_chain
from airflow_paimon.core.chain.write_plan import OnStale, affected
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.history import touched
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import partition_types
from airflow_paimon.core.table.table import Table


def parse_on_stale(table: Table, on_stale: str | None) -> OnStale | None:
    """Check the argument ``on_stale``; None: the guard decides by the kind of the write.

    Raises:
        InvalidInputError: an unknown value, or a branch other than the delta branch of a chain table.
    """
    if on_stale is None:
        return None
    if on_stale in ("rebuild", "drop"):
        raise InvalidInputError(
            f"{table.label}: on_stale={on_stale!r} is not supported for writes: write with on_stale='record', then "
            f"rebuild the stale partitions with compact_chain_table --pending"
        )
    if on_stale not in ("refuse", "record"):
        raise InvalidInputError(f"on_stale is one of refuse, record, not {on_stale!r}")
    if chain_role(table, table.schema()) != Branch.DELTA:
        raise InvalidInputError(f"{table.label}: on_stale applies only to writes to the delta branch of a chain table")
    return "refuse" if on_stale == "refuse" else "record"


def report_write(table: Table, landed: Snapshot | None) -> dict[str, Any]:
    """Return additional fields of a write's result: ``stale`` (full partitions to rebuild) or ``warnings``.

    ``landed``: the write's snapshot; None: nothing was committed.
    """
    role = chain_role(table, table.schema())
    if role is None or landed is None:
        return {}
    main, changed = table.branch(MAIN), _changed_partitions(table, landed)
    if not changed or chain_role(main, main.schema()) is None:
        return {}
    state = gather_chain(main)
    text = state.layout.text_of
    if role == Branch.MAIN:
        held = state.partitions
        over = sorted(text(v) for v in changed if v in held.snapshot | held.delta)
        warning = f"main's rows of {', '.join(over)} hide those of the snapshot and delta branches permanently"
        return {"warnings": [warning]} if over else {}
    stale = _stale_behind(main, state, changed)
    rows = [{"partition": text(s.values), "reason": s.reason, "cascade": s.cascade} for s in stale]
    return {"stale": rows} if rows else {}


def _changed_partitions(table: Table, landed: Snapshot) -> frozenset[Values]:
    """Empty for an expired snapshot, as its files are unknown."""
    types = partition_types(table.schema())
    return frozenset(decode_row(p, types) for p in {b.partition for b in touched(table, [landed]) or ()})


def _stale_behind(main: Table, state: ChainState, changed: frozenset[Values]) -> tuple[StalePartition, ...]:
    """Check the snapshot partitions at and after the changed ones."""
    layout, held = state.layout, state.partitions
    found = affected(changed, TimeLines(layout, held.snapshot), TimeLines(layout, held.delta | held.snapshot))
    groups = {layout.group_of(v) for v in changed}
    asked = {v for v in held.snapshot if layout.group_of(v) in groups}
    judged = find_stale(state, gather_provenances(main, state, asked))
    return tuple(s for s in judged if s.values in found.rebuilt)
