"""Columns and options that a publish brings to main: put right before its snapshot, and taken back if it is refused.

A schema version can't be deleted again, as another writer may have used it meanwhile, so what is taken back is put
again as a newer version. See docs/contributing/publishing.md, Columns come right before the snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.errors import AlreadyExistsError
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.replace_main_plan import with_columns_of
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.properties import BRANCH_PROPERTY, UNDO_TAG_PROPERTY
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_ROUNDS = 5


def put_schemas(main: Table, new: Sequence[TableSchema], *, latest_first: bool = False) -> bool:
    """Put schema versions. False = main was altered meanwhile: plan again.

    ``latest_first``: at no time is another version than the last of ``new`` the latest one.
    """
    for schema in reversed(new) if latest_first else new:
        path, data = main.paths.schema(schema.id), schema.to_bytes()
        try:
            put_new(main, path, data)
        except AlreadyExistsError:
            there = main.store.read(path)
            if there == data:
                continue
            if latest_first and schema.id != new[-1].id:  # else the other writer's change would be hidden below ours
                _put(main, replace(parse_schema(there, path), id=new[-1].id + 1))
            return False
    return True


def is_put(main: Table, schema: TableSchema) -> bool:
    """Whether a schema version of main is this one, and not another writer's of the same id."""
    return read_if_exists(main.store, main.paths.schema(schema.id)) == schema.to_bytes()


def revert_schemas(main: Table, branch: str, before: TableSchema, brought: Sequence[TableSchema]) -> None:
    """Take the schema versions of a refused publish of a branch back: main gets what ``before`` had, where nobody has
    changed it since. They stay if live files hold values of theirs, as those would be hidden, and if a publish that
    needs them was committed since.
    """
    for _ in range(_ROUNDS):
        latest = main.schema()
        came = next((s for s in reversed(brought) if s.content == latest.content), None)
        if came is None or is_written_with(main, before) or _are_published(main, branch, before, brought):
            return
        back = changed_back(latest, came, before)
        if back.means_same(latest):
            return
        if _put(main, back):
            if is_written_with(main, before) or _are_published(main, branch, before, brought):  # since the look
                _put(main, changed_back(back, before, came))
            return


def restore_schema(main: Table, committed: Snapshot) -> None:
    """Put a committed publish's columns again if another publish, which was refused, took them back at that moment."""
    later_ids = [i for i in main.schema_ids() if i > committed.schema_id]
    if not later_ids:
        return
    schemas = [main.schema(i) for i in (committed.schema_id, *later_ids)]
    own, latest = schemas[0], schemas[-1]
    reverted = [
        later
        for before, later in pairwise(schemas)
        if before.content == own.content != later.content == latest.content and _is_taken_back(before, later)
    ]
    later_publishes = (main.find_snapshot(i) for i in main.snapshot_ids() if i > committed.id) if reverted else ()
    if reverted and not any(s and s.schema_id > own.id and UNDO_TAG_PROPERTY in s.properties for s in later_publishes):
        _put(main, changed_back(latest, reverted[-1], own))


def _is_taken_back(before: TableSchema, later: TableSchema) -> bool:
    """Whether a version is one of ``changed_back``, which keeps the time of the one before; a user's has its own."""
    return before.time_millis == later.time_millis


def _are_published(main: Table, branch: str, before: TableSchema, brought: Sequence[TableSchema]) -> bool:
    """Whether main has got a publish since it has these versions: of the branch, or of one with the same columns."""
    names = {f.name for f in before.fields}
    added = {(f.name, f.type) for f in brought[-1].fields} - {(f.name, f.type) for f in before.fields}
    dropped = names - {f.name for f in brought[-1].fields}
    for number in reversed(main.snapshot_ids()):
        snapshot = main.find_snapshot(number)
        if snapshot is None or snapshot.schema_id < brought[0].id:
            return False
        other = snapshot.properties.get(BRANCH_PROPERTY)
        if other == branch:
            return True
        if other is not None and (added or dropped) and main.branch(other).exists():
            fields = main.branch(other).schema().fields
            if added <= {(f.name, f.type) for f in fields} and dropped.isdisjoint({f.name for f in fields}):
                return True
    return False


def has_columns_of(version: TableSchema, before: TableSchema, theirs: Sequence[TableSchema]) -> bool:
    """Whether a version of main may have come from a branch with these versions: it has the columns of one, or what it
    has added and dropped since ``before`` is that one's.
    """
    columns, former = ({(f.name, f.type) for f in s.fields} for s in (version, before))
    dropped = set(before.field_names) - set(version.field_names)
    return any(
        version.content == other.content
        or (columns != former and (columns - former) <= {(f.name, f.type) for f in other.fields}
            and dropped.isdisjoint(other.field_names))
        for other in theirs
    )  # fmt: skip


def is_written_with(main: Table, old: TableSchema) -> bool:
    """Whether live files hold values that the old columns can't hold: of a new column, or of a changed type."""
    before = {(f.id, f.type) for f in old.fields}
    later = (s for s in main.schemas() if s.id > old.id)
    wider = {s.id for s in later if any((f.id, f.type) not in before for f in s.fields)}
    return bool(wider) and not wider.isdisjoint(written_with(main))


def written_with(main: Table) -> set[int]:
    """Return the schema versions that live files were written with."""
    return {e.file.schema_id for e in live_entries(main, main.latest_snapshot()).values()}


def _put(main: Table, schema: TableSchema) -> bool:
    try:
        put_new(main, main.paths.schema(schema.id), schema.to_bytes())
    except AlreadyExistsError:
        log.warning("%s: schema %d was put by another writer at the same moment", main.label, schema.id)
        return False
    return True


def changed_back(latest: TableSchema, came: TableSchema, old: TableSchema) -> TableSchema:
    """Return the next schema version, which takes back what ``came`` changed in ``old``, where ``latest`` still has it.

    Later changes of others stay. Field ids are never reused. Its time is that of ``latest``: see ``_is_taken_back``.
    """
    columns = came.fields != old.fields and latest.content == came.content
    columns = columns and (came.content != old.content or latest.fields == came.fields)
    options = dict(latest.options)
    for key in came.options.keys() | old.options.keys():
        if came.options.get(key) != old.options.get(key) and options.get(key) == came.options.get(key):
            options.pop(key, None)
            options |= {key: old.options[key]} if key in old.options else {}
    comment = old.comment if latest.comment == came.comment else latest.comment
    shaped = with_columns_of(latest, old) if columns else latest
    return replace(shaped, id=latest.id + 1, options=options, comment=comment)
