"""replace_main beside its snapshot: what it takes over from the branch, main as it was, kept as a branch, and which
branch main is the state of since.

The snapshot's properties say what has to follow it, so that a retry can complete it. See
docs/contributing/publishing.md, Replacing main.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_paimon.core.branches.branch_plan import branch_options
from airflow_paimon.core.branches.create import make_branch
from airflow_paimon.core.branches.tag_files import replacement
from airflow_paimon.core.commit.committer import execute, put_new
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot, Tag
from airflow_paimon.core.plan import Action, PutNew
from airflow_paimon.core.publish.earlier_publishes import undone_snapshots
from airflow_paimon.core.publish.fold import with_folds
from airflow_paimon.core.publish.replace_main_plan import (
    CarriedOver,
    CarriedTag,
    CarriedTags,
    parse_carried_over,
    parse_options,
    plan_tags,
    same_version,
)
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CreateBranch, ReplaceMain
from airflow_paimon.core.table.branch_record import KEPT_MAIN
from airflow_paimon.core.table.consumers import consumer_names, consumer_path, find_consumer
from airflow_paimon.core.table.history import (
    changed_buckets,
    difference,
    existing_snapshots,
    find_retained,
    snapshots_between,
)
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.paths import MAIN, UNDO_TAG_PREFIX, check_branch_name, parse_protective
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    REPLACED_PROPERTY,
    TAGS_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)
_ICEBERG = "metadata.iceberg.storage"
_NEUTRAL = (CommitKind.COMPACT, CommitKind.ANALYZE)


def check_request(main: Table, request: ReplaceMain) -> None:
    """Refuse what can be seen before anything is read or written.

    Raises:
        InvalidInputError: the name to keep main under, or an option. UnsupportedFeatureError: Iceberg metadata.
    """
    parse_options(main.name, request.option)
    for view in (main, main.branch(request.branch)):
        if view.schema().options.get(_ICEBERG, "disabled").strip().lower() != "disabled":
            raise UnsupportedFeatureError(
                f"{view.label}: option {_ICEBERG} is set; its Iceberg metadata would not follow"
            )
    if request.keep_old_as is not None and check_branch_name(request.keep_old_as) == request.branch:
        raise InvalidInputError(f"{main.name}: main can't be kept as branch {request.branch!r}, which replaces it")


def check_name_is_free(main: Table, name: str | None, head: Snapshot) -> None:
    """Refuse the name of a branch, or of the one that another replacement of main is about to make."""
    if name is None:
        return
    carried = carried_over(head)
    if name in main.branch_names() or (carried is not None and carried.kept_old_as == name):
        raise AlreadyExistsError(
            f"{main.name}: branch {name!r} exists; choose another name in keep_old_as (--keep-old-as)"
        )


def tags_for_main(context: Context, conflict: str, branch: Table, theirs: Snapshot, *, is_state: bool) -> CarriedTags:
    """Choose the tags of a branch that main gets. ``is_state``: main will have the very state of ``theirs``.

    Raises:
        AlreadyExistsError: main has such a tag on another snapshot, and ``conflict`` is ``fail``.
    """
    main = context.table
    found, ours = branch.tags(), main.tags()
    ids = {t.snapshot.id for t in found}
    shared = {t.snapshot.id: t.snapshot.identity for t in ours if t.snapshot.id in ids}
    shared |= {i: s.identity for i in ids if (s := main.find_snapshot(i)) is not None}
    states = {t.name: with_folds(branch, t.snapshot) for t in found}
    head = {name for name, same in states.items() if is_state and theirs.identity in same}
    brought = {t.name for t in ours if t.snapshot.properties.get(BRANCH_IDENTITY_PROPERTY) in states.get(t.name, ())}
    return plan_tags(
        main.name,
        found,
        ours,
        shared=shared,
        head=head,
        brought=brought,
        on_conflict=conflict,
        now=context.now_local,
    )


def consumer_positions(view: Table) -> dict[str, int]:
    """The next snapshot that each consumer reads; an unreadable one counts as having read nothing."""
    found = dict.fromkeys(consumer_names(view), 0)
    for name in found:
        with suppress(FormatError):
            found[name] = find_consumer(view, name) or 0
    return found


def changed_since_kept(
    main: Table, name: str, base: Snapshot, head: Snapshot, buckets: set[BucketKey]
) -> set[BucketKey] | None:
    """For a branch that keeps main as it was before it was replaced: which of main's buckets changed since it was.

    None: the snapshot after its base is not the one that replaced main.
    """
    after = main.find_snapshot(base.id + 1)
    carried = None if after is None else carried_over(after)
    if after is None or carried is None or carried.kept_old_as != name:
        return None
    since = buckets & difference(main, after, head).buckets
    return changed_buckets(main, snapshots_between(main, after.id, head.id), since) if since else since


# -- after the snapshot ------------------------------------------------------------------------------------------------


def carried_over(snapshot: Snapshot) -> CarriedOver | None:
    """Return what a snapshot says that replaced main, None for any other one."""
    text = snapshot.properties.get(REPLACED_PROPERTY)
    return None if text is None else parse_carried_over(text)


def carry_over_tags_and_consumers(context: Context, main: Table, committed: Snapshot) -> list[str]:
    """Set the tags and consumers that a published snapshot carries over, and make the branch that keeps main as it was.

    Idempotent; what others have made is left alone. Returns warnings.
    """
    text = committed.properties.get(TAGS_PROPERTY)
    carried = carried_over(committed) if text is None else parse_carried_over(text)
    if carried is None:
        return []
    warnings = _keep_replaced(context, main, committed, carried)
    actions: list[Action] = []
    for tag in carried.tags:
        actions += _tag_actions(main, committed, tag)
    there = set(main.store.names(main.paths.consumer_dir))
    for name in carried.consumers:
        path = consumer_path(main, name)
        if path.rpartition("/")[2] not in there:
            data = json.dumps({"nextSnapshot": committed.id + 1}).encode()
            actions.append(PutNew(path=path, data=data, same_ok=True, reason=f"consumer of branch {carried.branch}"))
    for action in actions:
        try:
            execute(main, [action])
        except AlreadyExistsError:
            log.warning("%s: %s was written by another operation meanwhile and stays as it is", main.name, action.path)
    return warnings


def _keep_replaced(context: Context, main: Table, committed: Snapshot, carried: CarriedOver) -> list[str]:
    """Make the branch that keeps main as it was, from the snapshot before, or the undo tag on it."""
    name, undo = carried.kept_old_as, committed.properties.get(UNDO_TAG_PROPERTY, "")
    if name is None or carried.kept_schema is None:
        return []
    before = main.find_snapshot(committed.id - 1)
    request = CreateBranch(
        warehouse=context.request.warehouse,
        table=context.request.table,
        branch=name,
        snapshot=None if before is None else before.id,
        tag=undo if before is None else None,
        if_exists="skip",
        reason=KEPT_MAIN,
        operation_id=f"{committed.commit_user}@{committed.id - 1}",
    )
    try:
        make_branch(replace(context, request=request), request)
    except AlreadyExistsError:
        return [f"another process created branch {name!r} in the meantime: only tag {undo!r} keeps main as it was"]
    kept, then = main.branch(name), main.schema(carried.kept_schema)
    latest = kept.schema()
    wanted = replace(then, id=latest.id + 1, options=branch_options(then.options))
    if not same_version(latest, wanted):
        put_new(kept, kept.paths.schema(wanted.id), wanted.to_bytes())
    return []


def _tag_actions(main: Table, committed: Snapshot, tag: CarriedTag) -> list[Action]:
    now = main.find_tag(tag.name)
    snapshot = committed if tag.snapshot is None else _snapshot(main, tag)
    if snapshot is None or (now is not None and now.snapshot.identity == snapshot.identity):
        return []
    path = main.paths.tag(tag.name)
    new = Tag(
        name=tag.name,
        snapshot=snapshot,
        create_time=None if tag.created is None else datetime.fromisoformat(tag.created),
        time_retained=None if tag.retained_s is None else timedelta(seconds=tag.retained_s),
    )
    reason = f"tag of the branch that replaced main, on snapshot {snapshot.id}"
    if now is None:
        return [PutNew(path=path, data=new.to_bytes(), same_ok=True, reason=reason)]
    if tag.kept_as is None or now.snapshot.identity != tag.instead_of:
        return []
    old = replace(now, name=tag.kept_as).to_bytes()
    return [
        PutNew(path=main.paths.tag(tag.kept_as), data=old, same_ok=True, reason=f"main's own tag {tag.name}"),
        replacement(main, now, new, reason),
    ]


def _snapshot(main: Table, tag: CarriedTag) -> Snapshot | None:
    """The snapshot of main that a tag of the branch is on: it exists, or a tag holds it."""
    found = main.find_snapshot(tag.snapshot or 0)
    candidates = [found] if found is not None else []
    candidates += [t.snapshot for t in main.tags() if t.snapshot.id == tag.snapshot]
    return next((s for s in candidates if s.identity == tag.identity), None)


# -- which branch main is the state of ---------------------------------------------------------------------------------


def main_state(table: Table) -> dict[str, Any]:
    """Say which branch main is the state of. ``is_state_of`` is None if main was not replaced, or that was undone.

    ``branch_snapshot`` of that branch is what main got with its snapshot ``since_snapshot``; ``kept_old_as`` is the
    branch with main as it was. ``diverged``: main got other commits since. ``branch_exists``: that branch still exists.

    Reads the tags that publishes leave, so it costs little on a table that was never replaced. A replacement whose
    snapshot, undo tag and branch are all gone is no longer known.
    """
    main = table.branch(MAIN).require()
    out: dict[str, Any] = {
        "branch": MAIN,
        "is_state_of": None,
        "branch_snapshot": None,
        "since_snapshot": None,
        "kept_old_as": None,
        "diverged": False,
        "branch_exists": False,
    }
    for found in _replacements(main):
        later = existing_snapshots(main, [i for i in main.snapshot_ids() if i > found.id])
        undone = undone_snapshots([found, *later])
        if found.id in undone:
            continue
        carried = carried_over(found)
        assert carried is not None
        then = main.branch(carried.branch).find_snapshot(carried.branch_snapshot)
        identity = found.properties.get(BRANCH_IDENTITY_PROPERTY)
        known = {*undone, *undone.values()}
        return out | {
            "is_state_of": carried.branch,
            "branch_snapshot": carried.branch_snapshot,
            "since_snapshot": found.id,
            "kept_old_as": carried.kept_old_as,
            "diverged": any(s.commit_kind not in _NEUTRAL and s.id not in known for s in later),
            "branch_exists": then is not None and then.identity == identity,
        }
    return out


def main_state_text(table: Table) -> str | None:
    """Say it in words, such as ``the state of branch fix at snapshot 141, since snapshot 118``.

    None if main has not been replaced by a branch.
    """
    state = main_state(table)
    if state["is_state_of"] is None:
        return None
    text = f"the state of branch {state['is_state_of']} at snapshot {state['branch_snapshot']}"
    more = ", with commits of main's own since" if state["diverged"] else ""
    return f"{text}, since snapshot {state['since_snapshot']}{more}"


def _replacements(main: Table) -> Iterator[Snapshot]:
    """Main's snapshots that replaced it, the newest first."""
    numbers, main = set(), main.with_cached_tags()
    for name in main.tag_names():
        shared = parse_protective(name)
        if shared is not None and shared.published is not None:
            numbers.add(shared.published)
        elif name.startswith(UNDO_TAG_PREFIX) and (tag := main.find_tag(name)) is not None:
            numbers.add(tag.snapshot.id + 1)
    for number in sorted(numbers, reverse=True):
        found = find_retained(main, number)
        if found is not None and carried_over(found) is not None:
            yield found
