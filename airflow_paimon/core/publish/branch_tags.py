"""The tags of a branch that main gets by a publish: chosen when that is planned, and set once its snapshot exists.

The snapshot says that they follow, so a retry sets those that are missing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_paimon.core.branches.tag_files import replacement
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import AlreadyExistsError
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.plan import Action, PutNew
from airflow_paimon.core.publish.fold import with_folds
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.paths import RESERVED_TAG_PREFIX
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    TAGS_PROPERTY,
)
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


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
    retained = {t.snapshot.identity for t in there.values()}
    new, renamed, stay, on_head = list[Tag](), dict[str, Tag](), list[str](), False
    for tag in branch.tags():
        if tag.name.startswith(RESERVED_TAG_PREFIX):
            continue
        states = with_folds(branch, tag.snapshot)
        is_published = is_state and theirs.identity in states
        on_main = tag.snapshot.identity in retained or main.find_snapshot(tag.snapshot.id, tag.snapshot.identity)
        if not is_published and not on_main:
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


def tags_property(tags: TagsForMain) -> dict[str, str]:
    """Return the property of a publish which says that the tags follow it."""
    renamed = {name: own.snapshot.identity for name, own in tags.renamed.items()}
    return {TAGS_PROPERTY: json.dumps({"is_state": tags.on_head, "renamed": renamed})} if tags.new else {}


def set_branch_tags(context: Context, main: Table, committed: Snapshot) -> list[str]:
    """Set the tags that follow a published snapshot, if any do; those that are set stay. Returns warnings."""
    said = committed.values(TAGS_PROPERTY, dict)
    if not said:
        return []
    branch = main.branch(committed.properties.get(BRANCH_PROPERTY, ""))
    number, identity = committed.number(BRANCH_SNAPSHOT_PROPERTY) or 0, committed.properties[BRANCH_IDENTITY_PROPERTY]
    theirs = branch.find_snapshot(number, identity)
    if theirs is None:
        return ["the branch was deleted or renamed since: those of its tags that main lacks were not set"]
    tags = tags_for_main(context, "rename", branch, theirs, is_state=said["is_state"], committed=committed)
    actions: list[Action] = []
    for tag in tags.new:
        path, reason = main.paths.tag(tag.name), f"tag of branch {branch.branch_name}, on snapshot {tag.snapshot.id}"
        own = tags.renamed.get(tag.name)
        if own is None:
            actions.append(PutNew(path=path, data=tag.to_bytes(), same_ok=True, reason=reason))
        elif own.snapshot.identity == said["renamed"].get(tag.name):  # else main has got it since: it stays
            name = f"main's own tag {tag.name}"
            actions += [
                PutNew(path=main.paths.tag(own.name), data=own.to_bytes(), same_ok=True, reason=name),
                replacement(main, replace(own, name=tag.name), tag, reason),
            ]
    put_each(main, actions)
    return []


def put_each(main: Table, actions: Sequence[Action]) -> None:
    """Carry out actions after a publish; what others have made meanwhile is left alone."""
    for action in actions:
        try:
            execute(main, [action])
        except AlreadyExistsError:
            log.warning("%s: %s was written by another operation meanwhile and stays as it is", main.name, action.path)
