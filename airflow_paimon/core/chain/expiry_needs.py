"""The inputs that expiry must keep because stale partitions of a chain table are to be rebuilt from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from airflow_paimon.core.chain.layout import ChainLayout, Values
from airflow_paimon.core.chain.record import Provenance
from airflow_paimon.core.chain.staleness import StalePartition, find_stale, gather_provenances, history_of
from airflow_paimon.core.chain.state import ChainState
from airflow_paimon.core.chain.timeline import TimeLines
from airflow_paimon.core.table.table import Table


def stale_needs(main: Table, state: ChainState) -> dict[Values, dict[Values, datetime]]:
    """Return, by group, each stale snapshot partition that can be rebuilt, with the time of its first live input."""
    provenances = gather_provenances(main, state)
    stale = find_stale(state, provenances, history_of(state)) if provenances else ()
    held = state.partitions
    layout, snapshots = state.layout, TimeLines(state.layout, held.snapshot)
    out: dict[Values, dict[Values, datetime]] = {}
    for one in _to_rebuild(layout, stale, provenances, held.delta):
        group = layout.group_of(one.values)
        inputs = _live_inputs(one, provenances[one.values], held.snapshot, held.delta)
        _, nearest = snapshots.of(group).before(layout.time_of(one.values))
        inputs |= {nearest} if nearest is not None else set()
        times = [t for v in inputs if v != one.values and (t := layout.parsed_time(v)) is not None]
        if times:
            out.setdefault(group, {})[one.values] = min(times)
    return out


def _to_rebuild(
    layout: ChainLayout,
    stale: Sequence[StalePartition],
    provenances: Mapping[Values, Provenance],
    deltas: frozenset[Values],
) -> list[StalePartition]:
    """Leave out partitions that are stale only because inputs are gone: they can't be rebuilt.

    Between the two commits of an expiry that includes every partition of an expiring segment.
    """
    by_values = {s.values: s for s in stale}
    found: dict[Values, StalePartition] = {}
    for one in sorted(stale, key=lambda s: layout.time_of(s.values)):
        rest = set(one.because) - set(one.lost)
        if one.cascade:
            rest &= found.keys()
        else:
            rest = {v for v in rest if v in found or v not in by_values or v in deltas}
        if rest:
            found[one.values] = one
    return list(found.values())


def _live_inputs(
    one: StalePartition, built: Provenance, snapshots: frozenset[Values], deltas: frozenset[Values]
) -> set[Values]:
    recorded = {d.values for d in built.deltas if d.values in deltas}
    if built.anchor is not None and built.anchor.values in snapshots:
        recorded.add(built.anchor.values)
    return recorded | {v for v in one.because if v in snapshots or v in deltas}
