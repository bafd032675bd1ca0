"""The second look behind a commit that drops partitions of a chain table: nothing locks two branches together.

The guard lets an anchor go because deltas give its rows again, and deltas because an anchor holds theirs. Two such
commits at the same moment each rely on what the other one drops. So each looks at the other branch once more when it
has landed: whichever looks last sees both, and puts back what it dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_paimon.core.chain.commit_options import CHECKED_BY_CALLER, ChainOptions
from airflow_paimon.core.chain.provenance import Provenance
from airflow_paimon.core.chain.read_plan import Branch, ChainLayout, Values
from airflow_paimon.core.chain.rebuild import is_proven
from airflow_paimon.core.chain.staleness import provenances_in
from airflow_paimon.core.chain.state import splits_by_partition
from airflow_paimon.core.chain.write_plan import BuiltFrom, NeededAnchor, veto
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a commit on the branch ``role`` relied on. ``plan``: its own branch before; ``other``: the other one, as
    the guard saw it; ``after``: the partitions that its branch holds with it.
    """

    main: Table
    layout: ChainLayout
    role: Branch
    plan: ScanPlan
    after: frozenset[Values]
    other: ScanPlan

    def run(self) -> Broken | None:
        """See ``look_again``."""
        return look_again(self)

    @property
    def dropped(self) -> frozenset[Values]:
        return partitions_in(self.plan) - self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Partitions that a commit dropped and that are needed after all; ``why`` goes behind their names."""

    watch: Watch
    partitions: frozenset[Values]
    why: str
    guard_options: ChainOptions = CHECKED_BY_CALLER

    def restored(self, snapshot_id: int | None) -> UnsafeOperationError:
        """Say what happened. ``snapshot_id``: the one that put them back; None: somebody else had."""
        back = "are there" if snapshot_id is None else f"are back with snapshot {snapshot_id} of branch {self._branch}"
        return self._told(f"they {back}: look at what else drops partitions there, then run it again", snapshot_id)

    def not_restored(self, before: int | None, why: str) -> UnsafeOperationError:
        """Say that they could not be put back. ``before``: the snapshot that holds them."""
        way = f"run rollback_to --branch {self._branch} --snapshot {before}"
        return self._told(f"they can't be put back ({why}): {way}", before)

    @property
    def _branch(self) -> str:
        layout = self.watch.layout
        return layout.snapshot_branch if self.watch.role == Branch.SNAPSHOT else layout.delta_branch

    def _told(self, then: str, snapshot_id: int | None) -> UnsafeOperationError:
        main, texts = self.watch.main, sorted(map(self.watch.layout.text_of, self.partitions))
        return UnsafeOperationError(
            f"{main.label}: {self.watch.role} partitions {listed(texts)} went at the same moment as {self.why}; {then}",
            table=main.name,
            details={"partitions": texts, "snapshot": snapshot_id},
        )


def partitions_in(plan: ScanPlan) -> frozenset[Values]:
    """Give the partitions that have a live file."""
    return frozenset(s.values for s in plan.splits)


def look_again(watch: Watch) -> Broken | None:
    """Tell what has to be put back, as the other branch lost meanwhile what the commit relied on; None: nothing."""
    view, seen = watch.other.table, watch.other.snapshot
    head = view.latest_snapshot()
    if (seen.identity if seen else None) == (head.identity if head else None):
        return None
    now = partitions_in(plan_snapshot(view, head, view.schema()))
    return _needed_anchors(watch, now) if watch.role == Branch.SNAPSHOT else _needed_deltas(watch, now)


def _needed_anchors(watch: Watch, deltas: frozenset[Values]) -> Broken | None:
    held, records = partitions_in(watch.plan), records_in(watch.main, watch.layout, watch.plan)
    needed = veto(watch.layout, held, watch.after, deltas, records)
    if not needed:
        return None
    missing = sorted({watch.layout.text_of(m) for n in needed for m in n.missing if m is not None})
    why = f"{listed(missing)} of branch {watch.layout.delta_branch}" if missing else "deltas came that build on them"
    return Broken(watch=watch, partitions=frozenset(n.values for n in needed), why=why)


def _needed_deltas(watch: Watch, anchors: frozenset[Values]) -> Broken | None:
    held = partitions_in(watch.other)
    if held <= anchors:
        return None
    records = records_in(watch.main, watch.layout, watch.other)
    needed = veto(watch.layout, held, anchors, watch.after, records)
    missing = watch.dropped & {m for n in needed for m in n.missing if m is not None}
    if not missing:
        return None
    gone = sorted(watch.layout.text_of(n.values) for n in needed if missing & set(n.missing))
    why = f"{listed(gone)} of branch {watch.layout.snapshot_branch}, which held their rows"
    return Broken(watch=watch, partitions=frozenset(missing), why=why)


def records_in(main: Table, layout: ChainLayout, snapshot: ScanPlan) -> BuiltFrom:
    """Give a function that tells what a partition was built from, as it is recorded; groups are looked up once."""
    known: dict[Values, dict[Values, Provenance]] = {}
    full = splits_by_partition(snapshot).keys()

    def built_from(values: Values) -> tuple[Values | None, tuple[Values, ...]] | None:
        group = layout.group_of(values)
        if group not in known:
            known[group] = provenances_in(main, layout, snapshot, {v for v in full if layout.group_of(v) == group})
        found = known[group].get(values)
        if found is None or (found.anchor is None and not is_proven(found)):
            return None
        return (found.anchor.values if found.anchor else None), tuple(d.values for d in found.deltas)

    return built_from


def anchors_needed(main: Table, layout: ChainLayout, needed: Sequence[NeededAnchor]) -> UnsafeOperationError:
    """Say why anchors can't be dropped."""
    first, text = needed[0], layout.text_of
    lacking = [m for m in first.missing if m is not None]
    why = (
        f"of what it was built from {listed([text(m) for m in lacking])} is gone"
        if lacking
        else "no earlier snapshot partition would be left for them"
    )
    more = f" (and {len(needed) - 1} more such partitions)" if len(needed) > 1 else ""
    return UnsafeOperationError(
        f"{main.label}: snapshot partition {text(first.values)} can't be dropped{more}: "
        f"{listed([text(f) for f in first.followers])} of branch {layout.delta_branch} builds on it, and {why}. Make "
        f"the first delta behind it full first (compact_chain_table), or drop those deltas first",
        table=main.name,
        details={"needed": [text(n.values) for n in needed], "followers": [text(f) for f in first.followers]},
    )


def listed(texts: Sequence[str]) -> str:
    """Name the first few."""
    return ", ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
