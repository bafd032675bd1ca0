"""Reads what the health of a table is judged by. Each file is read once, and no data file; nothing is changed.

Of a table without branches: a few listings, its newest schema, its tags, its oldest and newest snapshot with their
manifests, and, where snapshots are due, as many more as a binary search over them needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_paimon.core.chain.check import ChainCheck, check_chain_table
from airflow_paimon.core.chain.compaction_plan import LONGEST_CHAIN
from airflow_paimon.core.chain.state import splits_by_partition
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.health.files_plan import FileGroup, groups_of_columns, groups_of_splits, rules_of
from airflow_paimon.core.health.health_plan import (
    MIN_FILES,
    ChainFigures,
    HeldFigures,
    Observed,
    RetainedState,
    StorageFigures,
    TableHealth,
    plan_health,
)
from airflow_paimon.core.metadata_expiry.automatic_tags import needs_automatic_tags
from airflow_paimon.core.metadata_expiry.expiry_plan import SnapshotRule, expiry_rule
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.metadata_expiry.storage_usage_plan import SNAPSHOTS
from airflow_paimon.core.partition_expiry.partition_expiry_plan import EXPIRATION_TIME
from airflow_paimon.core.requests.findings import ERROR
from airflow_paimon.core.table.branch_record import BranchRecord, read_branch_record
from airflow_paimon.core.table.consumers import Consumer, read_consumers
from airflow_paimon.core.table.history import files_only_in
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import (
    CHANGELOG_PREFIX,
    KEEP_TAG_PREFIX,
    MAIN,
    STAGED_TAG_PREFIX,
    STAGING_BRANCH_PREFIX,
    UNDO_TAG_PREFIX,
    numbered,
    protects,
)
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.record_kinds import TRASH_ENTRIES
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import hides_level_zero

_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """What a caller compacts with, if not with the defaults; ``storage``: also count what nothing refers to.

    ``most_runs``: None = as many sorted runs as the table's writers leave. ``older_than_ms`` (epoch milliseconds),
    ``retain_min`` and ``retain_max`` say which snapshots are due, where given; otherwise each table's options do.
    """

    min_files: int = MIN_FILES
    most_runs: int | None = None
    storage: bool = False
    older_than_ms: int | None = None
    retain_min: int | None = None
    retain_max: int | None = None


def read_health(table: Table, now_ms: int, rules: HealthRules | None = None) -> TableHealth:
    """Read how a table fares, and judge it. ``now_ms``: epoch milliseconds, for ages.

    Raises:
        NotFoundError: there is no such table. FormatError: something that is needed is missing or unreadable.
        InvalidInputError: a table option is malformed.
    """
    main = table.branch(MAIN).require()
    for number in range(1, _TRIES + 1):
        ids = main.snapshot_ids()
        try:
            with cached_reads():
                return plan_health(_observe(main, now_ms, rules or HealthRules()))
        except (FormatError, NotFoundError):  # an expiry may take away what was listed
            if number == _TRIES or main.snapshot_ids() == ids:
                raise
    raise AssertionError  # the last try returns or raises


def _observe(main: Table, now_ms: int, rules: HealthRules) -> Observed:
    schema = main.schema()
    options = TableOptions(schema.options)
    views = _read_views(main, options)
    head = main.latest_snapshot()
    check = check_chain_table(main) if options.chain_table else None
    live = live_columns(main, head) if check is None or check.state is None else None
    schema_ids = set(main.schema_ids())
    groups = groups_of_columns(MAIN, live) if live is not None else _chain_files(check)
    file_rules = rules_of(
        options,
        keyed=bool(schema.primary_keys),
        hides_level_zero=hides_level_zero(schema),
        min_files=rules.min_files,
    )
    return Observed(
        table=main.name,
        now_ms=now_ms,
        snapshot=head.id if head is not None else None,
        committed_ms=_newest_ms(head, check),
        rules=replace(file_rules, most_runs=rules.most_runs or file_rules.most_runs),
        merge_min_count=options.manifest_merge_min_count,
        manifest_target=options.manifest_target_size,
        most_snapshots=options.number("snapshot.num-retained.min", 10),
        groups=groups,
        unreadable_files=sum(i not in schema_ids for i in live.schema_ids) if live is not None else 0,
        index=read_index_entries(main, head),
        manifests=() if head is None else all_manifests(main, head),
        held=_held(main, views, head, now_ms, rules),
        chain=None if check is None else _chain_figures(check),
        storage=_storage(main, now_ms) if rules.storage else None,
    )


# -- what holds old states ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A branch: ``options`` None where it has no schema (yet). ``ids``: of its snapshots, ascending."""

    table: Table
    options: TableOptions | None
    ids: Sequence[int]
    tags: Sequence[Tag]
    consumers: Sequence[Consumer]
    changelogs: int
    record: BranchRecord | None

    @property
    def name(self) -> str:
        return self.table.branch_name


def _read_views(main: Table, options: TableOptions) -> list[_View]:
    names = [name for name in main.branch_names() if not name.startswith(STAGING_BRANCH_PREFIX)]
    return [_read_view(main, options), *(_read_view(main.branch(name), None) for name in names)]


def _read_view(view: Table, options: TableOptions | None) -> _View:
    if options is None and view.exists():
        options = TableOptions(view.schema().options)
    return _View(
        table=view,
        options=options,
        ids=view.snapshot_ids(),
        tags=view.tags(),
        consumers=tuple(read_consumers(view)),
        changelogs=len(numbered(view.store.names(view.paths.changelog_dir), CHANGELOG_PREFIX)),
        record=None if view.branch_name == MAIN else read_branch_record(view, view.branch_name),
    )


def _held(main: Table, views: Sequence[_View], head: Snapshot | None, now_ms: int, rules: HealthRules) -> HeldFigures:
    records = {v.name: v.record for v in views}
    due = {v.name: _due_snapshots(v, now_ms, rules) for v in views}
    blocked = {v.name: _due_snapshots(v, now_ms, rules, consumers=False) - due[v.name] for v in views if v.consumers}
    worst = max(blocked, key=blocked.__getitem__, default=None)
    oldest = _oldest(views[0])
    pins = [*([] if oldest is None else [_snapshot_pin(views[0], oldest)]), *_pins(views, records)]
    unlimited = [p for p in pins if p.kind != "snapshot" and not _ends(p, views, records)]
    several = len(views[0].ids) > 1
    return HeldFigures(
        snapshots=sum(len(v.ids) for v in views),
        tags=sum(len(v.tags) for v in views),
        keep_tags=sum(t.name.startswith(KEEP_TAG_PREFIX) for v in views for t in v.tags),
        branches=len(views) - 1,
        changelogs=sum(v.changelogs for v in views),
        consumers=sum(len(v.consumers) for v in views),
        trash=len(main.store.walk(TRASH_ENTRIES.folder)),
        due_snapshots=sum(due.values()),
        automatic_tags=_automatic_tags(views[0]),
        partitions_expire=views[0].options is not None and bool(views[0].options.text(EXPIRATION_TIME)),
        due_tags=sum(_is_due(t, records, now_ms) for v in views for t in v.tags),
        due_branches=sum(_is_over(record, now_ms) for record in records.values()),
        blocked_snapshots=sum(blocked.values()),
        blocked_by=_first_consumer(views, worst) if any(blocked.values()) else None,
        replaced_bytes=_replaced_bytes(main, oldest, head) if several else 0,
        oldest=_first(pins),
        unlimited=_first(unlimited),
    )


def _replaced_bytes(main: Table, oldest: Snapshot | None, head: Snapshot | None) -> int:
    """Count the bytes of data files of the oldest snapshot that the newest one doesn't have."""
    if oldest is None or head is None:
        return 0
    gone = files_only_in(main, all_manifests(main, oldest), all_manifests(main, head))
    return sum(entry.file.file_size for entry in gone.values())


def _automatic_tags(main: _View) -> bool:
    head = main.table.snapshot(main.ids[-1]) if main.ids else None
    return main.options is not None and needs_automatic_tags(main.options, main.table.name, main.tags, head)


def _first(pins: Sequence[RetainedState]) -> RetainedState | None:
    """Return the pin of the oldest state; of several of one millisecond the first in the order of ``pins``."""
    return min(pins, key=lambda pin: pin.since_ms, default=None)


def _oldest(view: _View) -> Snapshot | None:
    return view.table.snapshot(view.ids[0]) if view.ids else None


def _snapshot_pin(view: _View, oldest: Snapshot) -> RetainedState:
    return RetainedState(kind="snapshot", name=str(oldest.id), branch=view.name, since_ms=oldest.time_millis)


def _pins(views: Sequence[_View], records: dict[str, BranchRecord | None]) -> list[RetainedState]:
    """Return the tags and branches that hold a state, main's first, each branch's by snapshot id; a tag that protects a
    branch stands for it.
    """
    found = []
    for view in views:
        for tag in view.tags:
            branch = protects(tag.name)
            kind, name = ("branch", branch) if branch in records else ("tag", tag.name)
            found.append(RetainedState(kind=kind, name=str(name), branch=view.name, since_ms=tag.snapshot.time_millis))
    return found


def _ends(pin: RetainedState, views: Sequence[_View], records: dict[str, BranchRecord | None]) -> bool:
    """Whether a retention ends a pin, or the operation that it belongs to does."""
    if pin.kind == "branch":
        record = records[pin.name]
        return record is not None and record.expires_ms is not None
    (tag,) = [t for v in views if v.name == pin.branch for t in v.tags if t.name == pin.name]
    return tag.time_retained is not None or tag.name.startswith((UNDO_TAG_PREFIX, KEEP_TAG_PREFIX, STAGED_TAG_PREFIX))


def _first_consumer(views: Sequence[_View], branch: str | None) -> str | None:
    """Name the consumer of a branch that needs the oldest snapshots."""
    found = [c for v in views if v.name == branch for c in v.consumers]
    return min(found, key=lambda c: c.next_snapshot).name if found else None


def _due_snapshots(view: _View, now_ms: int, rules: HealthRules, *, consumers: bool = True) -> int:
    """Count the snapshots that ``expire_snapshots`` may take away by the rules and the branch's options.

    It keeps some of these where an operation of the last day may be tried again.
    """
    if view.options is None or not view.ids:
        return 0
    rule = expiry_rule(
        view.options,
        view.table.label,
        now_ms=now_ms,
        older_than_ms=rules.older_than_ms,
        retain_min=rules.retain_min,
        retain_max=rules.retain_max,
        max_deletes=None,
    )
    pins = [t.snapshot.id + 1 for t in view.tags if t.name.startswith(UNDO_TAG_PREFIX)]
    pins += [c.next_snapshot for c in view.consumers] if consumers else []
    if view.record is not None and view.record.snapshot_id is not None:
        pins.append(view.record.snapshot_id)
    return count_due(view.ids, rule, pins, lambda number: view.table.snapshot(number).time_millis)


def count_due(ids: Sequence[int], rule: SnapshotRule, pins: Sequence[int], time_of: Callable[[int], int]) -> int:
    """Count the snapshots that ``plan_branch`` lets expire, with few looks at their commit times.

    ``ids``: ascending; ``pins``: the oldest snapshots that something needs. Later snapshots have later times.
    """
    allowed = max(0, min([len(ids) - rule.retain_min, *(sum(i < pin for i in ids) for pin in pins)]))
    low, high = min(max(len(ids) - rule.retain_max, 0), allowed), allowed
    middle = low  # mostly none is due
    while low < high:
        if time_of(ids[middle + 1]) < rule.cutoff_ms:
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return low


def _is_due(tag: Tag, records: dict[str, BranchRecord | None], now_ms: int) -> bool:
    """Whether a tag's retention is over, and no branch was made from it."""
    end = tag.expires_at()
    made = (r.from_tag for r in records.values() if r is not None)
    return end is not None and end < datetime.fromtimestamp(now_ms / 1000) and tag.name not in made


def _is_over(record: BranchRecord | None, now_ms: int) -> bool:
    end = record.expires_ms if record is not None and not record.protected else None
    return end is not None and end < now_ms


def _storage(main: Table, now_ms: int) -> StorageFigures:
    found = read_usage(main, now_ms)
    totals = found.totals
    held = [u.frees.bytes for u in found.usages if u.group.kind == SNAPSHOTS and u.group.branch == MAIN]
    return StorageFigures(
        bytes=totals.total.bytes,
        orphan_files=totals.unreferenced.files - totals.young.files,
        orphan_bytes=totals.unreferenced.bytes - totals.young.bytes,
        expired_bytes=sum(held),
    )


# -- chain tables ------------------------------------------------------------------------------------------------------


def _chain_files(check: ChainCheck | None) -> list[FileGroup]:
    assert check is not None and check.state is not None
    return [g for p in check.state.plans for g in groups_of_splits(p.table.branch_name, p.splits)]


def _newest_ms(head: Snapshot | None, check: ChainCheck | None) -> int | None:
    plans = check.state.plans if check is not None and check.state is not None else ()
    return max((s.time_millis for s in (head, *(p.snapshot for p in plans)) if s is not None), default=None)


def _chain_figures(check: ChainCheck) -> ChainFigures:
    errors = sum(f.severity == ERROR for f in check.findings)
    if check.state is None:
        return ChainFigures(errors=errors)
    full, deltas = (
        {values: sum(f.file_size for s in splits for f in s.files) for values, splits in splits_by_partition(p).items()}
        for p in (check.state.snapshot, check.state.delta)
    )
    long = [g for g in check.groups if len(g.pending) > LONGEST_CHAIN]
    return ChainFigures(
        stale=len(check.stale),
        stale_bytes=sum(full.get(s.values, 0) for s in check.stale),
        longest=max((len(g.pending) for g in check.groups), default=0),
        pending=sum(len(g.pending) for g in check.groups),
        pending_bytes=sum(deltas.get(v, 0) for g in long for v in g.pending),
        errors=errors,
    )
