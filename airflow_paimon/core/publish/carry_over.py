"""What follows the snapshot of a publish: the branch's tags and consumers, and main as it was, kept as a branch.

The snapshot's properties say it, so that a retry can complete it. See docs/contributing/publishing.md, Replacing main.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_paimon.core.branches.branch_plan import branch_options
from airflow_paimon.core.branches.create import make_branch
from airflow_paimon.core.branches.tag_files import replacement
from airflow_paimon.core.commit.put import execute, put_new
from airflow_paimon.core.errors import AlreadyExistsError
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.plan import Action, PutNew
from airflow_paimon.core.publish.fold import with_folds
from airflow_paimon.core.publish.replace_main_plan import (
    CarriedOver,
    CarriedTag,
    CarriedTags,
    parse_carried_over,
    plan_tags,
    same_version,
)
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CreateBranch
from airflow_paimon.core.table.branch_record import KEPT_MAIN
from airflow_paimon.core.table.consumers import consumer_path
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    REPLACED_PROPERTY,
    TAGS_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


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
