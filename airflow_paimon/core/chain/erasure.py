"""Erasing rows of some keys from a chain table: what is refused, and records of provenance that stay true over it.

A condition on columns that all stored rows of a key share takes the same keys from every partition of every branch. So
what a full partition was built from, without these keys, gives that partition without them: it is as fresh or as stale
as before. Its record names files, though, which are other ones now.

``keep_records`` is called before the commit that gives full partitions other files; ``rebase_records`` when no newest
snapshot holds such rows any more, as the snapshots by which erasures are known expire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, Values
from airflow_paimon.core.chain.provenance import LiveParts, gather_provenances, record_provenance, replace_record
from airflow_paimon.core.chain.provenance_plan import Provenance
from airflow_paimon.core.chain.state import ChainState
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table


def keep_records(main: Table, layout: ChainLayout, plan: ScanPlan, digests: Mapping[Values, str]) -> None:
    """Record full partitions with the files that they are about to get, as built from what they were built from."""
    for values, built in gather_provenances(main, layout, plan, digests.keys()).items():
        record_provenance(main, layout, replace(built, files=digests[values]))


def rebase_records(main: Table, state: ChainState) -> int:
    """Let the records of all full partitions name the files that only erasures have put in the place of others.

    Returns how many records changed. ``state``: no newest snapshot held an erased row after it was read.
    """
    built = gather_provenances(main, state.layout, state.snapshot)
    live = LiveParts(state)
    changed = 0
    for values, record in built.items():
        now = _rebased(record, live)
        if now != record:
            replace_record(main, state.layout, replace(now, values=values))
            changed += 1
    return changed


def _rebased(record: Provenance, live: LiveParts) -> Provenance:
    """Return the record of the same partition for the live files. What has changed stays as it is recorded."""
    deltas = [(d, live.is_same(ChainBranch.DELTA, d, record)) for d in record.deltas]
    anchor, held = record.anchor, live.files[ChainBranch.DELTA]
    if anchor is not None and anchor.values in live.files[ChainBranch.SNAPSHOT]:
        same_anchor = live.is_same(ChainBranch.SNAPSHOT, anchor, record)
        anchor = live.part(ChainBranch.SNAPSHOT, anchor.values) if same_anchor else anchor
    else:
        same_anchor = anchor is None  # a dropped one is looked up by what is recorded
    rebased = replace(
        record,
        files=live.files[ChainBranch.SNAPSHOT][record.values],
        anchor=anchor,
        deltas=tuple(
            live.part(ChainBranch.DELTA, d.values) if same else d for d, same in deltas if d.values in held or not same
        ),
    )
    if not same_anchor or not all(same for _, same in deltas):
        return rebased  # the snapshots that it was built on still tell that something has changed
    snapshots = {n: i for n, i in live.state.snapshot_ids.items() if n in record.snapshots}
    identities = {n: i for n, i in live.state.identities.items() if n in snapshots}
    same_files = (rebased.files, rebased.anchor, rebased.deltas) == (record.files, record.anchor, record.deltas)
    return record if same_files else replace(rebased, snapshots=snapshots, identities=identities)
