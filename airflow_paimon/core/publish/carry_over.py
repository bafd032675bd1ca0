"""What follows the snapshot of a publish: the branch's tags and consumers, and main as it was, kept as a branch.

The snapshot's properties say it, so that a retry can complete it. See docs/contributing/publishing.md, Replacing main.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from airflow_paimon.core.branches.branch_plan import branch_options
from airflow_paimon.core.branches.create import make_branch
from airflow_paimon.core.branches.tag_files import replacement
from airflow_paimon.core.commit.put import execute, put_new
from airflow_paimon.core.errors import AlreadyExistsError, FormatError
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.plan import Action, PutNew
from airflow_paimon.core.publish.fold import with_folds
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CreateBranch
from airflow_paimon.core.table.branch_record import KEPT_MAIN
from airflow_paimon.core.table.consumers import consumer_path
from airflow_paimon.core.table.history import is_retained
from airflow_paimon.core.table.paths import RESERVED_TAG_PREFIX
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    REPLACED_PROPERTY,
    TAGS_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What a snapshot that replaced main says has to follow it.

    ``kept_old_as``: the branch that keeps main as it was, with the columns and options of ``kept_schema``, a version of
    main's. ``consumers``: those of the branch that go on on main.
    """

    kept_old_as: str | None = None
    kept_schema: int | None = None
    consumers: tuple[str, ...] = ()

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


def replacement_of_main(snapshot: Snapshot) -> Replacement | None:
    """Return what a snapshot says that replaced main, None for any other one.

    Raises:
        FormatError: it is not what ``to_text`` writes.
    """
    if REPLACED_PROPERTY not in snapshot.properties:
        return None
    try:
        return Replacement(**snapshot.values(REPLACED_PROPERTY, dict))
    except TypeError as error:
        raise FormatError(f"Snapshot property {REPLACED_PROPERTY} is unreadable: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagsForMain:
    """Tags of a branch that main gets. ``renamed``: by name, main's own ones, under other names. ``stay``: those of
    states that main never has; they remain in the branch only. ``on_head``: some are on the publish itself.
    """

    new: tuple[Tag, ...]
    renamed: Mapping[str, Tag]
    stay: tuple[str, ...]
    on_head: bool

    @property
    def summary(self) -> dict[str, object]:
        return {"tags": [t.name for t in self.new], "tags_kept": list(self.stay)}


def tags_for_main(
    context: Context,
    conflict: str,
    branch: Table,
    theirs: Snapshot,
    *,
    is_state: bool,
    committed: Snapshot | None = None,
) -> TagsForMain:
    """Choose the tags of a branch that main gets: those on snapshots that main has or retains by tags, and those on
    the published state ``theirs``, if main has it then (``is_state``). They are put on the publish ``committed``.

    Raises:
        AlreadyExistsError: main has such a tag on another snapshot, and ``conflict`` is ``fail``.
    """
    main, now = context.table, context.now_local
    there = {t.name: t for t in main.tags()}
    new, renamed, stay, on_head = list[Tag](), dict[str, Tag](), list[str](), False
    for tag in branch.tags():
        if tag.name.startswith(RESERVED_TAG_PREFIX):
            continue
        states = with_folds(branch, tag.snapshot)
        is_published = is_state and theirs.identity in states
        if not is_published and not is_retained(main, tag.snapshot):
            stay.append(tag.name)
            continue
        mine, end = there.get(tag.name), tag.expires_at()
        if (mine is not None and _is_same_state(mine.snapshot, states)) or (end is not None and end <= now):
            continue
        if mine is not None and conflict == "fail":
            raise AlreadyExistsError(
                f"{main.name}: main has a tag {tag.name!r} as well, on snapshot {mine.snapshot.id}; set tag_conflict "
                "(--tag-conflict) to keep-main or rename, or delete one of the two",
                details={"tag": tag.name},
            )
        if mine is not None and conflict == "keep-main":
            continue
        if mine is not None:
            renamed[tag.name] = _renamed(mine, there, now)
        new.append(
            Tag(
                name=tag.name,
                snapshot=committed or theirs if is_published else tag.snapshot,
                create_time=None if end is None else now,
                time_retained=None if end is None else end - now,
            )
        )
        on_head = on_head or is_published
    return TagsForMain(new=tuple(new), renamed=renamed, stay=tuple(stay), on_head=on_head)


def _is_same_state(mine: Snapshot, states: set[str]) -> bool:
    """Whether main's tag is on a state of the branch, or on a publish of it."""
    return not states.isdisjoint((mine.identity, mine.properties.get(BRANCH_IDENTITY_PROPERTY, "")))


def _renamed(mine: Tag, there: Mapping[str, Tag], now: datetime) -> Tag:
    name = f"{mine.name}.main-{now:%Y-%m-%d}"
    if name in there and there[name].snapshot.identity != mine.snapshot.identity:
        name = f"{name}.{mine.snapshot.id}"
    return replace(mine, name=name)


def tags_property(conflict: str, tags: TagsForMain, *, is_state: bool) -> dict[str, str]:
    """Return the property of a publish which says that the tags follow it."""
    return {TAGS_PROPERTY: json.dumps({"conflict": conflict, "is_state": is_state})} if tags.new else {}


def carry_over_tags_and_consumers(context: Context, main: Table, committed: Snapshot) -> list[str]:
    """Set the tags and consumers that a published snapshot carries over, and make the branch that keeps main as it was.

    Idempotent; what others have made is left alone. Returns warnings.
    """
    carried, warnings, actions = replacement_of_main(committed) or Replacement(), list[str](), list[Action]()
    if carried.kept_old_as is not None:
        warnings += _keep_replaced(context, main, committed, carried)
    if said := committed.values(TAGS_PROPERTY, dict):
        found = _tag_actions(context, main, committed, said["conflict"], is_state=said["is_state"])
        actions += found or ()
        if found is None:
            warnings.append("the branch was deleted before its tags were set on main, and its tags with it")
    there = set(main.store.names(main.paths.consumer_dir)) if carried.consumers else set()
    for path in (consumer_path(main, name) for name in carried.consumers):
        if path.rpartition("/")[2] not in there:
            data = json.dumps({"nextSnapshot": committed.id + 1}).encode()
            actions.append(PutNew(path=path, data=data, same_ok=True, reason="consumer of the branch"))
    for action in actions:
        try:
            execute(main, [action])
        except AlreadyExistsError:
            log.warning("%s: %s was written by another operation meanwhile and stays as it is", main.name, action.path)
    return warnings


def _keep_replaced(context: Context, main: Table, committed: Snapshot, carried: Replacement) -> list[str]:
    """Make the branch that keeps main as it was, from the snapshot before, or the undo tag on it."""
    name, undo = carried.kept_old_as or "", committed.properties.get(UNDO_TAG_PROPERTY, "")
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
    if not latest.means_same(wanted):
        put_new(kept, kept.paths.schema(wanted.id), wanted.to_bytes())
    return []


def _tag_actions(
    context: Context, main: Table, committed: Snapshot, conflict: str, *, is_state: bool
) -> list[Action] | None:
    """Return what sets the branch's tags on main; None: the branch is gone."""
    branch = main.branch(committed.properties.get(BRANCH_PROPERTY, ""))
    number, identity = committed.number(BRANCH_SNAPSHOT_PROPERTY) or 0, committed.properties[BRANCH_IDENTITY_PROPERTY]
    theirs = branch.find_snapshot(number, identity)
    if theirs is None:
        return None
    conflict = "keep-main" if conflict == "fail" else conflict  # with one that main has got since
    now = {t.name: t for t in main.tags()}
    tags = tags_for_main(context, conflict, branch, theirs, is_state=is_state, committed=committed)
    actions: list[Action] = []
    for tag in tags.new:
        path, reason = main.paths.tag(tag.name), f"tag of branch {branch.branch_name}, on snapshot {tag.snapshot.id}"
        own = tags.renamed.get(tag.name)
        if own is None:
            actions.append(PutNew(path=path, data=tag.to_bytes(), same_ok=True, reason=reason))
        else:
            name = f"main's own tag {tag.name}"
            actions += [
                PutNew(path=main.paths.tag(own.name), data=own.to_bytes(), same_ok=True, reason=name),
                replacement(main, now[tag.name], tag, reason),
            ]
    return actions
