"""What the undo of one publish would do on top of what came later, and which way helps. Reads metadata alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.rollback import rollback_to
from airflow_paimon.core.publish.undo_statement import BEFORE, PUBLISHED, undo_statement
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import RollbackTo
from airflow_paimon.core.table.history import retained_snapshot
from airflow_paimon.core.table.paths import publish_tag
from airflow_paimon.core.table.properties import UNDO_TAG_PROPERTY
from airflow_paimon.core.table.table import Table

BY_BUCKET, BY_KEY, BY_ROW, NO_WAY = "by bucket", "by key", "by row", "no way"
_FIGURES = ("partitions", "buckets", "files_deleted", "rows_deleted", "files_added", "rows_added")
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPreview:
    """The undo of a publish, rollback or undo, as main is now.

    Attributes:
        way: ``by bucket``: ``rollback_to --keep-later``, with ``figures`` of what it takes out and puts in; ``by key``:
            the same, but ``conflicts`` are merged by key, which is refused if a key has changed again; ``by row``:
            ``statement`` as a correction, with ``views``; ``no way``: see ``why``.
        conflicts: Buckets that changed again after the publish, for which it can't be undone by bucket.
        later: The newest commits that came after it, of ``later_count``; they stay either way.
        why: Why the first way is refused; empty where it isn't.
    """

    snapshot: int
    tag: str
    way: str
    figures: Mapping[str, int] = field(default_factory=dict)
    conflicts: Sequence[str] = ()
    statement: str | None = None
    views: tuple[str, ...] = ()
    later: Sequence[Snapshot] = ()
    later_count: int = 0
    why: str = ""


def preview_undo(main: Table, snapshot_id: int) -> UndoPreview:
    """Plan to take back one publish of main, and keep what came later.

    Raises:
        NotFoundError: there is no such snapshot. FormatError: something that is needed is unreadable.
    """
    publish = retained_snapshot(main, snapshot_id)
    tag = publish.properties.get(UNDO_TAG_PROPERTY, "")
    ids = [i for i in main.snapshot_ids() if i > snapshot_id]
    later = main.snapshots(ids[-_LISTED:])[::-1]
    return replace(_plan(main, snapshot_id, tag), later=later, later_count=len(ids))


def _plan(main: Table, snapshot_id: int, tag: str) -> UndoPreview:
    nothing = UndoPreview(snapshot=snapshot_id, tag=tag, way=NO_WAY)
    if not tag:
        return replace(nothing, why=f"snapshot {snapshot_id} is not a publish, an undo or a rollback")
    request = RollbackTo(table=main.name, tag=tag, keep_later=True, dry_run=True)
    context = Context(request, main, int(time.time() * 1000), time.monotonic())
    try:
        planned = rollback_to(context, request)
    except ConflictError as error:
        conflicts = tuple(error.details.get("conflicts", ()))
        return replace(_by_row(main, nothing), conflicts=conflicts)
    except PaimonError as error:
        return replace(nothing, why=error.message)
    found = replace(nothing, way=BY_BUCKET, figures={name: planned.details[name] for name in _FIGURES})
    keyed = planned.details.get("merged_by_key")
    return found if keyed is None else replace(_by_row(main, found), way=BY_KEY, conflicts=keyed["buckets"], why="")


def _by_row(main: Table, found: UndoPreview) -> UndoPreview:
    why = "what it changed has changed again since"
    try:
        statement = undo_statement(main.schema(), main.name)
    except PaimonError as error:
        return replace(found, why=f"{why}, and {error.message}")
    published = found.snapshot if main.find_snapshot(found.snapshot) is not None else publish_tag(found.tag)
    views = (f"{BEFORE}={main.name}@{found.tag}", f"{PUBLISHED}={main.name}@{published}")
    return replace(found, way=BY_ROW, statement=statement, views=views, why=why)
