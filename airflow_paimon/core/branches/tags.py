"""create_tag, replace_tag, rename_tag, delete_tag, and which tags can go."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_paimon.core.branches.retention_tags import is_unexpired, keep_tag_needed
from airflow_paimon.core.branches.tag_files import (
    deletion,
    makes_success_files,
    plan_deletions,
    plan_success_file,
    put_replacement,
    replacement,
)
from airflow_paimon.core.commit.idempotency import Attempt, attempt_of
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.plan import Action, Plan, PutNew, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CreateTag, DeleteTag, RenameTag, ReplaceTag
from airflow_paimon.core.store.base import LOOK_S
from airflow_paimon.core.table.history import retained_snapshot
from airflow_paimon.core.table.options import TableOptions, requested_duration
from airflow_paimon.core.table.paths import (
    KEEP_TAG_PREFIX,
    MAIN,
    RESERVED_TAG_PREFIX,
    UNDO_TAG_PREFIX,
    check_tag_name,
    protects,
    publish_tag,
)
from airflow_paimon.core.table.reachability import lost_between
from airflow_paimon.core.table.table import Table, parse_timestamp, snapshot_by_time
from airflow_paimon.core.table.table_sets import version_of_tag
from airflow_paimon.core.table.tag_periods import MODE, tag_rules

log = logging.getLogger(__name__)


def create_tag(context: Context, request: CreateTag) -> OperationResult:
    """Tag a snapshot (the latest when none is given).

    Raises:
        AlreadyExistsError: the tag exists (with ``skip``: on another snapshot). NotFoundError: branch or snapshot.
    """
    name = check_tag_name(request.tag)
    refuse_own_name(context.table, name)
    if request.hold is not None and request.time_retained is not None:
        raise InvalidInputError(
            f"{context.table.name}: a tag under a legal hold has no retention, by which other engines would expire it; "
            f"leave time_retained out"
        )
    if request.hold is None and request.held_by is not None:
        raise InvalidInputError(
            f"{context.table.name}: held_by (--held-by) names who asked for a hold; give its reason in hold (--hold)"
        )
    view = context.table.branch(request.branch).require()
    if request.timestamp is not None:
        if request.snapshot is not None:
            raise InvalidInputError("create_tag: give a snapshot or a timestamp, not both")
        request = replace(
            request, snapshot=snapshot_by_time(view, parse_timestamp(request.timestamp, "timestamp (--timestamp)")).id
        )
    with attempt_of(context, request.branch) as tried:
        existing = view.find_tag(name)
        if tried.retried and existing is not None and _is_first_trys(request, existing, tried):
            return _tagged(context, request, existing.snapshot, None, replayed=True)
        return _create_tag(context, request, view, existing)


def refuse_own_name(table: Table, name: str) -> None:
    """Refuse the names of the tags that this package sets itself, and finds by their names.

    Raises:
        InvalidInputError: it is one.
    """
    if name.startswith(RESERVED_TAG_PREFIX):
        raise InvalidInputError(
            f"{table.name}: tags whose names start with {RESERVED_TAG_PREFIX} are set by airflow-paimon itself; choose "
            f"another name"
        )


def replace_tag(context: Context, request: ReplaceTag) -> OperationResult:
    """Give a tag another snapshot (the latest when none is given) and another retention (none when none is given).

    Raises:
        NotFoundError: no such tag, branch or snapshot. UnsafeOperationError: as a deletion of the tag is refused, or
            readers of a table set read it. ConflictError: the snapshot expired meanwhile.
    """
    refuse_own_name(context.table, request.tag)
    view = context.table.branch(request.branch).require()
    with attempt_of(context, request.branch) as tried:
        existing = view.tag(request.tag)
        if tried.retried and _is_first_trys(request, existing, tried):
            return _tagged(context, request, existing.snapshot, None, replayed=True)
        tag = _tag(context, request, snapshot_to_tag(view, request.snapshot))
        if tag.time_retained is None and existing == tag:
            return _already_there(context, request, existing.snapshot)
        return _replace_tag(context, request, view, tag, existing)


def _replace_tag(
    context: Context, request: CreateTag | ReplaceTag, view: Table, tag: Tag, existing: Tag
) -> OperationResult:
    check_deletable(view, existing)
    refuse_tag_of_set(view, existing)
    refuse_second_automatic(view, tag)
    reason = f"names snapshot {tag.snapshot.id} of {view.branch_name} (replaces the existing tag)"
    return _set_instead(context, request, view, plan_tag(view, tag, existing, reason))


def _set_instead(context: Context, request: CreateTag | ReplaceTag, view: Table, change: TagChange) -> OperationResult:
    tag = change.tag
    plan = Plan(operation=request.operation, table=view.name, actions=(change.action,), summary={"tag": tag.name})
    if not request.dry_run:
        set_tag(view, change, context.now_local)
    return _tagged(context, request, tag.snapshot, plan)


@dataclass(frozen=True, slots=True)
class TagChange:
    """A tag to set. ``existing``: the one of its name in whose place it comes, None: there is none."""

    tag: Tag
    action: PutNew | Replace
    existing: Tag | None = None


def plan_tag(view: Table, tag: Tag, existing: Tag | None = None, reason: str | None = None) -> TagChange:
    """Plan to set a tag; raises as ``replacement``."""
    reason = reason or f"names snapshot {tag.snapshot.id} of {view.branch_name}"
    if existing is not None:
        return TagChange(tag, replacement(view, existing, tag, reason), existing)
    return TagChange(tag, PutNew(path=view.paths.tag(tag.name), data=tag.to_bytes(), reason=reason, same_ok=True))


def set_tag(view: Table, change: TagChange, now: datetime) -> None:
    """Set a tag. ``now``: local time.

    Raises:
        AlreadyExistsError: somebody else has just set another one. UnsafeOperationError: the existing one has got a
            hold meanwhile. ConflictError: it was changed, or see ``check_held``.
    """
    tag, action, existing = change.tag, change.action, change.existing
    try:
        if isinstance(action, Replace):
            put_replacement(view, action)
        else:
            execute(view, [action])
    except ConflictError:
        check_deletable(view, view.tag(tag.name))  # refuses one that has got a hold
        raise
    check_held(view, tag, existing, now)
    if isinstance(action, Replace) and tag.legal_hold is not None:
        _settle_legal_hold(view, action, tag)


def _settle_legal_hold(view: Table, action: Replace, tag: Tag) -> None:
    """Acknowledge a hold only once who has looked at the tag before can't replace or delete it any more.

    Not every storage does that under a condition. There the time is measured that it takes (``Store.replace_same``).

    Raises:
        ConflictError: the tag was replaced. One that was deleted gets its hold, and is there again.
    """
    time.sleep(LOOK_S)
    now = view.find_tag(tag.name)
    if now is None:
        put_replacement(view, action)
        check_held(view, tag, None)
    elif now != tag:
        raise ConflictError(
            f"{view.label}: tag {tag.name!r} was changed while it was put under a hold; inspect it, then run this again"
        )


def _tagged(
    context: Context,
    request: CreateTag | ReplaceTag,
    snapshot: Snapshot,
    plan: Plan | None,
    *,
    replayed: bool = False,
) -> OperationResult:
    details = {"tag": request.tag, "snapshot": snapshot.id, "time_retained": request.time_retained}
    if isinstance(request, CreateTag) and request.hold is not None:
        details |= {"hold": request.hold, "held_by": request.held_by}
    details |= {"replayed": True} if replayed else {}
    at = {"before": snapshot.id, "after": snapshot.id}
    return context.result(plan, branch=request.branch, changed=True, **at, details=details)


def _already_there(context: Context, request: CreateTag | ReplaceTag, snapshot: Snapshot) -> OperationResult:
    details = {"tag": request.tag, "snapshot": snapshot.id, "already_exists": True}
    at = {"before": snapshot.id, "after": snapshot.id}
    return context.result(None, branch=request.branch, changed=False, **at, details=details)


def _is_first_trys(request: CreateTag | ReplaceTag, tag: Tag, tried: Attempt) -> bool:
    retained = None if request.time_retained is None else requested_duration(request.time_retained, "time_retained")
    wanted = request.snapshot if request.snapshot is not None else tried.head.id
    hold, skips = (request.hold, request.if_exists == "skip") if isinstance(request, CreateTag) else (None, False)
    return not skips and tag.snapshot.id == wanted and tag.time_retained == retained and tag.legal_hold == hold


def _create_tag(context: Context, request: CreateTag, view: Table, existing: Tag | None) -> OperationResult:
    name = request.tag
    snapshot = snapshot_to_tag(view, request.snapshot)
    tag = _tag(context, request, snapshot)
    if existing is not None and request.if_exists != "replace":
        if request.if_exists == "skip" and existing.snapshot.identity == snapshot.identity:
            if request.hold is not None and existing.legal_hold is None:
                # without its retention, by which other engines would expire it
                held = replace(tag, snapshot=existing.snapshot)
                return _set_instead(
                    context, request, view, plan_tag(view, held, existing, f"it {held.legal_hold_text}")
                )
            _refuse_second_legal_hold(view, existing, request)
            return _already_there(context, request, snapshot)
        raise AlreadyExistsError(
            f"{view.label}: tag {name!r} exists, on snapshot {existing.snapshot.id} (asked for: {snapshot.id}); choose "
            f"another name, or if_exists=replace"
        )
    if existing is not None:
        return _replace_tag(context, request, view, tag, existing)
    refuse_second_automatic(view, tag)
    change = plan_tag(view, tag)
    marks = [plan_success_file(view, name, context.now_ms)] if makes_success_files(view) else []
    plan = Plan(
        operation=request.operation, table=view.name, actions=(change.action, *marks), summary={"tag": tag.name}
    )
    if not request.dry_run:
        try:
            set_tag(view, change, context.now_local)
        except AlreadyExistsError:
            raise ConflictError(f"{view.label}: tag {name!r} was created by a concurrent operation") from None
        execute(view, marks)
    return _tagged(context, request, snapshot, plan)


def refuse_second_automatic(view: Table, tag: Tag, *, instead_of: str | None = None) -> None:
    """Refuse a second automatic tag, by its name, of a snapshot: Paimon's committer fails where it finds two.

    ``instead_of``: the name of a tag that goes.

    Raises:
        AlreadyExistsError: names the other one.
    """
    try:
        rules = tag_rules(TableOptions(view.schema().options), view.name)
    except InvalidInputError:
        return  # there are no automatic tags with such options
    if rules.periods is None or not rules.is_automatic(tag.name):
        return
    same = (t.name for t in view.tags() if t.name not in (tag.name, instead_of) and t.snapshot.id == tag.snapshot.id)
    other = next((name for name in same if rules.is_automatic(name)), None)
    if other is not None:
        raise AlreadyExistsError(
            f"{view.label}: {tag.name!r} is the name of an automatic tag ({MODE}={rules.mode}), and snapshot "
            f"{tag.snapshot.id} has the automatic tag {other!r}; choose another name"
        )


def _refuse_second_legal_hold(view: Table, existing: Tag, request: CreateTag) -> None:
    """Refuse a hold that a tag can't have beside its own: it would end with the first one, which others release.

    Raises:
        AlreadyExistsError: the tag is under a legal hold for another reason, or by somebody else.
    """
    if request.hold is not None and (existing.legal_hold, existing.held_by) != (request.hold, request.held_by):
        raise AlreadyExistsError(
            f"{view.label}: tag {existing.name!r} {existing.legal_hold_text} already, which can end without you; put "
            f"your hold on a separate tag on snapshot {existing.snapshot.id}"
        )


def snapshot_to_tag(view: Table, snapshot_id: int | None) -> Snapshot:
    """Return a snapshot, also one that only a tag retains; the latest when none is given."""
    if snapshot_id is not None:
        return retained_snapshot(view, snapshot_id)
    latest = view.latest_snapshot()
    if latest is None:
        raise NotFoundError(f"{view.label} has no snapshot to tag; write something first")
    return latest


def _tag(context: Context, request: CreateTag | ReplaceTag, snapshot: Snapshot) -> Tag:
    tag = Tag(name=request.tag, snapshot=snapshot)
    if isinstance(request, CreateTag):
        tag = replace(tag, legal_hold=request.hold, held_by=request.held_by)
    if request.time_retained is None:
        return tag
    retained = requested_duration(request.time_retained, "time_retained")
    if retained.total_seconds() <= 0:
        raise InvalidInputError(f"time_retained must be greater than 0, got {request.time_retained!r}")
    return replace(tag, create_time=context.now_local, time_retained=retained)


def check_held(view: Table, tag: Tag, replaced: Tag | None, now: datetime | None = None) -> None:
    """Check, now that the tag is set, that no expiry has taken the snapshot before that; else take the tag back.

    An expiry takes the snapshot's file or tag away first, and looks at all tags then: so either it sees this one, or
    what it took away is gone here. ``replaced``: the tag in whose place it is. If that was of the same snapshot, no
    expiry had a reason to take it, unless its retention has passed ``now`` (local time).
    """
    snapshot = tag.snapshot
    same = replaced is not None and now is not None and replaced.snapshot.identity == snapshot.identity
    end = replaced.expires_at() if replaced is not None else None
    kept = same and (end is None or now is None or end > now)
    held = kept or _is_kept_besides(view, tag)
    lost = lost_between(view, snapshot) if held else []
    if held and not lost:
        return
    path = view.paths.tag(tag.name)
    before = replaced.to_bytes() if replaced is not None and is_unexpired(view, replaced.snapshot) else None
    if view.find_tag(tag.name) == tag:
        refused = deletion(view, tag, "refused")
        back = [] if before is None else [Replace(path=path, data=before, expected=refused.expected, reason="back")]
        execute(view, back or [refused])
    why = f" ({lost[0]} is missing)" if lost else ""
    raise ConflictError(
        f"{view.label}: snapshot {snapshot.id} expired while it was tagged{why}, so it was not tagged; tag a later one"
    )


def rename_tag(context: Context, request: RenameTag) -> OperationResult:
    """Give a tag another name; the new one is there before the old one goes. A try that was cut off leaves both names,
    and a retry completes it.

    Raises:
        NotFoundError: no such tag. AlreadyExistsError: the new name is taken. InvalidInputError: one of the names is
            kept for this package's own tags. UnsafeOperationError: readers of a table set read it. ConflictError: the
            snapshot expired, or the tag was changed, meanwhile.
    """
    name = check_tag_name(request.to_tag)
    for given in (request.tag, name):
        if given.startswith(RESERVED_TAG_PREFIX):
            raise InvalidInputError(
                f"{context.table.name}: tags whose names start with {RESERVED_TAG_PREFIX} are set by airflow-paimon "
                f"itself, which finds them by their names; {given!r} can't be renamed or taken as a name"
            )
    if name == request.tag:
        raise InvalidInputError(f"{context.table.name}: tag {name!r} has that name already")
    view = context.table.branch(request.branch).require()
    with attempt_of(context, request.branch) as tried:
        return _rename(context, request, view, tried)


def _rename(context: Context, request: RenameTag, view: Table, tried: Attempt) -> OperationResult:
    old = view.find_tag(request.tag) if "/" not in request.tag else None
    taken = view.find_tag(request.to_tag)
    if old is None and taken is not None and tried.retried:
        return _renamed(context, request, taken, None, replayed=True)
    tag = old or view.tag(request.tag)  # raises NotFoundError with the existing tags
    refuse_tag_of_set(view, tag)
    new = replace(tag, name=request.to_tag)
    if taken is not None and not (tried.retried and taken == new):
        raise AlreadyExistsError(
            f"{view.label}: tag {request.to_tag!r} exists, on snapshot {taken.snapshot.id}; choose another name"
        )
    if taken is None:
        refuse_second_automatic(view, new, instead_of=tag.name)
    put = PutNew(path=view.paths.tag(new.name), data=new.to_bytes(), reason=f"renames {tag.name!r}", same_ok=True)
    gone = deletion(view, tag, f"is called {new.name!r} from now on")
    plan = Plan(operation=request.operation, table=view.name, actions=(put, gone), summary={"tag": tag.name})
    if not request.dry_run:
        execute(view, [put])
        check_held(view, new, None)
        try:
            execute(view, [gone])  # what it has kept, the new one keeps as long
        except ConflictError as error:  # it was changed since it was read, such as by a legal hold
            if view.find_tag(new.name) == new:
                execute(view, [deletion(view, new, f"{tag.name!r} was changed meanwhile")])
            raise ConflictError(
                f"{view.label}: tag {tag.name!r} was changed while it was renamed; rename it again"
            ) from error
    return _renamed(context, request, tag, plan)


def _renamed(
    context: Context, request: RenameTag, tag: Tag, plan: Plan | None, *, replayed: bool = False
) -> OperationResult:
    details = {"tag": request.to_tag, "renamed_from": request.tag, "snapshot": tag.snapshot.id}
    details |= {"replayed": True} if replayed else {}
    at = {"before": tag.snapshot.id, "after": tag.snapshot.id}
    return context.result(plan, branch=request.branch, changed=True, **at, details=details)


def _is_kept_besides(view: Table, tag: Tag) -> bool:
    found, identity = view.find_snapshot(tag.snapshot.id), tag.snapshot.identity
    is_there = found is not None and found.identity == identity
    return is_there or any(t.name != tag.name and t.snapshot.identity == identity for t in view.tags())


def delete_tag(context: Context, request: DeleteTag) -> OperationResult:
    """Delete a tag file. Data files stay for orphan cleaning, as other branches may share them.

    Raises:
        UnsafeOperationError: an existing branch needs it, or it is under a legal hold, also one that it got meanwhile.
            NotFoundError: no such tag. ConflictError: it was set anew meanwhile, and stays.
    """
    view = context.table.branch(request.branch).require()
    with attempt_of(context, request.branch) as tried:
        return _delete_tag(context, request, view, tried)


def _delete_tag(context: Context, request: DeleteTag, view: Table, tried: Attempt) -> OperationResult:
    existing = view.find_tag(request.tag) if "/" not in request.tag else None
    if existing is None:
        if tried.retried:
            details = {"tag": request.tag, "replayed": True}
            return context.result(None, branch=request.branch, changed=request.if_missing != "skip", details=details)
        if request.if_missing == "skip":
            return context.result(None, branch=request.branch, changed=False, details={"already_deleted": True})
        existing = view.tag(request.tag)
    check_deletable(view, replace(existing, legal_hold=None) if request.release_hold else existing)
    action = deletion(view, existing, "asked for")
    marks: list[Action] = [*plan_deletions(view, [request.tag])]
    if request.tag.startswith(UNDO_TAG_PREFIX):
        on_publish = view.find_tag(publish_tag(request.tag))
        if on_publish is not None and is_deletable(view, on_publish):
            marks.append(deletion(view, on_publish, f"it is there for an undo by {request.tag}"))
    plan = Plan(operation=request.operation, table=view.name, actions=(action, *marks), summary={"tag": request.tag})
    if not request.dry_run:
        try:
            execute(view, [action])
        except ConflictError:
            now = view.find_tag(request.tag)
            if now is not None:
                check_deletable(view, now)  # it has got a hold
            raise
        execute(view, marks)
    return context.result(
        plan,
        branch=request.branch,
        changed=True,
        details={"tag": request.tag, "snapshot": existing.snapshot.id}
        | ({} if existing.legal_hold is None else {"released_hold": existing.legal_hold}),
    )


def check_deletable(view: Table, tag: Tag, deleted_tags: Collection[str] = ()) -> None:
    """Refuse to delete a tag under a legal hold, or one that retains needed files.

    A tag of this package whose manifest list is gone retains none. ``deleted_tags``: the names of others that go with
    it.

    Raises:
        UnsafeOperationError: names what needs them, or the legal hold.
    """
    if tag.legal_hold is not None:
        raise UnsafeOperationError(
            f"{view.label}: tag {tag.name!r} {tag.legal_hold_text}; delete_tag with release_hold (--release-hold) ends "
            f"the hold and deletes the tag",
            details={"tag": tag.name, "hold": tag.legal_hold, "held_by": tag.held_by},
        )
    branch = protects(tag.name)
    if (branch is not None or tag.name.startswith(KEEP_TAG_PREFIX)) and not is_unexpired(view, tag.snapshot):
        return
    if branch is not None and branch in view.branch_names():
        raise UnsafeOperationError(
            f"{view.label}: tag {tag.name!r} keeps files that branch {branch!r} shares; delete the branch first"
        )
    needed = keep_tag_needed(view, tag) if tag.name.startswith(KEEP_TAG_PREFIX) else None
    if needed is not None:
        raise UnsafeOperationError(
            f"{view.label}: tag {tag.name!r} keeps files that a publish or rollback brought back, and {needed} would "
            f"delete them. repair_table removes the tag when it is safe"
        )
    for name in relying_branches(view, tag, {tag.name, *deleted_tags}):
        raise UnsafeOperationError(
            f"{view.label}: branch {name!r} starts from snapshot {tag.snapshot.id}, and only tag {tag.name!r} "
            f"keeps its files; delete the branch first"
        )


def refuse_tag_of_set(view: Table, tag: Tag) -> None:
    """Keep the tag of a version that readers of its table set may read: it goes with the version.

    Raises:
        UnsafeOperationError: names the version.
    """
    version = version_of_tag(view, tag)
    if version is not None:
        raise UnsafeOperationError(
            f"{view.label}: tag {tag.name!r} is of version {version.number} of table set {version.name!r}, and is "
            "deleted with it, after keep (--keep) and retention (--retention) of create_table_set"
        )


def relying_branches(view: Table, tag: Tag, deleted_tags: Collection[str]) -> list[str]:
    """Branches of another engine, without our protective tag, whose base is retained only by this tag.
    ``deleted_tags``: the names of the tags that go with it.
    """
    if view.branch_name != MAIN:
        return []
    held = {
        t.name: t.snapshot.identity
        for t in view.cached_tags()
        if t.name not in deleted_tags and t.time_retained is None
    }
    if tag.snapshot.identity in held.values():
        return []
    found = []
    for name in view.branch_names():
        same = view.branch(name).find_snapshot(tag.snapshot.id)
        if same is not None and same.identity == tag.snapshot.identity:
            found.append(name)
    return found


def past_tags(view: Table, now: datetime, prefix: str = "") -> Iterator[Tag]:
    """Find the tags whose retention has passed (``now``: local time, no zone) and that nothing needs any more."""
    view = view.with_cached_tags()  # each tag is compared with all others
    for tag in view.tags(prefix):
        end = tag.expires_at()
        if end is None or end >= now:
            continue
        if is_deletable(view, tag):
            yield tag


def is_deletable(view: Table, tag: Tag) -> bool:
    """Whether ``check_deletable`` doesn't refuse it."""
    try:
        check_deletable(view, tag)
    except UnsafeOperationError:
        return False
    return True


def expire_undo_tags(context: Context) -> None:
    """Delete main's undo tags, and what killed publishes have staged, whose retention has passed.

    A failure is harmless: the next publish does it.
    """
    view = context.table
    try:
        old = past_tags(view, context.now_local, RESERVED_TAG_PREFIX)
        execute(view, [deletion(view, t, "its retention has passed") for t in old])
    except (ConflictError, StorageError, OutcomeUnknownError, FormatError) as error:
        log.warning("%s: could not delete expired undo tags (%s)", context.table.name, error)
