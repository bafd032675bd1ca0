"""The check after a commit that drops partitions of a chain table, as no lock spans two branches.

The guard allows dropping an anchor whose rows the deltas hold, and deltas whose rows an anchor holds. Two concurrent
commits of these kinds can each drop what the other one needs. So each checks the other branch again after it has
landed: the later check sees both commits, and restores the dropped partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_paimon.core.chain.commit_options import CHECKED_BY_CALLER, ChainOptions
from airflow_paimon.core.chain.layout import Branch, ChainLayout, Values
from airflow_paimon.core.chain.rebuild import is_proven
from airflow_paimon.core.chain.record import Provenance
from airflow_paimon.core.chain.staleness import provenances_in
from airflow_paimon.core.chain.state import splits_by_partition
from airflow_paimon.core.chain.write_plan import BuiltFrom, RequiredAnchor, required_anchors
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheck:
    """The assumptions of a commit that drops partitions of ``role``'s branch.

    ``plan``: that branch before the commit; ``after``: the partitions that it holds with it; ``other``: the other
    branch, as the guard saw it.
    """

    main: Table
    layout: ChainLayout
    role: Branch
    plan: ScanPlan
    after: frozenset[Values]
    other: ScanPlan

    @property
    def dropped(self) -> frozenset[Values]:
        return partitions_in(self.plan) - self.after

    @property
    def branch(self) -> str:
        return self.layout.snapshot_branch if self.role == Branch.SNAPSHOT else self.layout.delta_branch

    def run(self) -> LostPartitions | None:
        """Return the partitions to restore because the other branch has lost their rows; None: none."""
        view, seen = self.other.table, self.other.snapshot
        head = view.latest_snapshot()
        if (seen.identity if seen else None) == (head.identity if head else None):
            return None
        now = partitions_in(plan_snapshot(view, head, view.schema()))
        return self._needed_anchors(now) if self.role == Branch.SNAPSHOT else self._needed_deltas(now)

    def not_made(self, why: str) -> UnsafeOperationError:
        """Describe a commit that landed although ``run`` failed."""
        texts = sorted(map(self.layout.text_of, self.dropped))
        before = self.plan.snapshot.id if self.plan.snapshot is not None else None
        return UnsafeOperationError(
            f"{self.main.label}: {self.role} partitions {listed(texts)} are dropped, but the check whether another "
            f"writer dropped the partitions with their rows at the same time failed ({why}). Inspect them with "
            f"check_chain_table; rollback_to --branch {self.branch} --snapshot {before} restores them",
            details={"partitions": texts, "snapshot": before},
        )

    def _needed_anchors(self, deltas: frozenset[Values]) -> LostPartitions | None:
        held, records = partitions_in(self.plan), records_in(self.main, self.layout, self.plan)
        needed = required_anchors(self.layout, held, self.after, deltas, records)
        if not needed:
            return None
        missing = sorted({self.layout.text_of(m) for n in needed for m in n.missing if m is not None})
        branch = self.layout.delta_branch
        why = f"{listed(missing)} of branch {branch}" if missing else "deltas that build on them were added"
        return LostPartitions(check=self, partitions=frozenset(n.values for n in needed), why=why)

    def _needed_deltas(self, anchors: frozenset[Values]) -> LostPartitions | None:
        held = partitions_in(self.other)
        if held <= anchors:
            return None
        records = records_in(self.main, self.layout, self.other)
        needed = required_anchors(self.layout, held, anchors, self.after, records)
        missing = self.dropped & {m for n in needed for m in n.missing if m is not None}
        if not missing:
            return None
        gone = sorted(self.layout.text_of(n.values) for n in needed if missing & set(n.missing))
        why = f"{listed(gone)} of branch {self.layout.snapshot_branch}, which held their rows"
        return LostPartitions(check=self, partitions=frozenset(missing), why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPartitions:
    """Dropped partitions that are still needed; ``why`` follows their names in the message."""

    check: DropCheck
    partitions: frozenset[Values]
    why: str
    guard_options: ChainOptions = CHECKED_BY_CALLER

    @property
    def beside_appends(self) -> bool:
        """True for deltas, which late rows add to; a snapshot partition that exists again was reloaded."""
        return self.check.role == Branch.DELTA

    def restored(self, snapshot_id: int | None) -> UnsafeOperationError:
        """Describe the restoration. ``snapshot_id``: the one that restored them; None: another commit had."""
        branch = self.check.branch
        back = "exist again" if snapshot_id is None else f"are back with snapshot {snapshot_id} of branch {branch}"
        return self._error(f"they {back}: find the other job that drops partitions, then run it again", snapshot_id)

    def not_restored(self, before: int | None, why: str) -> UnsafeOperationError:
        """Describe a failed restoration. ``before``: the snapshot that holds them."""
        way = f"run rollback_to --branch {self.check.branch} --snapshot {before}"
        return self._error(f"they can't be restored ({why}): {way}", before)

    def _error(self, then: str, snapshot_id: int | None) -> UnsafeOperationError:
        main, texts = self.check.main, sorted(map(self.check.layout.text_of, self.partitions))
        return UnsafeOperationError(
            f"{main.label}: {self.check.role} partitions {listed(texts)} were dropped at the same moment as "
            f"{self.why}; {then}",
            details={"partitions": texts, "snapshot": snapshot_id},
        )


def partitions_in(plan: ScanPlan) -> frozenset[Values]:
    """Return the partitions that have a live file."""
    return frozenset(s.values for s in plan.splits)


def records_in(main: Table, layout: ChainLayout, snapshot: ScanPlan) -> BuiltFrom:
    """Return a function that looks up the provenance record of a partition; each group is listed once."""
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


def anchors_needed(main: Table, layout: ChainLayout, needed: Sequence[RequiredAnchor]) -> UnsafeOperationError:
    """Return the error for anchors that can't be dropped."""
    first, text = needed[0], layout.text_of
    lacking = [m for m in first.missing if m is not None]
    why = (
        f"of its inputs {listed([text(m) for m in lacking])} is gone"
        if lacking
        else "no earlier snapshot partition would be left for them"
    )
    more = f" (and {len(needed) - 1} more such partitions)" if len(needed) > 1 else ""
    return UnsafeOperationError(
        f"{main.label}: snapshot partition {text(first.values)} can't be dropped{more}: "
        f"{listed([text(f) for f in first.followers])} of branch {layout.delta_branch} builds on it, and {why}. Make "
        f"the first delta after it full first (compact_chain_table), or drop those deltas first",
        details={"needed": [text(n.values) for n in needed], "followers": [text(f) for f in first.followers]},
    )


def listed(texts: Sequence[str]) -> str:
    """List the first few."""
    return ", ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
