"""Columns and options that a publish brings to main: put right before its snapshot, and taken back if it is refused.

A schema version can't be deleted again, as another writer may have used it meanwhile, so what is taken back is put
again as a newer version. See docs/contributing/publishing.md, Columns come right before the snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.errors import AlreadyExistsError
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.publish.replace_main_plan import same_version, with_columns_of
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.properties import BRANCH_PROPERTY
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
    changed it since. They stay if live files hold values of theirs, as those would be hidden, and if another publish of
    the branch was published with them.
    """
    for _ in range(_ROUNDS):
        latest = main.schema()
        came = next((s for s in reversed(brought) if s.content == latest.content), None)
        if came is None or is_written_with(main, before) or _committed(main, branch, brought[0].id):
            return
        back = changed_back(latest, came, before)
        if same_version(back, latest):
            return
        if _put(main, back):
            if is_written_with(main, before) or _committed(main, branch, brought[0].id):  # between the look and the put
                _put(main, changed_back(back, before, came))
            return


def restore_schema(main: Table, committed: TableSchema) -> None:
    """Put a committed publish's columns again if another publish, which was refused, took them back at that moment."""
    if main.schema_ids()[-1] == committed.id:
        return
    schemas = main.schemas()
    latest = schemas[-1]
    old = next((s for s in reversed(schemas) if s.id < committed.id and s.content == latest.content), None)
    if old is not None and latest.content != committed.content and is_written_with(main, old):
        _put(main, changed_back(latest, old, committed))


def _committed(main: Table, branch: str, schema_id: int) -> bool:
    """Whether main has got a publish of the branch since it has this schema version."""
    for number in reversed(main.snapshot_ids()):
        snapshot = main.find_snapshot(number)
        if snapshot is None or snapshot.schema_id < schema_id:
            return False
        if snapshot.properties.get(BRANCH_PROPERTY) == branch:
            return True
    return False


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

    Later changes of others stay. Field ids are never reused.
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
