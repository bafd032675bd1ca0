"""What a write to a branch of a chain table leaves to do: snapshot partitions that its delta partitions made stale.

All of it follows from what the branches hold, so that a retry of the write goes on where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from airflow_paimon.core.chain.commit_options import ChainOptions, OnStale
from airflow_paimon.core.chain.guard import chain_role, refuse_unproven
from airflow_paimon.core.chain.read_plan import Branch, ChainLayout, Values
from airflow_paimon.core.chain.rebuild import records_of, what_is_lacking
from airflow_paimon.core.chain.staleness import StalePartition, find_stale, gather_provenances, history_of
from airflow_paimon.core.chain.state import ChainState, gather_chain
from airflow_paimon.core.chain.write_plan import affected
from airflow_paimon.core.commit.ledger import commit_identity
from airflow_paimon.core.commit.partition_drop import drop_held, held_partitions
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.chain_requests import CompactChainTable
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.history import touched
from airflow_paimon.core.table.partitions import readable_value
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import partition_types
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.chain.compact import compact_chain_table

_DROPPED = "airflow-paimon.dropped"
"""Snapshot property: the partitions that were dropped as stale, for a retry that is to build them again."""
_LOOKED_AT = 100

ON_STALE = ("refuse", "record", "rebuild", "drop")
Compact = Callable[[Context, CompactChainTable], OperationResult]
"""Makes partitions full, in this process or with Spark."""


def parse_on_stale(table: Table, on_stale: str | None, mode: str) -> OnStale:
    """Give what to do about partitions that go stale: by default appends that would be hidden are refused.

    Raises:
        InvalidInputError: an unknown choice, or one for anything but the delta branch of a chain table.
    """
    default: Literal["refuse", "record"] = "refuse" if mode == "append" else "record"
    if on_stale is None:
        return default
    if on_stale not in ON_STALE:
        raise InvalidInputError(f"on_stale is one of {', '.join(ON_STALE)}, not {on_stale!r}", table=table.name)
    if chain_role(table, table.schema()) != Branch.DELTA:
        raise InvalidInputError(
            f"{table.label}: on_stale goes with writes to the delta branch of a chain table only", table=table.name
        )
    choices: dict[str, OnStale] = {"refuse": "refuse", "record": "record", "rebuild": "rebuild", "drop": "drop"}
    return choices[on_stale]


def partitions_of(table: Table, partitions: Iterable[bytes]) -> frozenset[Values]:
    """Decode stored partitions."""
    types = partition_types(table.schema())
    return frozenset(decode_row(p, types) for p in partitions)


def touched_by(table: Table, snapshot: Snapshot | None) -> frozenset[Values]:
    """Give the partitions that a commit changed; those of an expired one are not known."""
    buckets = None if snapshot is None else touched(table, [snapshot])
    return partitions_of(table, {b.partition for b in buckets or ()})


def settle(
    table: Table,
    changed: frozenset[Values],
    on_stale: OnStale,
    operation_id: str | None = None,
    compact: Compact = compact_chain_table,
) -> dict[str, Any]:
    """Do what ``on_stale`` says after a commit on a chain table's branch, and give what the write's result tells of it.

    Raises:
        PaimonError: rebuilding or dropping failed. ``details["done"]`` says that the write itself stands; a retry with
            the same operation id goes on.
    """
    role = chain_role(table, table.schema())
    main = table.branch(MAIN)
    if role is None or not changed or chain_role(main, main.schema()) is None:
        return {}
    state = gather_chain(main)
    text = state.layout.text_of
    if role == Branch.MAIN:
        held = state.partitions
        over = sorted(text(v) for v in changed if v in held.snapshot | held.delta)
        warning = f"main's rows of {', '.join(over)} hide what the snapshot and delta branches hold there, for good"
        return {"warnings": [warning]} if over else {}
    stale = _stale(main, state, changed)
    details: dict[str, Any] = {}
    gone = changed - state.partitions.delta
    try:
        if on_stale == "rebuild" and role == Branch.DELTA:
            details["rebuilt"] = _rebuild(main, state, stale, gone, operation_id, compact)
        elif on_stale == "drop" and role == Branch.DELTA:
            details["dropped"] = _drop(main, state, [s.values for s in stale], gone, operation_id)
    except PaimonError as error:
        error.details.setdefault("done", [f"the write to {table.label}"])
        raise
    if details:
        stale = _stale(main, gather_chain(main), changed)
    rows = [{"partition": text(s.values), "reason": s.reason, "cascade": s.cascade} for s in stale]
    return {**details, **({"stale": rows} if rows else {})}


def _stale(main: Table, state: ChainState, changed: frozenset[Values]) -> tuple[StalePartition, ...]:
    """Judge the snapshot partitions at and behind the changed ones."""
    layout, held = state.layout, state.partitions
    found = affected(layout, changed, held.snapshot, held.delta | held.snapshot)
    groups = {layout.group_of(v) for v in changed}
    asked = {v for v in held.snapshot if layout.group_of(v) in groups}
    judged = find_stale(state, gather_provenances(main, state, asked), history_of(state))
    return tuple(s for s in judged if s.values in found.rebuilt)


def _rebuild(
    main: Table,
    state: ChainState,
    stale: Sequence[StalePartition],
    gone: frozenset[Values],
    operation_id: str | None,
    compact: Compact,
) -> list[Mapping[str, Any]]:
    """Build stale partitions again, each from the one before it; what can't be is left as it is.

    Where the write dropped deltas the partitions that hold their rows go first: until they are built again, reads
    merge. One whose own delta is gone does not come again.
    """
    layout, deltas = state.layout, state.partitions.delta
    wanted = _proven(main, state, stale)
    if any(s.lost and set(s.lost) <= gone for s in stale):
        wanted = {s.values for s in stale}
        _drop(main, state, sorted(wanted, key=layout.text_of), gone, operation_id)
        wanted &= deltas
    wanted |= _dropped_before(main, layout, deltas, operation_id)
    if not wanted:
        return []
    request = CompactChainTable(
        table=main.name,
        partition=tuple(_spec(layout, v) for v in sorted(wanted, key=layout.text_of)),
        overwrite=True,
        operation_id=None if operation_id is None else f"{operation_id}-rebuild",
    )
    started = time.monotonic()
    result = compact(Context(request, main, int(time.time() * 1000), started), request)
    keys = ("partition", "outcome", "snapshot", "reason")
    return [{k: row[k] for k in keys if k in row} for row in result.details["partitions"]]


def _proven(main: Table, state: ChainState, stale: Sequence[StalePartition]) -> set[Values]:
    """Give those that can be built again from what is there."""
    layout, held = state.layout, state.partitions
    records = gather_provenances(main, state, {s.values for s in stale})
    look = records_of(main, layout)
    found = {s.values for s in stale if not s.lost}
    return {v for v in found if what_is_lacking(layout, records.get(v), held.snapshot, held.delta, look) is None}


def _dropped_before(
    main: Table, layout: ChainLayout, deltas: frozenset[Values], operation_id: str | None
) -> set[Values]:
    """Find what an earlier try of this operation dropped to build it again."""
    if operation_id is None:
        return set()
    view = main.branch(layout.snapshot_branch)
    by_text = {layout.text_of(v): v for v in deltas}
    found: set[Values] = set()
    for snapshot in view.snapshots(view.snapshot_ids()[-_LOOKED_AT:]):
        if snapshot.commit_user == operation_id:
            found |= {by_text[t] for t in json.loads(snapshot.properties.get(_DROPPED, "[]")) if t in by_text}
    return found


def _spec(layout: ChainLayout, values: Values) -> str:
    typed = zip(layout.partition_keys, values, layout.partition_types, strict=True)
    return ",".join(f'{k}="{readable_value(v, t).replace(chr(34), chr(34) * 2)}"' for k, v, t in typed)


def _drop(
    main: Table, state: ChainState, stale: Sequence[Values], gone: frozenset[Values], operation_id: str | None
) -> list[str]:
    """Drop stale partitions as they were judged: what was loaded again meanwhile stays (ConflictError)."""
    if not stale:
        return []
    layout, held, view = state.layout, state.partitions, state.snapshot.table
    records = gather_provenances(main, state, frozenset(stale))
    refuse_unproven(main, layout, stale, records, held.snapshot, held.delta, gone)
    texts = [layout.text_of(v) for v in stale]
    drop_held(
        view,
        {h.key: h.digest for h in held_partitions(state.snapshot) if h.values in stale},
        check=lambda head: None,
        identity=commit_identity(operation_id, view.branch_name, "drop-stale"),
        properties={"airflow-paimon.operation": "drop-stale", _DROPPED: json.dumps(texts)},
        guard_options=ChainOptions(may_be_missing=gone),
    )
    return texts
