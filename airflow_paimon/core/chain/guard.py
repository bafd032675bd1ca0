"""The guard that checks every commit on a branch of a chain table, on every attempt, against its head.

It refuses to drop anchors that later deltas need and to append rows that would be hidden, and it records the inputs of
snapshot partitions before one of their deltas is changed, so that they are found to be stale afterwards.

It allows dropping an anchor whose rows the deltas hold, and deltas whose rows an anchor holds. As no lock spans two
branches, two concurrent commits of these kinds can each drop what the other one needs. So each checks the other branch
again once it is committed: the later check sees both commits, and restores the dropped partitions.

``report_write`` tells the effects of a write for its result. It is derived from the branches, so that a retry of the
write reports the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, TimeLines, Values, chain_layout
from airflow_paimon.core.chain.provenance import (
    NEUTRAL,
    StalePartition,
    find_stale,
    gather_provenances,
    record_provenance,
)
from airflow_paimon.core.chain.provenance_plan import ASSUMED, Part, Provenance
from airflow_paimon.core.chain.state import (
    ChainState,
    chain_views,
    files_digest,
    gather_chain,
    partitions_in,
    splits_by_partition,
)
from airflow_paimon.core.chain.write_plan import (
    CHECKED_BY_CALLER,
    BuiltFrom,
    ChainOptions,
    OnStale,
    RequiredAnchor,
    affected,
    merged_with,
    required_anchors,
)
from airflow_paimon.core.commit.draft import CommitOptions, Draft
from airflow_paimon.core.commit.restore import restore_partitions
from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsafeOperationError, first_few
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.table.features import holds_chain_rows
from airflow_paimon.core.table.history import touched_buckets
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import ScanPlan, plan_scan, plan_snapshot
from airflow_paimon.core.table.table import Table

_SHOWN = 5


_Lost = tuple[frozenset[Values], str]
"""Dropped partitions that are still needed, and why, which follows their names in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheck:
    """The assumptions of a commit that drops partitions of ``role``'s branch.

    ``plan``: that branch before the commit; ``after``: the partitions that it holds with it; ``other``: the other
    branch, as the guard saw it.
    """

    main: Table
    layout: ChainLayout
    role: ChainBranch
    plan: ScanPlan
    after: frozenset[Values]
    other: ScanPlan

    @property
    def dropped(self) -> frozenset[Values]:
        return partitions_in(self.plan) - self.after

    @property
    def branch(self) -> str:
        return self.layout.snapshot_branch if self.role == ChainBranch.SNAPSHOT else self.layout.delta_branch

    def __call__(self, before: Snapshot | None, committed: Snapshot) -> UnsafeOperationError | None:
        """Restore the dropped partitions whose rows the other branch has lost; return the error to report, if any."""
        try:
            lost = self._lost()
        except PaimonError as error:
            return self._not_made(error.message)
        if lost is None:
            return None
        view = self.plan.table
        chosen = StoredPartitions(self.plan.schema).where(lost[0].__contains__)
        options = CommitOptions(guard_options=CHECKED_BY_CALLER)
        # late rows add to deltas; a snapshot partition that exists again was reloaded
        beside_appends = self.role == ChainBranch.DELTA
        try:
            done = restore_partitions(view, before, committed, chosen, options, beside_appends=beside_appends)
        except PaimonError as error:
            number = before.id if before is not None else None
            way = f"run rollback_to --branch {self.branch} --snapshot {number}"
            return self._dropped_error(lost, f"they can't be restored ({error.message}): {way}", number)
        number = done.snapshot.id if done.snapshot is not None else None
        back = "exist again" if number is None else f"are back with snapshot {number} of branch {self.branch}"
        then = f"they {back}: find the other job that drops partitions, then run it again"
        return self._dropped_error(lost, then, number)

    def _lost(self) -> _Lost | None:
        """Find the partitions to restore."""
        view, seen = self.other.table, self.other.snapshot
        head = view.latest_snapshot()
        if (seen.identity if seen else None) == (head.identity if head else None):
            return None
        now = partitions_in(plan_snapshot(view, head, view.schema()))
        return self._needed_anchors(now) if self.role == ChainBranch.SNAPSHOT else self._needed_deltas(now)

    def _dropped_error(self, lost: _Lost, then: str, snapshot_id: int | None) -> UnsafeOperationError:
        partitions, why = lost
        texts = sorted(map(self.layout.text_of, partitions))
        return UnsafeOperationError(
            f"{self.main.label}: {self.role} partitions {listed(texts)} were dropped at the same moment as {why}; "
            f"{then}",
            details={"partitions": texts, "snapshot": snapshot_id},
        )

    def _not_made(self, why: str) -> UnsafeOperationError:
        """Describe a commit that was made although the look at the other branch failed."""
        texts = sorted(map(self.layout.text_of, self.dropped))
        before = self.plan.snapshot.id if self.plan.snapshot is not None else None
        return UnsafeOperationError(
            f"{self.main.label}: {self.role} partitions {listed(texts)} are dropped, but the check for a concurrent "
            f"drop of their rows failed ({why}). Inspect them with check_chain_table; to restore them, run rollback_to "
            f"--branch {self.branch} --snapshot {before}",
            details={"partitions": texts, "snapshot": before},
        )

    def _needed_anchors(self, deltas: frozenset[Values]) -> _Lost | None:
        held, records = partitions_in(self.plan), records_in(self.main, self.layout, self.plan)
        needed = required_anchors(self.layout, held, self.after, deltas, records)
        if not needed:
            return None
        missing = sorted({self.layout.text_of(m) for n in needed for m in n.missing if m is not None})
        branch = self.layout.delta_branch
        why = f"{listed(missing)} of branch {branch}" if missing else "deltas that build on them were added"
        return frozenset(n.values for n in needed), why

    def _needed_deltas(self, anchors: frozenset[Values]) -> _Lost | None:
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
        return frozenset(missing), why


def records_in(main: Table, layout: ChainLayout, snapshot: ScanPlan) -> BuiltFrom:
    """Return a function that looks up the provenance record of a partition; each group is listed once."""
    known: dict[Values, dict[Values, Provenance]] = {}
    full = splits_by_partition(snapshot).keys()

    def built_from(values: Values) -> tuple[Values | None, tuple[Values, ...]] | None:
        group = layout.group_of(values)
        if group not in known:
            known[group] = gather_provenances(main, layout, snapshot, {v for v in full if layout.group_of(v) == group})
        found = known[group].get(values)
        if found is None or (found.anchor is None and not found.is_proven):
            return None
        return (found.anchor.values if found.anchor else None), tuple(d.values for d in found.deltas)

    return built_from


def required_anchor_error(main: Table, layout: ChainLayout, needed: Sequence[RequiredAnchor]) -> UnsafeOperationError:
    """Return the error for anchors that can't be dropped."""
    first, text = needed[0], layout.text_of
    lacking = [m for m in first.missing if m is not None]
    why = (
        f"of its inputs {listed([text(m) for m in lacking])} was deleted"
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
    return first_few(texts, _SHOWN)


_Held = dict[Values, tuple[BucketSplit, ...]]


def chain_role(table: Table, schema: TableSchema) -> ChainBranch | None:
    """Return the role of a branch in its chain table; None: it has none."""
    options = TableOptions(schema.options)
    names = (
        (options.snapshot_branch, ChainBranch.SNAPSHOT),
        (options.delta_branch, ChainBranch.DELTA),
        (MAIN, ChainBranch.MAIN),
    )
    if not options.chain_table or not options.snapshot_branch or not options.delta_branch:
        return None
    return next((role for name, role in names if name and name.lower() == table.branch_name.lower()), None)


def chain_part(table: Table) -> ChainBranch | None:
    """Return whether a branch is the snapshot or the delta branch of a chain table; None: neither."""
    role = chain_role(table, table.schema())
    return None if role == ChainBranch.MAIN else role


def is_chain_rows(table: Table) -> bool:
    """See ``holds_chain_rows``."""
    return holds_chain_rows(TableOptions(table.schema().options), table.branch_name)


def refuse_chain_branch(branch: Table) -> None:
    """Refuse to publish a chain table's snapshot or delta branch onto main."""
    role = chain_role(branch, branch.schema())
    if role is not None:
        raise UnsafeOperationError(
            f"{branch.label} is the {role} branch of a chain table: on main its partitions would hide both branches' "
            f"for good; compact_chain_table makes partitions full, write_table writes to main"
        )


def check_chain_publish(target: Table, branch: Table, operation: str) -> None:
    """Check a publish onto the snapshot or the delta branch of a chain table.

    Raises:
        UnsafeOperationError: it is not a merge, or the branch has other columns.
    """
    if operation != "merge_branch":
        raise UnsafeOperationError(
            f"{branch.label} began with a branch of a chain table, {target.branch_name!r}, and is published onto that "
            f"by merge_branch alone, not by {operation}"
        )
    if target.schema().content != branch.schema().content:
        raise UnsafeOperationError(
            f"{branch.label} has other columns or keys than branch {target.branch_name!r} of the chain table, whose "
            f"branches must have the same: alter the three of them with alter_chain_table, and correct a new branch"
        )


def check_commit(table: Table, head: Snapshot | None, draft: Draft, given: object) -> DropCheck | None:
    """Be the guard of chain tables (``core/commit/guard.py``): check a commit, and write the records that must precede
    it. Returns the check to run once it is committed.

    Raises:
        UnsafeOperationError: a dropped anchor is required, or rows would be hidden. InvalidInputError: the branches
            or the numbers of buckets differ, or a new partition has no partition time. NotFoundError: the other
            branch does not exist.
    """
    options = given if isinstance(given, ChainOptions) else ChainOptions()
    role, is_checked = chain_role(table, draft.schema), options.checked_by_caller
    if role is None or role == ChainBranch.MAIN or draft.kind in NEUTRAL or not draft.entries:
        return None
    adds = {e.kind == FileKind.ADD for e in draft.entries}
    if is_checked and role == ChainBranch.SNAPSHOT and adds == {True}:
        return None  # made full by compaction: nothing is dropped, and its chain had one number of buckets
    main = table.branch(MAIN)
    main_schema = main.schema()
    if chain_role(main, main_schema) is None:
        return None  # being set up: not read as a chain yet
    layout = chain_views(main)[0] if True in adds else chain_layout(main_schema, main.label)
    change = _change(table, head, draft.schema, draft.entries)
    if not is_checked and not draft.restores_own_files:
        for values in change.added.keys() - change.before.keys():
            layout.time_of(values)
    on_stale = options.on_stale or ("refuse" if draft.kind == CommitKind.APPEND else "record")
    other = _guard(main, layout, role, change, head, None if is_checked else on_stale)
    if is_checked or change.before.keys() <= change.after:
        return None
    return DropCheck(main=main, layout=layout, role=role, plan=change.plan, after=change.after, other=other)


@dataclass(frozen=True, slots=True)
class _Change:
    """``before``: the branch's content; ``added``: the number of buckets of partitions that get files."""

    plan: ScanPlan
    before: _Held
    after: frozenset[Values]
    added: dict[Values, int]
    changed_partitions: frozenset[Values]


def _change(table: Table, head: Snapshot | None, schema: TableSchema, entries: Sequence[ManifestEntry]) -> _Change:
    types = schema.partition_types
    plan = plan_snapshot(table, head, schema)
    before = splits_by_partition(plan)
    files = {v: {f.file_name for s in splits for f in s.files} for v, splits in before.items()}
    added: dict[Values, int] = {}
    changed_partitions = set()
    for deletes in (True, False):
        for entry in (e for e in entries if (e.kind != FileKind.ADD) == deletes):
            values = decode_row(entry.partition, types)
            changed_partitions.add(values)
            names = files.setdefault(values, set())
            if deletes:
                names.discard(entry.file.file_name)
            else:
                names.add(entry.file.file_name)
                added[values] = entry.total_buckets
    after = frozenset(v for v, names in files.items() if names)
    return _Change(plan, before, after, added, frozenset(changed_partitions))


def _guard(
    main: Table,
    layout: ChainLayout,
    role: ChainBranch,
    change: _Change,
    head: Snapshot | None,
    on_stale: OnStale | None,
) -> ScanPlan:
    """Check a change of the snapshot or the delta branch, and record the inputs of what it may make stale. Returns what
    the other branch holds. ``on_stale`` None: the caller finds out itself what becomes stale.
    """
    is_snapshot = role == ChainBranch.SNAPSHOT
    own, others = layout.snapshot_branch, layout.delta_branch
    own, others = (own, others) if is_snapshot else (others, own)
    other = plan_scan(main.branch(others))
    theirs = splits_by_partition(other)
    snapshots, deltas = (change.before, theirs) if is_snapshot else (theirs, change.before)
    anchors, chained = TimeLines(layout, snapshots), TimeLines(layout, deltas)
    _check_buckets(change, snapshots, deltas, anchors, chained, role)
    if is_snapshot and change.before.keys() - change.after:
        records = records_in(main, layout, change.plan)
        needed = required_anchors(layout, frozenset(snapshots), change.after, frozenset(deltas), records)
        if needed:
            raise required_anchor_error(main, layout, needed)
    if on_stale is None:
        return other
    found = affected(
        change.changed_partitions & change.after if is_snapshot else change.changed_partitions, anchors, chained
    )
    if found.hidden and not is_snapshot and on_stale == "refuse":
        raise _hidden(main, layout, found.hidden)
    rebuilt = {v: parts for v, parts in found.rebuilt.items() if not is_snapshot or v not in change.changed_partitions}
    ids = {own: head.id if head else None, others: other.snapshot.id if other.snapshot else None}
    _assume(main, layout, rebuilt, change.plan if is_snapshot else other, deltas, ids)
    return other


def _hidden(main: Table, layout: ChainLayout, hidden: Sequence[Values]) -> UnsafeOperationError:
    texts = [layout.text_of(v) for v in hidden]
    timeless = [layout.text_of(v) for v in hidden if layout.parsed_time(v) is None]
    never = f" ({listed(timeless)} is without a partition time, so it can't be rebuilt)" if timeless else ""
    return UnsafeOperationError(
        f"{main.label}: rows written to {listed(texts)} of branch {layout.delta_branch} would be invisible: the "
        "snapshot branch has that partition in full. Write with on_stale='record' and run compact_chain_table "
        f"--pending{never}, or write to a later partition",
        details={"partitions": texts},
    )


def _assume(
    main: Table,
    layout: ChainLayout,
    rebuilt: Mapping[Values, tuple[Values | None, tuple[Values, ...]]],
    snapshot: ScanPlan,
    deltas: _Held,
    ids: dict[str, int | None],
) -> None:
    """Record, for partitions that another engine built, that they were built from the current deltas."""
    if not rebuilt:
        return
    snapshots = splits_by_partition(snapshot)
    recorded = gather_provenances(main, layout, snapshot, rebuilt.keys())
    for values, (anchor, parts) in rebuilt.items():
        if values in recorded:
            continue
        own = None if anchor is None else Part(values=anchor, files=files_digest(snapshots[anchor]))
        record = Provenance(
            values=values,
            files=files_digest(snapshots[values]),
            anchor=own,
            deltas=tuple(Part(values=d, files=files_digest(deltas[d])) for d in parts),
            snapshots=ids,
            origin=ASSUMED,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        record_provenance(main, layout, record)


def _check_buckets(
    change: _Change, snapshots: _Held, deltas: _Held, anchors: TimeLines, chained: TimeLines, role: ChainBranch
) -> None:
    """Refuse partitions whose number of buckets differs from that of partitions with which they are merged."""
    layout = anchors.layout
    known: dict[tuple[object, ...], dict[int, list[Values]]] = {}
    for values, total in change.added.items():
        found = merged_with(values, anchors, chained)
        if found is None or total <= 0:
            continue
        anchor, near = found
        key = (anchor, near[:1], near[-1:])  # deltas in a row
        if key not in known:
            full = [(anchor, snapshots[anchor])] if anchor is not None else []
            known[key] = _bucket_counts([*full, *((v, deltas[v]) for v in near)])
        # the partition's own files in its branch don't count: they may be the replaced ones
        others = [(n, v) for n, some in known[key].items() for v in some if role != ChainBranch.DELTA or v != values]
        if role == ChainBranch.DELTA:
            others += [(s.total_buckets, values) for s in snapshots.get(values, ())]
        for count, other in others:
            if count != total:
                raise InvalidInputError(
                    f"{layout.label}: partition {layout.text_of(values)} would have {total} buckets, but "
                    f"{layout.text_of(other)}, which it is merged with, has {count}: a key needs one bucket in all of "
                    f"a chain. Write with bucket={count} in all three branches, or rewrite the others"
                )


def _bucket_counts(held: Iterable[tuple[Values, Sequence[BucketSplit]]]) -> dict[int, list[Values]]:
    """Return the partitions with each number of buckets, at most two of them."""
    counts: dict[int, list[Values]] = {}
    for values, splits in held:
        for count in {s.total_buckets for s in splits}:
            found = counts.setdefault(count, [])
            if len(found) < 2:
                found.append(values)
    return counts


def parse_on_stale(table: Table, on_stale: str | None) -> OnStale | None:
    """Check the argument ``on_stale``; None: the guard decides by the kind of the write.

    Raises:
        InvalidInputError: an unknown value, or a branch other than the delta branch of a chain table.
    """
    if on_stale is None:
        return None
    if on_stale in ("rebuild", "drop"):
        raise InvalidInputError(
            f"{table.label}: on_stale={on_stale!r} is not supported for writes: write with on_stale='record', then run "
            "compact_chain_table --pending to rebuild the stale partitions"
        )
    if on_stale not in ("refuse", "record"):
        raise InvalidInputError(f"on_stale is one of refuse, record, not {on_stale!r}")
    if chain_role(table, table.schema()) != ChainBranch.DELTA:
        raise InvalidInputError(f"{table.label}: on_stale applies only to writes to the delta branch of a chain table")
    return "refuse" if on_stale == "refuse" else "record"


def report_write(table: Table, committed: Snapshot | int | None) -> dict[str, Any]:
    """Return additional fields of a write's result: ``stale`` (full partitions to rebuild) or ``warnings``.

    ``committed``: the write's snapshot, or its id; None: nothing was committed. A failure is a warning, as the write is
    committed.
    """
    try:
        return _report(table, table.find_snapshot(committed) if isinstance(committed, int) else committed)
    except PaimonError as error:
        why = f"it could not be found out which full partitions are stale after this commit: {error.message}"
        return {"warnings": [f"{why}. check_chain_table lists them"]}


def _report(table: Table, committed: Snapshot | None) -> dict[str, Any]:
    role = chain_role(table, table.schema())
    if role is None or committed is None:
        return {}
    main, types = table.branch(MAIN), table.schema().partition_types
    buckets = touched_buckets(table, [committed]) or ()  # none of an expired snapshot, as its files are unknown
    changed = frozenset(decode_row(p, types) for p in {b.partition for b in buckets})
    if not changed or chain_role(main, main.schema()) is None:
        return {}
    state = gather_chain(main)
    text = state.layout.text_of
    if role == ChainBranch.MAIN:
        held = state.partitions
        over = sorted(text(v) for v in changed if v in held.snapshot | held.delta)
        warning = f"main's rows of {', '.join(over)} hide those of the snapshot and delta branches permanently"
        return {"warnings": [warning]} if over else {}
    stale = _stale_behind(main, state, changed)
    rows = [{"partition": text(s.values), "reason": s.reason, "cascade": s.cascade} for s in stale]
    return {"stale": rows} if rows else {}


def _stale_behind(main: Table, state: ChainState, changed: frozenset[Values]) -> tuple[StalePartition, ...]:
    """Check the snapshot partitions at and after the changed ones."""
    layout, held = state.layout, state.partitions
    found = affected(changed, TimeLines(layout, held.snapshot), TimeLines(layout, held.delta | held.snapshot))
    groups = {layout.group_of(v) for v in changed}
    stored = {v for v in held.snapshot if layout.group_of(v) in groups}
    judged = find_stale(state, gather_provenances(main, layout, state.snapshot, stored))
    return tuple(s for s in judged if s.values in found.rebuilt)
