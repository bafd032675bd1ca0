"""expire_snapshots, expire_changelogs and expire_tags: what they choose. How it is taken away: ``expiry_run``.

Changelogs that outlive their snapshots, as the options ``changelog.num-retained.*`` have it, go the way of snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_paimon.core.audit.records import missing_records
from airflow_paimon.core.branches.retention_tags import keep_tag_needed
from airflow_paimon.core.branches.tag_files import plan_deletions
from airflow_paimon.core.branches.tags import check_deletable, refuse_tag_of_set
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.metadata_expiry.ages import duration_ms, time_before
from airflow_paimon.core.metadata_expiry.expiry_run import ExpirySelection, run_expiry
from airflow_paimon.core.metadata_expiry.metadata_expiry_plan import (
    BranchExpiry,
    SnapshotRule,
    TagRule,
    branch_point_id,
    expired_tags,
    keeps_changelogs,
    plan_changelogs,
    plan_snapshots,
    retainers_of,
    retention_rule,
)
from airflow_paimon.core.metadata_expiry.root_values import CHANGELOG, TAG, Root, Roots
from airflow_paimon.core.plan import Action, Delete, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ExpireChangelogs, ExpireSnapshots, ExpireTags, Expiry
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.consumers import Consumer, consumer_path
from airflow_paimon.core.table.options import TableOptions, parse_duration
from airflow_paimon.core.table.paths import (
    EARLIEST,
    KEEP_TAG_PREFIX,
    LATEST,
    MAIN,
    STAGING_BRANCH_PREFIX,
    TAG_PREFIX,
    hint_number,
)
from airflow_paimon.core.table.table import Table

CONSUMER_EXPIRATION = "consumer.expiration-time"
TOO_OLD_OR_MANY = "its retention has passed, or it is older than asked for, or there are too many"
"""Why a tag expires."""


def expire_snapshots(context: Context, request: ExpireSnapshots) -> OperationResult:
    """Expire snapshots of a branch, or of all, and delete what only expired snapshots and tags name.

    Raises:
        InvalidInputError: the numbers contradict each other, the time is naive or in the future, or the operation id
            was used for another request.
        FormatError: something that is needed can't be read. ConflictError: see ``run_expiry``.
    """
    table = context.table
    branches = _chosen_branches(table, request)
    time_before(request.older_than, context.now_ms, table.name)
    since = context.now_ms - duration_ms(request.retry_window, "retry_window")

    def choose(roots: Roots) -> ExpirySelection:
        views = [table.branch(b) for b in (branches or _every_branch(roots))]
        return _choose_snapshots(context, request, roots, views)

    return run_expiry(context, choose, operations_since_ms=since)


def _chosen_branches(table: Table, request: Expiry) -> tuple[str, ...]:
    """Return the branch that was asked for; empty = all of them."""
    if request.all_branches and request.branch != MAIN:
        raise InvalidInputError(f"{table.name}: give a branch, or all_branches, not both")
    return () if request.all_branches else (table.branch(request.branch).require().branch_name,)


def _every_branch(roots: Roots) -> tuple[str, ...]:
    """Return main and all branches, without incomplete ones and those in which an operation gathers its commits."""
    left_out = {branch for branch, _ in roots.unfinished}
    return (MAIN, *(b for b in roots.branches if b not in left_out and not b.startswith(STAGING_BRANCH_PREFIX)))


def _choose_snapshots(
    context: Context, request: ExpireSnapshots, roots: Roots, views: Sequence[Table]
) -> ExpirySelection:
    records = {b: read_branch_record(context.table, b) for b in roots.branches}
    parents = {b: MAIN if record is None else record.from_branch for b, record in records.items()}
    known = [(view, found) for view in views if (found := _options_of(view)) is not None]
    unused = [c for view, options in known for c in _unused_consumers(context, roots, view, options)]
    roots = replace(roots, consumers=tuple(c for c in roots.consumers if c not in unused))
    plans, expiring = [], []
    first: list[Action] = []
    before: dict[str, tuple[Action, ...]] = {}
    after: list[Action] = []
    hinted: dict[str, Root] = {}
    for view, options in known:
        retainers = retainers_of(roots, view.branch_name, parents, keep_undo=request.keep_undo)
        rule = retention_rule(
            options,
            view.label,
            now_ms=context.now_ms,
            older_than_ms=time_before(request.older_than, context.now_ms, view.label),
            retain_min=request.retain_min,
            retain_max=request.retain_max,
            max_deletes=request.max_deletes,
        )
        plan = plan_snapshots(view.branch_name, roots.snapshots(view.branch_name), rule, retainers)
        plans.append(plan)
        rule = retention_rule(options, view.label, now_ms=context.now_ms, kind=CHANGELOG)
        changelogs = plan_changelogs(roots, view.branch_name, rule)
        expiring += [*changelogs.expired, *plan.expired]
        paths = {r.snapshot.id: r.path for r in plan.expired}
        lacking = missing_records(view, (r.snapshot for r in plan.expired))  # the audit's records go before them
        before |= {paths[number]: (action,) for number, action in lacking.items()}
        decoupled = keeps_changelogs(options)
        if decoupled:
            reason = "the changelog lives longer than the snapshot"
            changelog = view.paths.changelog
            for r in plan.expired:
                kept = Replace(path=changelog(r.snapshot.id), data=r.data, reason=reason)
                before[r.path] = (*before.get(r.path, ()), kept)
        first += _latest_hint(view, plan)
        after += _hints(view, plan, changelogs, decoupled=decoupled)
        if plan.first_kept is not None:
            hinted[view.paths.earliest_hint] = plan.first_kept
    unread = f"no reader has used this consumer for {CONSUMER_EXPIRATION}"
    ended = [
        Delete(path=consumer_path(context.table.branch(c.branch), c.name), expected=c.data, reason=unread)
        for c in unused
    ]
    return ExpirySelection(
        expiring=tuple(expiring),
        reason="older than is to be kept",
        consumers=tuple(unused),
        first=(*ended, *first),
        before=before,
        after=tuple(after),
        hinted=hinted,
        report=_expiry_report(plans, "snapshots")
        | {"consumers": _by_branch(unused), "warnings": _warnings(roots, plans, parents)},
    )


def _options_of(view: Table) -> TableOptions | None:
    """The options of a branch; None if it has been deleted meanwhile."""
    try:
        return TableOptions(view.schema().options)
    except NotFoundError:
        if view.branch_name == MAIN:
            raise
        return None


def _unused_consumers(context: Context, roots: Roots, view: Table, options: TableOptions) -> list[Consumer]:
    """Return the branch's consumers that nobody has used for the table option ``consumer.expiration-time``."""
    text = options.text(CONSUMER_EXPIRATION, "")
    if not text:
        return []
    unused = parse_duration(text, f"Table option {CONSUMER_EXPIRATION}")
    before = context.now_ms - unused // timedelta(milliseconds=1)
    own = (c for c in roots.consumers if c.branch == view.branch_name)
    return [c for c in own if c.modified_ms is not None and c.modified_ms < before]


def _by_branch(some: Sequence[Consumer] | Sequence[Root]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in some:
        found.setdefault(one.branch, []).append(one.name)
    return found


def _latest_hint(view: Table, plan: BranchExpiry) -> list[Action]:
    """Set a LATEST hint that is among what expires to what stays: its writers died, or other ones were faster.

    Paimon takes a hinted snapshot for the newest one if the next id is free, even if it is gone itself.
    """
    data = read_if_exists(view.store, view.paths.latest_hint) if plan.expired and plan.first_kept is not None else None
    hint = hint_number(data or b"")
    if data is None or hint is None or plan.first_kept is None or hint >= plan.first_kept.snapshot.id:
        return []
    first = str(plan.first_kept.snapshot.id).encode()
    return [Replace(path=view.paths.latest_hint, data=first, expected=data, reason="hint of a snapshot that expires")]


def _hints(view: Table, plan: BranchExpiry, changelogs: BranchExpiry, *, decoupled: bool) -> list[Action]:
    hints: list[tuple[str, int]] = []
    if plan.expired and decoupled:
        hints.append((f"{view.paths.changelog_dir}/{LATEST}", plan.expired[-1].snapshot.id))
    first = plan.first_kept.snapshot.id if plan.first_kept is not None else None
    if first is not None and (plan.expired or _is_below(view, first)):
        hints.append((view.paths.earliest_hint, first))
    found = [Replace(path=path, data=str(number).encode(), reason="hint") for path, number in hints]
    return [*_changelog_hints(view, changelogs), *found]


def _changelog_hints(view: Table, plan: BranchExpiry) -> list[Action]:
    """Return what tells other engines which long-lived changelog is the oldest; without any, no hint stays."""
    folder = view.paths.changelog_dir
    if not plan.expired:
        return []
    if plan.first_kept is None:
        return [Delete(path=f"{folder}/{name}", reason="no changelog is left") for name in (EARLIEST, LATEST)]
    first = str(plan.first_kept.snapshot.id).encode()
    return [Replace(path=f"{folder}/{EARLIEST}", data=first, reason="hint")]


def _is_below(view: Table, first: int) -> bool:
    """Whether an interrupted expiry has left the hint at a snapshot that is gone."""
    data = read_if_exists(view.store, view.paths.earliest_hint)
    hint = None if data is None else hint_number(data)
    return hint is not None and hint < first


def _expiry_report(plans: Sequence[BranchExpiry], what: str) -> dict[str, Any]:
    """Return what of each branch expires, and why it is not more. ``what``: snapshots or changelogs."""
    ids = {p.branch: [r.snapshot.id for r in p.expired] for p in plans if p.expired}
    stopped = ((p.branch, p.first_kept, p.reason) for p in plans)
    one = what.removesuffix("s")
    return {
        "expired": {b: {what: len(gone), "from": gone[0], "to": gone[-1]} for b, gone in ids.items()},
        "retained_by": {b: f"{one} {r.snapshot.id} stays: {why}" for b, r, why in stopped if r is not None},
    }


def _warnings(roots: Roots, plans: Sequence[BranchExpiry], parents: dict[str, str]) -> list[str]:
    """Branches whose publish will know less about what the other side did since the branch point."""
    last = {p.branch: p.expired[-1].snapshot.id for p in plans if p.expired}
    found = []
    for branch, parent in ((b, p) for b, p in parents.items() if p in last):
        point = branch_point_id(roots, branch, parent)
        if point is not None and last[parent] > point:
            found.append(
                f"snapshots of {parent} after snapshot {point}, from which branch {branch!r} starts, expire: a merge "
                f"of it can no longer distinguish compactions of {parent} from changes, and may report conflicts"
            )
    return found


def expire_changelogs(context: Context, request: ExpireChangelogs) -> OperationResult:
    """Expire long-lived changelogs of a branch, or of all, and delete what only they name.

    Raises:
        InvalidInputError: the arguments contradict each other, or the time is naive or in the future.
        FormatError: something that is needed can't be read. ConflictError: see ``run_expiry``.
    """
    table = context.table
    branches = _chosen_branches(table, request)
    older_than_ms = time_before(request.older_than, context.now_ms, table.name)
    limits = (older_than_ms, request.retain_min, request.retain_max, request.max_deletes)
    if request.delete_all and any(limit is not None for limit in limits):
        raise InvalidInputError(
            f"{table.name}: delete_all expires all long-lived changelogs; leave older_than, retain_min, retain_max and "
            f"max_deletes out, or delete_all"
        )

    def rule(view: Table, options: TableOptions) -> SnapshotRule | None:
        if request.delete_all:
            return None
        return retention_rule(
            options,
            view.label,
            now_ms=context.now_ms,
            kind=CHANGELOG,
            older_than_ms=older_than_ms,
            retain_min=request.retain_min,
            retain_max=request.retain_max,
            max_deletes=request.max_deletes,
        )

    def choose(roots: Roots) -> ExpirySelection:
        plans: list[tuple[Table, BranchExpiry]] = []
        for view in (table.branch(name) for name in branches or _every_branch(roots)):
            options = _options_of(view)
            if options is not None:
                plans.append((view, plan_changelogs(roots, view.branch_name, rule(view, options))))
        return ExpirySelection(
            expiring=tuple(r for _, plan in plans for r in plan.expired),
            reason="older than is to be kept",
            after=tuple(action for view, plan in plans for action in _changelog_hints(view, plan)),
            report=_expiry_report([plan for _, plan in plans], "changelogs"),
        )

    return run_expiry(context, choose, operations_since_ms=context.now_ms)


def expire_tags(context: Context, request: ExpireTags) -> OperationResult:
    """Expire tags of a branch, or of all branches, except those that a branch, an undo or a keep relies on.

    A tag ``airflow-paimon-keep-...`` goes as soon as it has done its work.

    Raises:
        InvalidInputError: the time is naive or in the future. FormatError: something can't be read. ConflictError: see
            ``run_expiry``.
    """
    table = context.table.with_cached_tags()  # each tag is compared with all others
    branches = _chosen_branches(table, request)
    cutoff_ms = time_before(request.older_than, context.now_ms, table.name)
    if request.include_unlimited and cutoff_ms is None:
        raise InvalidInputError(f"{table.name}: include_unlimited needs older_than")
    rule = TagRule(
        at=context.now_local,
        older_than=None if cutoff_ms is None else datetime.fromtimestamp(cutoff_ms / 1000),
        prefix=request.prefix or "",
        include_unlimited=request.include_unlimited,
    )

    def choose(roots: Roots) -> ExpirySelection:
        views = [table.branch(name) for name in branches or _every_branch(roots)]
        due = [r for view in views for r in due_tags(view, roots.of(view.branch_name, TAG), rule)]
        return select_tags(table, due, TOO_OLD_OR_MANY)

    return run_expiry(context, choose, operations_since_ms=context.now_ms)


def due_tags(view: Table, tags: Sequence[Root], rule: TagRule) -> list[Root]:
    """Return the tags of a branch whose time is over, and the keep tags that have done their work."""
    kept = [r for r in tags if r.name.startswith(rule.prefix) and r.name.startswith(KEEP_TAG_PREFIX)]
    spent = [r for r in kept if r.tag is not None and keep_tag_needed(view, r.tag) is None]
    return [*spent, *expired_tags(tags, rule, _file_times(view) if rule.include_unlimited else {})]


def select_tags(table: Table, due: Iterable[Root], reason: str, *, of_sets: bool = False) -> ExpirySelection:
    """Let tags expire, but for those that a branch, an undo or a keep relies on; ``needed`` of the report says why they
    stay. ``of_sets``: also those of versions of table sets.
    """
    expiring: dict[str, list[Root]] = {}
    needed: dict[str, dict[str, str]] = {}
    for root in {r.path: r for r in due}.values():
        view, gone = table.branch(root.branch), expiring.setdefault(root.branch, [])
        assert root.tag is not None
        try:
            check_deletable(view, root.tag, [r.name for r in gone])
            if not of_sets:
                refuse_tag_of_set(view, root.tag)
            gone.append(root)
        except UnsafeOperationError as error:
            needed.setdefault(root.branch, {})[root.name] = error.message
    expired = {branch: [r.name for r in gone] for branch, gone in expiring.items() if gone}
    return ExpirySelection(
        expiring=tuple(r for gone in expiring.values() for r in gone),
        reason=reason,
        after=tuple(a for branch, names in expired.items() for a in plan_deletions(table.branch(branch), names)),
        report={"expired": expired, "needed": needed},
    )


def _file_times(view: Table) -> dict[str, datetime]:
    """When the tags' files were written, by the storage's clock; without those that the storage doesn't know."""
    return {
        info.name.removeprefix(TAG_PREFIX): datetime.fromtimestamp(info.modified_ms / 1000)
        for info in view.store.list(view.paths.tag_dir)
        if info.modified_ms is not None and info.name.startswith(TAG_PREFIX)
    }
