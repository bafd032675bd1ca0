"""The run of every expiry, and expire_snapshots and expire_tags: move metadata into the trash; delete what only the
trash names after a grace time.

Two phases, so that a run that is killed leaves unreferenced files and never a dangling reference, and so that readers
and creators of tags and branches that have read a file keep what it names for the grace time. Between the phases the
roots are looked at again: nothing can be made any more from what lies in the trash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, TypeVar

from airflow_paimon.core.audit.missing import missing_records
from airflow_paimon.core.branches.retention_tags import keep_tag_needed
from airflow_paimon.core.branches.success_files import plan_deletions
from airflow_paimon.core.branches.tag_holds import any_hold, put_back_if_held
from airflow_paimon.core.branches.tags import check_deletable, refuse_tag_of_set
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedStorageError,
)
from airflow_paimon.core.metadata_expiry.expiry_plan import (
    BranchExpiry,
    Pin,
    TagRule,
    branch_point_id,
    changelog_rule,
    expired_tags,
    expiry_rule,
    keeps_changelogs,
    pins_of,
    plan_branch,
    plan_changelogs,
)
from airflow_paimon.core.metadata_expiry.named_older import naming_snapshots
from airflow_paimon.core.metadata_expiry.reap import carry_out, execute_reap, gather_reap, side_by_side
from airflow_paimon.core.metadata_expiry.reap_plan import Reap
from airflow_paimon.core.metadata_expiry.references import KnownLists
from airflow_paimon.core.metadata_expiry.root_values import TAG, Root, Roots, TrashEntry, Vanished
from airflow_paimon.core.metadata_expiry.roots import RootReader, unfinished_warnings
from airflow_paimon.core.metadata_expiry.storage_clock import storage_now
from airflow_paimon.core.plan import Action, Delete, Plan, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import LEAST_GRACE, EraseRows, ExpireSnapshots, ExpireTags, Expiry
from airflow_paimon.core.store.base import batches, read_if_there, read_present
from airflow_paimon.core.table.consumers import Consumer, consumer_path, read_consumers
from airflow_paimon.core.table.lineage import read_lineage
from airflow_paimon.core.table.options import TableOptions, parse_duration, requested_duration
from airflow_paimon.core.table.paths import (
    EARLIEST,
    KEEP_TAG_PREFIX,
    LATEST,
    MAIN,
    STAGING_BRANCH_PREFIX,
    TAG_PREFIX,
    hint_number,
)
from airflow_paimon.core.table.table import Table, parse_timestamp

T = TypeVar("T")

CONSUMER_EXPIRATION = "consumer.expiration-time"
_LEAST_EPOCH_MS = 10**11
"""Of 1973: a smaller number is an age that lacks its unit."""


def expire_snapshots(context: Context, request: ExpireSnapshots) -> OperationResult:
    """Expire snapshots of a branch, or of all, and delete what only expired snapshots and tags name.

    Raises:
        InvalidInputError: the numbers contradict each other, the time is naive or in the future, or the operation id
            was used for another request.
        FormatError: something that is needed can't be read. ConflictError: see ``run_expiry``.
    """
    table = context.table
    branches = chosen_branches(table, request)
    time_before(request.older_than, context.now_ms, table.name)
    since = context.now_ms - duration_ms(request.retry_window, "retry_window")

    def choose(roots: Roots) -> Choice:
        views = [table.branch(b) for b in (branches or every_branch(roots))]
        return _choose_snapshots(context, request, roots, views)

    return run_expiry(context, choose, operations_since_ms=since)


def chosen_branches(table: Table, request: Expiry) -> tuple[str, ...]:
    """Return the branch that was asked for; empty = all of them."""
    if request.all_branches and request.branch != MAIN:
        raise InvalidInputError(f"{table.name}: give a branch, or all_branches, not both")
    return () if request.all_branches else (table.branch(request.branch).require().branch_name,)


def every_branch(roots: Roots) -> tuple[str, ...]:
    """Return main and all branches, without incomplete ones and those in which an operation gathers its commits."""
    left_out = {branch for branch, _ in roots.unfinished}
    return (MAIN, *(b for b in roots.branches if b not in left_out and not b.startswith(STAGING_BRANCH_PREFIX)))


def _choose_snapshots(context: Context, request: ExpireSnapshots, roots: Roots, views: Sequence[Table]) -> Choice:
    parents = {b: _parent(context.table, b) for b in roots.branches}
    known = [(view, found) for view in views if (found := options_of(view)) is not None]
    unused = [c for view, options in known for c in _unused_consumers(context, roots, view, options)]
    roots = replace(roots, consumers=tuple(c for c in roots.consumers if c not in unused))
    plans, dead = [], []
    first: list[Action] = []
    before: dict[str, tuple[Action, ...]] = {}
    after: list[Action] = []
    for view, options in known:
        pins = pins_of(roots, view.branch_name, parents, keep_undo=request.keep_undo)
        plan = _plan_snapshots(context, request, roots, view, options, pins)
        plans.append(plan)
        rule = changelog_rule(options, view.label, now_ms=context.now_ms)
        changelogs = plan_changelogs(roots, view.branch_name, rule)
        dead += [*changelogs.expired, *plan.expired]
        before |= _records(view, plan)
        decoupled = keeps_changelogs(options)
        if decoupled:
            reason = "the changelog lives longer than the snapshot"
            changelog = view.paths.changelog
            for r in plan.expired:
                kept = Replace(path=changelog(r.snapshot.id), data=r.data, reason=reason)
                before[r.path] = (*before.get(r.path, ()), kept)
        first += _latest_hint(view, plan)
        after += _hints(view, plan, changelogs, decoupled=decoupled)
    unread = f"nobody has used this consumer for {CONSUMER_EXPIRATION}"
    return Choice(
        dead=tuple(dead),
        reason="older than is to be kept",
        consumers=tuple(unused),
        first=(
            *(Delete(path=consumer_path(context.table.branch(c.branch), c.name), reason=unread) for c in unused),
            *first,
        ),
        before=before,
        after=tuple(after),
        report=expiry_report(plans, "snapshots")
        | {"consumers": _by_branch(unused), "warnings": _warnings(roots, plans, parents)},
    )


def _records(view: Table, plan: BranchExpiry) -> dict[str, tuple[Action, ...]]:
    """Put the audit's records of publishes that lack one, before their snapshots go."""
    paths = {r.snapshot.id: r.path for r in plan.expired}
    missing = missing_records(view, (r.snapshot for r in plan.expired))
    return {paths[number]: (action,) for number, action in missing.items()}


def options_of(view: Table) -> TableOptions | None:
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


def _parent(table: Table, branch: str) -> str:
    lineage = read_lineage(table, branch)
    return lineage.from_branch if lineage is not None else MAIN


def _plan_snapshots(
    context: Context, request: ExpireSnapshots, roots: Roots, view: Table, options: TableOptions, pins: list[Pin]
) -> BranchExpiry:
    rule = expiry_rule(
        options,
        view.label,
        now_ms=context.now_ms,
        older_than_ms=time_before(request.older_than, context.now_ms, view.label),
        retain_min=request.retain_min,
        retain_max=request.retain_max,
        max_deletes=request.max_deletes,
    )
    return plan_branch(view.branch_name, roots.snapshots(view.branch_name), rule, pins)


def _latest_hint(view: Table, plan: BranchExpiry) -> list[Action]:
    """Set a LATEST hint that is among what expires to what stays: its writers died, or other ones were faster.

    Paimon takes a hinted snapshot for the newest one if the next id is free, even if it is gone itself.
    """
    data = read_if_there(view.store, view.paths.latest_hint) if plan.expired and plan.first_kept is not None else None
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
    return [*changelog_hints(view, changelogs), *found]


def changelog_hints(view: Table, plan: BranchExpiry) -> list[Action]:
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
    data = read_if_there(view.store, view.paths.earliest_hint)
    hint = None if data is None else hint_number(data)
    return hint is not None and hint < first


def expiry_report(plans: Sequence[BranchExpiry], what: str) -> dict[str, Any]:
    """Return what of each branch expires, and why it is not more. ``what``: snapshots or changelogs."""
    ids = {p.branch: [r.snapshot.id for r in p.expired] for p in plans if p.expired}
    stopped = ((p.branch, p.first_kept, p.reason) for p in plans)
    one = what.removesuffix("s")
    return {
        "expired": {b: {what: len(gone), "from": gone[0], "to": gone[-1]} for b, gone in ids.items()},
        "stopped_by": {b: f"{one} {r.snapshot.id} stays: {why}" for b, r, why in stopped if r is not None},
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
                f"of it can no longer tell compactions of {parent} from changes, and may report conflicts"
            )
    return found


def expire_tags(context: Context, request: ExpireTags) -> OperationResult:
    """Expire tags of a branch, or of all branches, except those that a branch, an undo or a keep relies on.

    A tag ``airflow-paimon-keep-...`` goes as soon as it has done its work.

    Raises:
        InvalidInputError: the time is naive or in the future. FormatError: something can't be read. ConflictError: see
            ``run_expiry``.
    """
    table = context.table.reading_tags_once()  # each tag is compared with all others
    branches = chosen_branches(table, request)
    cutoff_ms = time_before(request.older_than, context.now_ms, table.name)
    if request.include_unlimited and cutoff_ms is None:
        raise InvalidInputError(f"{table.name}: include_unlimited needs older_than")
    rule = TagRule(
        at=context.now_local,
        older_than=None if cutoff_ms is None else datetime.fromtimestamp(cutoff_ms / 1000),
        prefix=request.prefix or "",
        include_unlimited=request.include_unlimited,
    )

    def choose(roots: Roots) -> Choice:
        return choose_tags(table, roots, branches or every_branch(roots), rule)

    return run_expiry(context, choose, operations_since_ms=context.now_ms)


def choose_tags(
    table: Table,
    roots: Roots,
    branches: Sequence[str],
    rule: TagRule | None,
    too_many: Callable[[Mapping[str, int]], Iterable[str]] | None = None,
) -> Choice:
    """Choose the tags that expire. ``rule`` None: none by its age. ``too_many``: of a branch's tags, with the ids of
    their snapshots, the names of those that expire besides.
    """
    dead: list[Root] = []
    after: list[Action] = []
    needed: dict[str, dict[str, str]] = {}
    for branch in branches:
        view = table.branch(branch)
        tags = roots.of(branch, TAG)
        due = [] if rule is None else _due_tags(view, tags, rule)
        names = set(too_many({r.name: r.snapshot.id for r in tags}) if too_many is not None else ())
        due += [r for r in tags if r.name in names and r not in due]
        gone = []
        for root in due:
            assert root.tag is not None
            try:
                check_deletable(view, root.tag)
                refuse_tag_of_set(view, root.tag)
                gone.append(root)
            except UnsafeOperationError as error:
                needed.setdefault(branch, {})[root.name] = error.message
        dead += gone
        after += plan_deletions(view, [r.name for r in gone]) if gone else []
    report = {"expired": _by_branch(dead), "needed": needed}
    reason = "its retention has passed, or it is older than asked for, or there are too many"
    return Choice(dead=tuple(dead), reason=reason, after=tuple(after), report=report)


def _due_tags(view: Table, tags: Sequence[Root], rule: TagRule) -> list[Root]:
    kept = [r for r in tags if r.name.startswith(rule.prefix) and r.name.startswith(KEEP_TAG_PREFIX)]
    spent = [r for r in kept if r.tag is not None and keep_tag_needed(view, r.tag) is None]
    return [*spent, *expired_tags(tags, rule, _file_times(view) if rule.include_unlimited else {})]


def _file_times(view: Table) -> dict[str, datetime]:
    """When the tags' files were written, by the storage's clock; without those that the storage doesn't know."""
    return {
        info.name.removeprefix(TAG_PREFIX): datetime.fromtimestamp(info.modified_ms / 1000)
        for info in view.store.list(view.paths.tag_dir)
        if info.modified_ms is not None and info.name.startswith(TAG_PREFIX)
    }


_TRIES = 5
_FEW = 8
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What an expiry takes away: ``dead`` roots in order, each with a reason.

    ``first``: actions before anything is taken away, which delete ``consumers``; ``before``: those right before a root
    (by its path); ``after``: those at the end. ``report``: JSON values for the result.
    """

    dead: tuple[Root, ...]
    reason: str
    consumers: tuple[Consumer, ...] = ()
    first: tuple[Action, ...] = ()
    before: Mapping[str, tuple[Action, ...]] = field(default_factory=dict)
    after: tuple[Action, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)


def run_expiry(
    context: Context, choose: Callable[[Roots], Choice], *, operations_since_ms: int | None
) -> OperationResult:
    """Take away what is chosen, and delete what has been in the trash for the grace time.

    Raises:
        InvalidInputError: a grace time below the least one, while writers are at work. FormatError: something can't be
            read. ConflictError: what is chosen kept being replaced. Each says what was done before, if anything.
    """
    request, table = context.request, context.table
    assert isinstance(request, Expiry)
    with attempt_of(context, request.branch, commits=False):
        done = expire(context, choose, operations_since_ms=operations_since_ms)
    head = table.branch(request.branch).latest_snapshot_id()
    at = {"before": head, "after": head}
    return context.result(done.plan, branch=request.branch, changed=done.changed, **at, details=done.details)


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry has done, and what its result says of it."""

    plan: Plan
    changed: bool
    details: Mapping[str, Any]


def expire(context: Context, choose: Callable[[Roots], Choice], *, operations_since_ms: int | None) -> Expired:
    """Do what ``run_expiry`` does as a part of another operation; raises what that raises."""
    request, table = context.request, context.table
    assert isinstance(request, Expiry)
    reader = RootReader(table, operations_since_ms, whole=not isinstance(request, ExpireSnapshots))
    run = _Run(context, reader, grace_millis(table, request))
    try:
        return Expired(*run.execute(choose))
    except PaimonError as error:
        run.tell_done(error)
        raise


@dataclass(slots=True)
class _Run:
    """One expiry. ``moved``: what it has moved into the trash; ``known``: lists that were read already."""

    context: Context
    reader: RootReader
    grace_ms: int
    moved: list[Root] = field(default_factory=list)
    known: KnownLists = field(default_factory=KnownLists)

    def execute(self, choose: Callable[[Roots], Choice]) -> tuple[Plan, bool, dict[str, Any]]:
        """Return the plan of what was moved into the trash, whether anything changed, and the result's details."""
        table, dry_run, reap = self.context.table, self.context.request.dry_run, Reap()
        for _ in range(_TRIES):
            roots, choice, due, foreseen = self._once_more(lambda: self._look(choose))
            if not dry_run:
                require_committable(table)
            if dry_run or _unlink(self.context, choice, self.moved):
                break
        else:
            raise ConflictError(f"{table.name}: what was to expire was replaced {_TRIES} times meanwhile; run it again")
        waiting = [r.trash for r in roots.roots if r.trash is not None]
        waiting += [_entry(r, int(time.time() * 1000), None) for r in self.moved]
        if dry_run:
            reap = foreseen
        elif due or (choice.dead and not self.grace_ms):
            roots, due, reap = self._once_more(self._look_again)  # the second phase
            execute_reap(table, reap, [r.trash for r in due if r.trash is not None])
            waiting = [r.trash for r in roots.roots if r.trash is not None and r not in due]
        changed = bool(choice.dead or choice.first or due)
        return _plan(self.context, choice), changed, self._details(choice, roots, reap, foreseen, waiting)

    def _look(self, choose: Callable[[Roots], Choice]) -> tuple[Roots, Choice, list[Root], Reap]:
        roots = self.reader.look()
        choice = choose(roots)
        due = self._due(roots)
        return roots, choice, due, self._reap([*due, *choice.dead], roots)

    def _look_again(self) -> tuple[Roots, list[Root], Reap]:
        roots = self.reader.gather()
        due = self._due(roots)
        return roots, due, self._reap(due, roots)

    def _once_more(self, look: Callable[[], T]) -> T:
        """Look; if a snapshot vanishes before it is read, or something is broken, once more, at all snapshots."""
        try:
            return look()
        except (Vanished, FormatError):
            if self.reader.whole:
                raise
        self.reader.read_all()
        return look()

    def tell_done(self, error: PaimonError) -> None:
        """Say in an error what had expired before it."""
        if self.moved:
            some = ", ".join(r.label for r in self.moved[:3])
            some += f" and {len(self.moved) - 3} more" if len(self.moved) > 3 else ""
            error.message += f". Before that, {some} had expired: they lie in the trash, and the next run goes on"
            error.args = (error.message,)
            error.details["done"] = {"expired": [r.path for r in self.moved[:_LISTED]], "roots": len(self.moved)}

    def _reap(self, dead: Sequence[Root], roots: Roots) -> Reap:
        """Find what only ``dead`` ones of the roots name."""
        if not dead:
            return Reap()
        gone = {r.path for r in dead}
        living = [r for r in roots.roots if r.path not in gone]
        if roots.unread:
            named = {(r.path, r.data): r for some in roots.unread.values() for r in naming_snapshots(some, dead)}
            named |= {(r.path, r.data): r for r in living}
            return gather_reap(self.context.table, dead, list(named.values()), self.known)
        return self.reader.of_living(living, lambda some: gather_reap(self.context.table, dead, some, self.known))

    def _due(self, roots: Roots) -> list[Root]:
        """What has been in the trash for the grace time, or is being deleted since an earlier run."""
        now_ms = self._clock(roots)
        trash = ((r, r.trash) for r in roots.roots if r.trash is not None)
        return [r for r, e in trash if e.reaping or not self.grace_ms or now_ms - e.gone_since_ms >= self.grace_ms]

    def _clock(self, roots: Roots) -> int:
        """The storage's time, if something in the trash waits for the end of its grace time: no ``now`` counts."""
        waiting = any(r.trash is not None and not r.trash.reaping for r in roots.roots)
        if self.context.request.dry_run or not (waiting and self.grace_ms):
            return self.context.now_ms
        try:
            return storage_now(self.context.table)
        except UnsupportedStorageError:  # it keeps no times: this machine wrote the times in the trash
            return int(time.time() * 1000)

    def _details(
        self, choice: Choice, roots: Roots, reap: Reap, foreseen: Reap, waiting: Sequence[TrashEntry]
    ) -> dict[str, Any]:
        warnings = [*choice.report.get("warnings", ()), *unfinished_warnings(roots)]
        if reap.unreadable:
            warnings.append(
                f"{reap.unreadable[0]} and {len(reap.unreadable) - 1} more could not be read any more: an earlier "
                f"run was interrupted, or another engine expired them. remove_orphan_files finds what they left, if "
                f"anything"
            )
        if reap.external:
            warnings.append(f"{reap.external} data files outside of the table's folder stay; delete them yourself")
        oldest = min((e.gone_since_ms for e in waiting), default=None)
        next_due = None if oldest is None else iso_time(oldest + self.grace_ms)
        return {
            **choice.report,
            "reaped": reap.to_json(),
            "kept": foreseen.kept_json(),
            "trash": {"entries": len(waiting), "next_due": next_due},
            "warnings": warnings,
        }


def grace_millis(table: Table, request: Expiry | EraseRows) -> int:
    """Check the grace time: who makes a tag or branch of a snapshot, and doesn't look again, needs some."""
    grace_ms = duration_ms(request.grace, "grace")
    if grace_ms < duration_ms(LEAST_GRACE, "grace") and not request.writers_stopped:
        raise InvalidInputError(
            f"{table.name}: grace must be at least {LEAST_GRACE}, got {request.grace!r}: a reader may still read what "
            f"expires now, and another engine may be making a tag or branch of it. If all writers and readers are "
            f"stopped, say so with writers_stopped (--writers-stopped)"
        )
    return grace_ms


def _entry(root: Root, now_ms: int, operation_id: str | None) -> TrashEntry:
    return TrashEntry(
        branch=root.branch,
        kind=root.kind,
        name=root.name,
        path=root.path,
        content=root.data,
        unlinked_ms=now_ms,
        operation_id=operation_id,
    )


def _to_trash(context: Context, root: Root, reason: str) -> tuple[Replace, Delete]:
    """Return the actions that move a root into the trash; again is harmless."""
    entry = _entry(root, context.now_ms, context.request.operation_id)
    keep = Replace(path=entry.trash_path, data=entry.to_bytes(), reason=f"keeps {root.label} for the grace time")
    return keep, Delete(path=root.path, reason=reason)


def _plan(context: Context, choice: Choice) -> Plan:
    moved = (a for r in choice.dead for a in (*choice.before.get(r.path, ()), *_to_trash(context, r, choice.reason)))
    return Plan(
        operation=context.request.operation,
        table=context.table.name,
        actions=(*choice.first, *moved, *choice.after),
        summary=dict(choice.report),
    )


def _unlink(context: Context, choice: Choice, moved: list[Root]) -> bool:
    """Carry out the choice; each root and consumer must still be what was chosen. False: one has been replaced.

    One that is gone was expired by another run, or another engine. ``moved`` gets those that this run takes away.
    """
    table = context.table
    if not _still_unused(table, choice.consumers):
        return False
    carry_out(table, choice.first)
    by_path = {r.path: r for r in choice.dead}
    for some in batches(_in_turns(choice.dead)):
        there = _as_chosen(table, some)
        if there is None:
            return False
        if not there:  # another run has taken all of them away
            continue
        steps = {r.path: _to_trash(context, r, choice.reason) for r in there}
        side_by_side(table, [[*choice.before.get(r.path, ()), steps[r.path][0]] for r in there])
        few_of_each = _FEW * len(_chains(there))
        for few in batches(there, few_of_each):  # another look, as Paimon's rollback makes ids free for new snapshots
            still = _as_chosen(table, few)
            if still is None:
                return False
            gone = [[steps[r.path][1] for r in chain] for chain in _chains(still)]
            side_by_side(table, gone, lambda action: moved.append(by_path[action.path]))
            tags = [(r, r.tag) for r in still if r.tag is not None]
            held = tags if tags and any_hold(table) else []
            back = [r for r, tag in held if put_back_if_held(table.branch(r.branch), tag) is not None]
            if back:
                moved[:] = [r for r in moved if r not in back]
                return False
    carry_out(table, choice.after)
    return True


def _chains(roots: Iterable[Root]) -> list[list[Root]]:
    """Divide roots into chains, to be taken away in order, beside each other; a tag is one by itself.

    The snapshots of a branch go one after the other, the oldest first: a run that is killed leaves no gap, and a commit
    that finds the snapshot before its own knows that no expiry has made its id free (``took_expired_id``).
    """
    chains: dict[tuple[str, str, str], list[Root]] = {}
    for root in roots:
        chains.setdefault((root.branch, root.kind, root.path if root.kind == TAG else ""), []).append(root)
    return list(chains.values())


def _in_turns(roots: Iterable[Root]) -> list[Root]:
    """Order roots so that each chain gives one in turn: what is taken away together is of many chains."""
    turns = zip_longest(*_chains(roots))
    return [r for turn in turns for r in turn if r is not None]


def _as_chosen(table: Table, roots: Sequence[Root]) -> list[Root] | None:
    """Return those of some roots that are still there; None: one has been replaced."""
    now = read_present(table.store, [r.path for r in roots])
    there = [r for r in roots if r.path in now]
    return there if all(now[r.path] == r.data for r in there) else None


def _still_unused(table: Table, consumers: Sequence[Consumer]) -> bool:
    """Whether no stream has written one of them since the roots were read."""
    planned = {(c.branch, c.name): (c.next_snapshot, c.modified_ms) for c in consumers}
    found = [c for branch in {c.branch for c in consumers} for c in read_consumers(table.branch(branch))]
    now = {(c.branch, c.name): (c.next_snapshot, c.modified_ms) for c in found}
    return all(now.get(consumer, at) == at for consumer, at in planned.items())


def iso_time(time_ms: int) -> str:
    """Write a time of a result: UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def duration_ms(text: str, name: str) -> int:
    """Parse a duration of a request into milliseconds."""
    return requested_duration(text, name) // timedelta(milliseconds=1)


def time_before(text: str | None, now_ms: int, where: str) -> int | None:
    """Return the time that ``older_than`` means: an age (``7 d``), an ISO time with an offset, or epoch milliseconds.

    Raises:
        InvalidInputError: neither, or it lies in the future.
    """
    if text is None:
        return None
    if text.strip().isdigit() and int(text) < _LEAST_EPOCH_MS:
        raise InvalidInputError(
            f"{where}: older_than {text!r} is neither an age with its unit (e.g. '{text.strip()} d') nor a time in "
            f"epoch milliseconds"
        )
    try:
        found = parse_timestamp(text) if text.strip().isdigit() else now_ms - duration_ms(text, "older_than")
    except InvalidInputError:
        try:
            found = parse_timestamp(text)
        except InvalidInputError:
            raise InvalidInputError(
                f"{where}: older_than is an age (e.g. '7 d') or a time with an offset (e.g. "
                f"2026-11-21T02:00:00+00:00), not {text!r}"
            ) from None
    if found > now_ms:
        raise InvalidInputError(f"{where}: older_than ({text}) lies in the future; nothing was deleted")
    return found
