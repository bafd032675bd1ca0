"""Maps a branch's schema versions onto main's when the branch is published (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, field_ids
from airflow_paimon.core.schema.columns_merge_plan import merge_columns
from airflow_paimon.core.table.options import TableOptions

_ICEBERG = "metadata.iceberg.storage"


@dataclass(frozen=True, slots=True)
class SchemaMapping:
    """``ids``: branch schema id -> main schema id, for each id asked for. ``new``: versions to append to main first.

    ``latest_first``: only the last of them has all of main's columns, so it is put before the others.
    """

    ids: Mapping[int, int]
    new: tuple[TableSchema, ...] = ()
    latest: TableSchema | None = field(default=None)
    latest_first: bool = False


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
        ConflictError: see ``merge_columns``. UnsupportedFeatureError: ids differ, and Iceberg readers go by those of
            the files. FormatError: a file names a schema that is missing.
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
    began, since = base, [s for s in branch if s.id > base.id]
    parted = next((i for i in reversed(range(len(since))) if since[i].content == mine.content), None)
    if parted is not None and theirs.content != mine.content:  # main has the branch's columns up to there: published
        base, since = since[parted], since[parted + 1 :]
    apart = theirs.content != mine.content
    if apart and (mine.content != base.content or _takes_ids(base, main, since, withdrawn)):
        return _merged(table, began, main, branch, used, now_ms, withdrawn)
    new = _appended(base, mine, since, now_ms)
    known |= {_key(s): s.id for s in new}
    return SchemaMapping({i: known[_key(by_id[i])] for i in used}, tuple(new), new[-1] if new else mine)


def _takes_ids(
    base: TableSchema, main: Sequence[TableSchema], since: Sequence[TableSchema], withdrawn: Collection[int]
) -> bool:
    """Whether a new column has a field id that main has used for another, dropped one: files are read by field id."""
    used = range(base.highest_field_id + 1, main[-1].highest_field_id + 1)
    known = set(field_ids(base.fields))
    own = {f for s in main if s.id in withdrawn for f in s.fields}
    fields = tuple(f for s in since for f in s.fields if f not in own)
    return bool({i for i in field_ids(fields) if i in used} - known)


def _merged(
    table: str,
    base: TableSchema,
    main: Sequence[TableSchema],
    branch: Sequence[TableSchema],
    used: set[int],
    now_ms: int,
    withdrawn: Collection[int],
) -> SchemaMapping:
    """Bring columns together that changed on both sides; main gets a version for each schema that files were written
    with, and as its latest one the columns of both."""
    mine = main[-1]
    later = [s for s in main if s.id > base.id] or [mine]
    found = merge_columns(table, base, later, [s for s in branch if s.id > base.id] or [branch[-1]], withdrawn)
    if TableOptions(mine.options).text(_ICEBERG, "disabled").lower() != "disabled" and any(
        i != found.ids[i] for i in found.ids
    ):
        raise UnsupportedFeatureError(
            f"{table}: the branch's new columns have other field ids than main's, and with option {_ICEBERG} its files "
            f"are read as Iceberg's, by the ids that are written in them. Create a new branch from main's head, change "
            f"its columns there, and make the correction again"
        )
    known = {_key(s): s.id for s in main}
    by_id = {s.id: s for s in branch}
    new: list[TableSchema] = []
    ids: dict[int, int] = {}

    def next_version(like: TableSchema, fields: tuple[DataField, ...]) -> TableSchema:
        keys = replace(mine, fields=fields, partition_keys=like.partition_keys, primary_keys=like.primary_keys)
        highest = max(found.highest, mine.highest_field_id)
        return replace(keys, id=mine.id + len(new) + 1, highest_field_id=highest, time_millis=now_ms, version=3)

    for schema_id in sorted(used):
        version = next_version(by_id[schema_id], found.of_main(by_id[schema_id]))
        if _key(version) not in known:
            known[_key(version)] = version.id
            new.append(version)
        ids[schema_id] = known[_key(version)]
    latest = next_version(mine, found.fields)
    if new or latest.content != mine.content:
        new.append(latest)
    return SchemaMapping(ids, tuple(new), new[-1] if new else mine, latest_first=True)


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
