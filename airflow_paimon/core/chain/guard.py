"""The guard that checks every commit on a branch of a chain table, on every attempt, against its head.

It refuses to drop anchors that later deltas need and to append rows that would be hidden, and it records the inputs of
snapshot partitions before one of their deltas is changed, so that they are found to be stale afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_paimon.core.chain.commit_options import ChainOptions, OnStale
from airflow_paimon.core.chain.layout import Branch, ChainLayout, Values
from airflow_paimon.core.chain.post_commit_check import DropCheck, anchors_needed, listed, records_in
from airflow_paimon.core.chain.provenance import files_digest, record_provenance
from airflow_paimon.core.chain.rebuild import ASSUMED
from airflow_paimon.core.chain.record import Part, Provenance
from airflow_paimon.core.chain.schema_checks import chain_layout
from airflow_paimon.core.chain.staleness import provenances_in
from airflow_paimon.core.chain.state import chain_views, splits_by_partition
from airflow_paimon.core.chain.timeline import TimeLines
from airflow_paimon.core.chain.write_plan import Affected, Stretch, affected, required_anchors, stretch_of
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.table.features import holds_chain_rows
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import BucketSplit, ScanPlan, partition_types, plan_scan, plan_snapshot
from airflow_paimon.core.table.table import Table

_NEUTRAL = (CommitKind.COMPACT, CommitKind.ANALYZE)
_Held = dict[Values, tuple[BucketSplit, ...]]


def chain_role(table: Table, schema: TableSchema) -> Branch | None:
    """Return the role of a branch in its chain table; None: it has none."""
    options = TableOptions(schema.options)
    names = ((options.snapshot_branch, Branch.SNAPSHOT), (options.delta_branch, Branch.DELTA), (MAIN, Branch.MAIN))
    if not options.chain_table or not options.snapshot_branch or not options.delta_branch:
        return None
    return next((role for name, role in names if name and name.lower() == table.branch_name.lower()), None)


def chain_part(table: Table) -> Branch | None:
    """Return whether a branch is the snapshot or the delta branch of a chain table; None: neither."""
    role = chain_role(table, table.schema())
    return None if role == Branch.MAIN else role


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


class ChainGuard:
    """The guard of chain tables (a ``CommitGuard`` of ``core/commit/guards.py``)."""

    def check(self, table: Table, head: Snapshot | None, draft: Draft) -> DropCheck | None:
        """See ``guard_chain``."""
        options = draft.guard_options if isinstance(draft.guard_options, ChainOptions) else ChainOptions()
        return guard_chain(table, head, draft.schema, draft.entries, draft.kind, options)


CHAIN_GUARD = ChainGuard()


def guard_chain(
    table: Table,
    head: Snapshot | None,
    schema: TableSchema,
    entries: Sequence[ManifestEntry],
    kind: CommitKind,
    options: ChainOptions,
) -> DropCheck | None:
    """Check a commit, and write the records that must precede it. Returns the check to run when it has landed.

    Raises:
        UnsafeOperationError: a dropped anchor is required, or rows would be hidden. InvalidInputError: the branches or
            the numbers of buckets differ. NotFoundError: the other branch does not exist.
    """
    is_checked = options.checked_by_caller
    role = chain_role(table, schema)
    if role is None or role == Branch.MAIN or kind in _NEUTRAL or not entries:
        return None
    if is_checked and role == Branch.SNAPSHOT and all(e.kind == FileKind.ADD for e in entries):
        return (
            None  # a partition that compaction made full: nothing is dropped, and its chain had one number of buckets
        )
    main = table.branch(MAIN)
    main_schema = main.schema()
    if chain_role(main, main_schema) is None:
        return None  # being set up: not read as a chain yet
    adds = any(e.kind == FileKind.ADD for e in entries)
    layout = chain_views(main)[0] if adds else chain_layout(main_schema, main.label)
    change = _change(table, head, schema, entries)
    if role == Branch.SNAPSHOT:
        other = _guard_snapshot(main, layout, change, head, is_checked)
    else:
        on_stale = options.on_stale or ("refuse" if kind == CommitKind.APPEND else "record")
        other = _guard_delta(main, layout, change, on_stale, head, is_checked)
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
    touched: frozenset[Values]


def _change(table: Table, head: Snapshot | None, schema: TableSchema, entries: Sequence[ManifestEntry]) -> _Change:
    types = partition_types(schema)
    plan = plan_snapshot(table, head, schema)
    before = splits_by_partition(plan)
    files = {v: {f.file_name for s in splits for f in s.files} for v, splits in before.items()}
    added: dict[Values, int] = {}
    touched = set()
    for deletes in (True, False):
        for entry in (e for e in entries if (e.kind != FileKind.ADD) == deletes):
            values = decode_row(entry.partition, types)
            touched.add(values)
            names = files.setdefault(values, set())
            if deletes:
                names.discard(entry.file.file_name)
            else:
                names.add(entry.file.file_name)
                added[values] = entry.total_buckets
    after = frozenset(v for v, names in files.items() if names)
    return _Change(plan, before, after, added, frozenset(touched))


def _guard_snapshot(
    main: Table, layout: ChainLayout, change: _Change, head: Snapshot | None, is_checked: bool
) -> ScanPlan:
    before = frozenset(change.before)
    delta = plan_scan(main.branch(layout.delta_branch))
    deltas = splits_by_partition(delta)
    anchors, chained = TimeLines(layout, before), TimeLines(layout, deltas)
    _check_buckets(change, change.before, deltas, anchors, chained, Branch.SNAPSHOT)
    if before - change.after:
        records = records_in(main, layout, change.plan)
        needed = required_anchors(layout, before, change.after, frozenset(deltas), records)
        if needed:
            raise anchors_needed(main, layout, needed)
    if change.touched & change.after and not is_checked:
        found = affected(change.touched & change.after, anchors, chained)
        behind = Affected(hidden=(), rebuilt={v: p for v, p in found.rebuilt.items() if v not in change.touched})
        ids = {layout.snapshot_branch: _id(head), layout.delta_branch: _id(delta.snapshot)}
        _assume(main, layout, behind, change.plan, deltas, ids)
    return delta


def _id(snapshot: Snapshot | None) -> int | None:
    return None if snapshot is None else snapshot.id


def _guard_delta(
    main: Table, layout: ChainLayout, change: _Change, on_stale: OnStale, head: Snapshot | None, is_checked: bool
) -> ScanPlan:
    snapshot = plan_scan(main.branch(layout.snapshot_branch))
    snapshots = splits_by_partition(snapshot)
    anchors, chained = TimeLines(layout, snapshots), TimeLines(layout, change.before)
    _check_buckets(change, snapshots, change.before, anchors, chained, Branch.DELTA)
    found = affected(change.touched, anchors, chained)
    if is_checked:
        return snapshot
    if found.hidden and on_stale == "refuse":
        raise _hidden(main, layout, found.hidden)
    ids = {layout.delta_branch: _id(head), layout.snapshot_branch: _id(snapshot.snapshot)}
    _assume(main, layout, found, snapshot, change.before, ids)
    return snapshot


def _hidden(main: Table, layout: ChainLayout, hidden: Sequence[Values]) -> UnsafeOperationError:
    texts = [layout.text_of(v) for v in hidden]
    timeless = [layout.text_of(v) for v in hidden if layout.parsed_time(v) is None]
    never = f" ({listed(timeless)} is without a partition time, so it can't be rebuilt)" if timeless else ""
    return UnsafeOperationError(
        f"{main.label}: rows written to {listed(texts)} of branch {layout.delta_branch} would be invisible: the "
        f"snapshot branch holds that partition in full. Write with on_stale='record', which lists it as stale, and "
        f"rebuild it with compact_chain_table --pending{never}; or write the rows to a later partition",
        details={"partitions": texts},
    )


def _assume(
    main: Table,
    layout: ChainLayout,
    found: Affected,
    snapshot: ScanPlan,
    deltas: _Held,
    ids: dict[str, int | None],
) -> None:
    """Record, for partitions that another engine built, that they were built from the current deltas."""
    if not found.rebuilt:
        return
    snapshots = splits_by_partition(snapshot)
    recorded = provenances_in(main, layout, snapshot, found.rebuilt.keys())
    for values, (anchor, parts) in found.rebuilt.items():
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
    change: _Change, snapshots: _Held, deltas: _Held, anchors: TimeLines, chained: TimeLines, role: Branch
) -> None:
    """Refuse partitions whose number of buckets differs from that of partitions with which they are merged."""
    layout = anchors.layout
    known: dict[Stretch, dict[int, list[Values]]] = {}
    for values, total in change.added.items():
        stretch = stretch_of(values, anchors)
        if stretch is None or total <= 0:
            continue
        if stretch not in known:
            near = [(v, snapshots[v]) for v in (stretch.anchor,) if v is not None]
            near += [(v, deltas[v]) for v in chained.of(stretch.group).inside(stretch.after, stretch.end)]
            known[stretch] = _bucket_counts(near)
        # the partition's own files in its branch don't count: they may be the replaced ones
        others = [(n, v) for n, found in known[stretch].items() for v in found if role != Branch.DELTA or v != values]
        if role == Branch.DELTA:
            others += [(s.total_buckets, values) for s in snapshots.get(values, ())]
        for count, other in others:
            if count != total:
                raise InvalidInputError(
                    f"{layout.label}: partition {layout.text_of(values)} would have {total} buckets, but "
                    f"{layout.text_of(other)}, which it is merged with, has {count}: a key must have one bucket in all "
                    f"of a chain; write with option bucket={count} in all three branches, or write the other "
                    f"partitions again"
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
