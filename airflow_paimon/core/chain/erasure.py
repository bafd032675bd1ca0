"""Erasing rows of some keys from a chain table: what is refused, and records of provenance that stay true over it.

A condition on columns that all stored rows of a key share takes the same keys from every partition of every branch. So
what a full partition was built from, without these keys, gives that partition without them: it is as fresh or as stale
as before. Its record names files, though, which are other ones now.

``keep_records`` is called before the commit that gives full partitions other files; ``rebase_records`` when no newest
snapshot holds such rows any more. In between, and after a kill until the next run, partitions may be called stale that
are not; none that is stale passes for a fresh one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, Values
from airflow_paimon.core.chain.provenance import (
    gather_provenances,
    is_neutral,
    record_provenance,
    replace_record,
    touched_since,
)
from airflow_paimon.core.chain.provenance_plan import Part, Provenance
from airflow_paimon.core.chain.state import ChainState, state_digests, vectors_digests
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table

ERASURE = "erase_rows"


def is_erasure_or_neutral(snapshot: Snapshot) -> bool:
    """Return whether a commit leaves all rows but erased ones as they were."""
    return is_neutral(snapshot) or snapshot.properties.get(OPERATION_PROPERTY) == ERASURE


def keep_records(main: Table, layout: ChainLayout, plan: ScanPlan, digests: Mapping[Values, str]) -> None:
    """Record full partitions with the files that they are about to get, as built from what they were built from."""
    for values, built in gather_provenances(main, layout, plan, digests.keys()).items():
        record_provenance(main, layout, replace(built, files=digests[values]))


def rebase_records(main: Table, state: ChainState) -> int:
    """Let the records of all full partitions name the files that only erasures have put in the place of others.

    Returns how many records changed. ``state``: no newest snapshot held an erased row after it was read.
    """
    built = gather_provenances(main, state.layout, state.snapshot, passed_over=is_erasure_or_neutral)
    rebase = _Rebase(state)
    changed = 0
    for values, record in built.items():
        now = rebase.of(record)
        if now != record:
            replace_record(main, state.layout, replace(now, values=values))
            changed += 1
    return changed


class _Rebase:
    def __init__(self, state: ChainState) -> None:
        self._state = state
        branches = (ChainBranch.SNAPSHOT, ChainBranch.DELTA)
        self._live = {b: state_digests(state, b) for b in branches}
        self._vectors = {b: vectors_digests(state.plan(b)) for b in branches}
        self._touched: dict[tuple[ChainBranch, int | None, str | None], frozenset[Values] | None] = {}

    def of(self, record: Provenance) -> Provenance:
        """Return the record of the same partition for the live files. What has changed stays as it is recorded."""
        deltas = [(d, self._same(ChainBranch.DELTA, d, record)) for d in record.deltas]
        anchor = record.anchor
        if anchor is not None and anchor.values in self._live[ChainBranch.SNAPSHOT]:
            same_anchor = self._same(ChainBranch.SNAPSHOT, anchor, record)
            anchor = self._part(ChainBranch.SNAPSHOT, anchor) if same_anchor else anchor
        else:
            same_anchor = anchor is None  # a dropped one is looked up by what is recorded
        live = self._live[ChainBranch.DELTA]
        rebased = replace(
            record,
            files=self._live[ChainBranch.SNAPSHOT][record.values],
            anchor=anchor,
            deltas=tuple(
                self._part(ChainBranch.DELTA, d) if same else d for d, same in deltas if d.values in live or not same
            ),
        )
        if not same_anchor or not all(same for _, same in deltas):
            return rebased  # the snapshots that it was built on still tell that something has changed
        snapshots = {n: i for n, i in self._state.snapshot_ids.items() if n in record.snapshots}
        identities = {n: i for n, i in self._state.identities.items() if n in snapshots}
        same_files = (rebased.files, rebased.anchor, rebased.deltas) == (record.files, record.anchor, record.deltas)
        return record if same_files else replace(rebased, snapshots=snapshots, identities=identities)

    def _part(self, branch: ChainBranch, part: Part) -> Part:
        return Part(
            values=part.values,
            files=self._live[branch][part.values],
            vectors=self._vectors[branch].get(part.values, ""),
        )

    def _same(self, branch: ChainBranch, part: Part, record: Provenance) -> bool:
        """Whether an input still holds what it held, but for erased rows."""
        vectors = self._vectors[branch].get(part.values, "")
        if self._live[branch].get(part.values) == part.files and (part.vectors or "") == vectors:
            return True
        name = self._state.plan(branch).table.branch_name
        key = branch, record.snapshots.get(name), record.identities.get(name)
        if key not in self._touched:
            self._touched[key] = touched_since(self._state.plan(branch), *key[1:], is_erasure_or_neutral)
        known = self._touched[key]
        return known is not None and part.values not in known
