"""Reads what the health of a table is judged by. Each file is read once, and no data file; nothing is changed.

Of a table without branches: a few listings, its newest schema, its tags, its oldest and newest snapshot with their
manifests, and, where snapshots are due, as many more as a binary search over them needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_paimon.core.chain.check import ChainCheck, find_chain_problems
from airflow_paimon.core.chain.compaction_plan import LONGEST_CHAIN
from airflow_paimon.core.chain.state import splits_by_partition
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.health.files_plan import group_files, rules_of
from airflow_paimon.core.health.health_plan import (
    MIN_FILES,
    ChainFigures,
    Observed,
    RetainedState,
    RetentionFigures,
    StorageFigures,
    TableHealth,
    plan_health,
)
from airflow_paimon.core.metadata_expiry.automatic_tags import makes_automatic_tags
from airflow_paimon.core.metadata_expiry.metadata_expiry_plan import count_due, retention_rule
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.partition_expiry.partition_expiry_plan import EXPIRATION_TIME
from airflow_paimon.core.requests.findings import ERROR
from airflow_paimon.core.table.branch_record import BranchRecord, read_branch_record
from airflow_paimon.core.table.consumers import Consumer, read_consumers
from airflow_paimon.core.table.history import files_only_in, repeat_beside_expiry
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
    is_for_undo,
    numbered,
    protects,
)
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.record_kinds import TRASH_ENTRIES
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import hides_level_zero


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
    with cached_reads():
        return repeat_beside_expiry(lambda: plan_health(_observe(main, now_ms, rules or HealthRules())))


def _observe(main: Table, now_ms: int, rules: HealthRules) -> Observed:
    schema = main.schema()
    options = TableOptions(schema.options)
    head = main.latest_snapshot()
    check = find_chain_problems(main) if options.chain_table else None
    plans = check.state.plans if check is not None and check.state is not None else ()
    states = [(p.table, p.snapshot) for p in plans] or [(main, head)]
    live = [(view, live_columns(view, snapshot)) for view, snapshot in states]
    schema_ids = set(main.schema_ids())
    heads = [s for s in (head, *(snapshot for _, snapshot in states)) if s is not None]
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
        committed_ms=max((s.time_millis for s in heads), default=None),
        rules=replace(file_rules, most_runs=rules.most_runs or file_rules.most_runs),
        options=options,
        groups=[group for view, columns in live for group in group_files(view.branch_name, columns)],
        unreadable_files=0 if plans else sum(i not in schema_ids for _, columns in live for i in columns.schema_ids),
        index=read_index_entries(main, head),
        manifests=() if head is None else all_manifests(main, head),
        retained=_retention_figures(_read_branches(main, options), head, now_ms, rules),
        chain=None if check is None else _chain_figures(check),
        storage=_storage(main, now_ms) if rules.storage else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """``options``: None where the branch has no schema (yet). ``ids``: of its snapshots, ascending."""

    view: Table
    options: TableOptions | None
    ids: Sequence[int]
    tags: Sequence[Tag]
    consumers: Sequence[Consumer]
    changelogs: int
    record: BranchRecord | None

    @property
    def name(self) -> str:
        return self.view.branch_name


def _read_branches(main: Table, options: TableOptions) -> list[_Branch]:
    """Read main, and the branches that no operation keeps for itself."""
    found = []
    for name in (MAIN, *(name for name in main.branch_names() if not name.startswith(STAGING_BRANCH_PREFIX))):
        view, its_options = main.branch(name), options if name == MAIN else None
        if its_options is None and view.exists():
            its_options = TableOptions(view.schema().options)
        branch = _Branch(
            view=view,
            options=its_options,
            ids=view.snapshot_ids(),
            tags=view.tags(),
            consumers=tuple(read_consumers(view)),
            changelogs=len(numbered(view.store.names(view.paths.changelog_dir), CHANGELOG_PREFIX)),
            record=None if name == MAIN else read_branch_record(view, name),
        )
        found.append(branch)
    return found


def _retention_figures(
    branches: Sequence[_Branch], head: Snapshot | None, now_ms: int, rules: HealthRules
) -> RetentionFigures:
    main, records = branches[0], {b.name: b.record for b in branches}
    due = {b.name: _due_snapshots(b, now_ms, rules) for b in branches}
    blocked = [(_due_snapshots(b, now_ms, rules, consumers=False) - due[b.name], b) for b in branches if b.consumers]
    most_blocked, worst = max(blocked, key=lambda pair: pair[0], default=(0, main))
    oldest, replaced_bytes = _oldest_snapshot(main, head)
    states = _retained_states(branches, oldest)
    now, made_from = datetime.fromtimestamp(now_ms / 1000), {r.from_tag for r in records.values() if r is not None}
    tag_ends = [(t.name, t.expires_at()) for b in branches for t in b.tags]
    branch_ends = [r.expires_ms for r in records.values() if r is not None and not r.protected]
    return RetentionFigures(
        snapshots=sum(len(b.ids) for b in branches),
        tags=len(tag_ends),
        keep_tags=sum(name.startswith(KEEP_TAG_PREFIX) for name, _ in tag_ends),
        branches=len(branches) - 1,
        changelogs=sum(b.changelogs for b in branches),
        consumers=sum(len(b.consumers) for b in branches),
        trash=len(main.view.store.walk(TRASH_ENTRIES.folder)),
        due_snapshots=sum(due.values()),
        automatic_tags=main.options is not None and makes_automatic_tags(main.options, main.view.name),
        partitions_expire=main.options is not None and bool(main.options.text(EXPIRATION_TIME)),
        due_tags=sum(end is not None and end < now and name not in made_from for name, end in tag_ends),
        due_branches=sum(end is not None and end < now_ms for end in branch_ends),
        blocked_snapshots=sum(number for number, _ in blocked),
        blocked_by=min(worst.consumers, key=lambda c: c.next_snapshot).name if most_blocked else None,
        replaced_bytes=replaced_bytes,
        oldest=min((state for state, _ in states), key=lambda s: s.since_ms, default=None),
        unlimited=min((state for state, ends in states if not ends), key=lambda s: s.since_ms, default=None),
    )


def _oldest_snapshot(branch: _Branch, head: Snapshot | None) -> tuple[Snapshot | None, int]:
    """Return the oldest snapshot, and the bytes of its files that the newest one has no more. One that can't be read is
    passed over: Paimon's expiry deletes the manifests of all that it takes away before it deletes the snapshots.
    """
    now = [] if head is None else all_manifests(branch.view, head)
    for number in branch.ids:
        try:
            snapshot = branch.view.snapshot(number)
            replaced = files_only_in(branch.view, all_manifests(branch.view, snapshot), now)
        except (FormatError, NotFoundError):
            continue
        return snapshot, sum(entry.file.file_size for entry in replaced.values())
    return None, 0


def _retained_states(branches: Sequence[_Branch], oldest: Snapshot | None) -> list[tuple[RetainedState, bool]]:
    """Return what keeps states of the table, with whether a retention, or the operation that it belongs to, ends it.

    These are main's oldest snapshot, and all tags, main's first, each branch's by snapshot id; a tag that protects a
    branch stands for it.
    """
    records, found = {b.name: b.record for b in branches}, []
    if oldest is not None:
        state = RetainedState(kind="snapshot", name=str(oldest.id), branch=MAIN, since_ms=oldest.time_millis)
        found.append((state, True))
    for branch in branches:
        for tag in branch.tags:
            protected = protects(tag.name)
            if protected is not None and protected in records:
                kind, name, record = "branch", protected, records[protected]
                ends = record is not None and record.expires_ms is not None
            else:
                kind, name, by_operation = "tag", tag.name, (KEEP_TAG_PREFIX, STAGED_TAG_PREFIX)
                ends = tag.time_retained is not None or is_for_undo(name) or name.startswith(by_operation)
            since_ms = tag.snapshot.time_millis
            found.append((RetainedState(kind=kind, name=name, branch=branch.name, since_ms=since_ms), ends))
    return found


def _due_snapshots(branch: _Branch, now_ms: int, rules: HealthRules, *, consumers: bool = True) -> int:
    """Count the snapshots that ``expire_snapshots`` may take away by the rules and the branch's options.

    It keeps some of these where an operation of the last day may be tried again.
    """
    if branch.options is None or not branch.ids:
        return 0
    rule = retention_rule(
        branch.options,
        branch.view.label,
        now_ms=now_ms,
        older_than_ms=rules.older_than_ms,
        retain_min=rules.retain_min,
        retain_max=rules.retain_max,
    )
    needed = [t.snapshot.id + 1 for t in branch.tags if t.name.startswith(UNDO_TAG_PREFIX)]
    needed += [c.next_snapshot for c in branch.consumers] if consumers else []
    if branch.record is not None and branch.record.snapshot_id is not None:
        needed.append(branch.record.snapshot_id)

    def time_of(number: int) -> int:
        snapshot = branch.view.find_snapshot(number)
        return 0 if snapshot is None else snapshot.time_millis  # one that is gone has expired

    return count_due(branch.ids, rule, needed, time_of)


def _storage(main: Table, now_ms: int) -> StorageFigures:
    totals = read_usage(main, now_ms).totals
    return StorageFigures(
        bytes=totals.total.bytes,
        orphan_files=totals.unreferenced.files - totals.young.files,
        orphan_bytes=totals.unreferenced.bytes - totals.young.bytes,
    )


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
