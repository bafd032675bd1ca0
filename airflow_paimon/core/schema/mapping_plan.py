"""Maps a branch's schema versions onto main's when the branch is published (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.errors import ConflictError, FormatError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import field_ids


@dataclass(frozen=True, slots=True)
class SchemaMapping:
    """``ids``: branch schema id -> main schema id, for each id asked for. ``new``: versions to append to main first."""

    ids: Mapping[int, int]
    new: tuple[TableSchema, ...] = ()
    latest: TableSchema | None = field(default=None)


def plan_schemas(
    table: str,
    base: TableSchema,
    main: Sequence[TableSchema],
    branch: Sequence[TableSchema],
    used: set[int],
    now_ms: int,
    withdrawn: Collection[int] = (),
) -> SchemaMapping:
    """Map the schema ids of a branch's files by content, and append the branch's new columns to main.

    Options and comments are not published: main keeps its own. Both logs are ascending and not empty. ``withdrawn``:
    versions of main added by an earlier publish of the branch that did not land, and withdrawn since.

    Raises:
        ConflictError: columns changed on both sides since ``base``. FormatError: a file names a schema that is missing.
    """
    by_id = {s.id: s for s in branch}
    missing = sorted(used - by_id.keys())
    if missing:
        raise FormatError(f"{table}: files of the branch were written with schema {missing[0]}, which is missing there")
    mine, theirs = main[-1], branch[-1]
    known = {_key(s): s.id for s in main}
    unknown_used = any(_key(by_id[i]) not in known for i in used)
    if theirs.content in (mine.content, base.content) and not unknown_used:
        return SchemaMapping({i: known[_key(by_id[i])] for i in used}, (), mine)
    since = [s for s in branch if s.id > base.id]
    parted = next((i for i in reversed(range(len(since))) if since[i].content == mine.content), None)
    if parted is not None and theirs.content != mine.content:  # main has the branch's columns up to there: published
        base, since = since[parted], since[parted + 1 :]
    if mine.content != base.content and theirs.content != mine.content:
        raise ConflictError(
            f"{table}: columns changed on main and on the branch since the branch point (main: {_columns(mine)}; "
            f"branch: {_columns(theirs)}), and each side has given its columns field ids of its own. Create a new "
            f"branch from main's head, change its columns there, and make the correction again",
            table=table,
        )
    if theirs.content != mine.content:
        _check_field_ids(table, base, main, since, withdrawn)
    new = _appended(base, mine, since, now_ms)
    known |= {_key(s): s.id for s in new}
    return SchemaMapping({i: known[_key(by_id[i])] for i in used}, tuple(new), new[-1] if new else mine)


def _check_field_ids(
    table: str,
    base: TableSchema,
    main: Sequence[TableSchema],
    since: Sequence[TableSchema],
    withdrawn: Collection[int],
) -> None:
    """Refuse a column whose field id main has used for another, dropped column: files are read by field id.

    Raises:
        ConflictError: main's older files would show that column's values as the new one's.
    """
    used = range(base.highest_field_id + 1, main[-1].highest_field_id + 1)
    known = set(field_ids(base.fields))
    own = {f for s in main if s.id in withdrawn for f in s.fields}
    fields = tuple(f for s in since for f in s.fields if f not in own)
    taken = sorted({i for i in field_ids(fields) if i in used} - known)
    if taken:
        raise ConflictError(
            f"{table}: the branch's new columns have field ids ({taken[0]}) that main gave to other columns since "
            f"the branch point; create a new branch from main's head and add the columns there",
            table=table,
        )


def _appended(base: TableSchema, mine: TableSchema, later: Sequence[TableSchema], now_ms: int) -> list[TableSchema]:
    new: list[TableSchema] = []
    previous: Any = base.content
    for schema in later:
        if schema.content == previous:
            continue
        previous = schema.content
        new.append(
            replace(
                mine,
                id=mine.id + len(new) + 1,
                fields=schema.fields,
                partition_keys=schema.partition_keys,
                primary_keys=schema.primary_keys,
                highest_field_id=max(mine.highest_field_id, schema.highest_field_id),
                time_millis=now_ms,
                version=3,
            )
        )
    return new


def _key(schema: TableSchema) -> str:
    return repr(schema.content)


def _columns(schema: TableSchema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema.fields)
