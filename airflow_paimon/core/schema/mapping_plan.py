"""Maps a branch's schema versions onto main's when the branch is published (pure).

Where both have changed columns since the branch point: files are read by field id, and each side has given its new
columns ids of its own. So a branch's new column is the one that main has got under the same name and type; any other
gets an id that main has never used. The branch's files need no change: main gets a schema version for them that has the
same columns under main's ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.errors import ConflictError, FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, DataField, DataType, MapType, RowType, field_ids
from airflow_paimon.core.schema.opening_rules import opening_faults
from airflow_paimon.core.table.options import TableOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedColumns:
    """``fields``: main's columns after the publish. ``ids``: main's field id of each one that the branch has given.

    ``highest``: the highest field id that main has used then.
    """

    fields: tuple[DataField, ...]
    ids: Mapping[int, int]
    highest: int

    def of_main(self, schema: TableSchema) -> tuple[DataField, ...]:
        """Return the columns of one of the branch's schema versions, under main's ids."""
        return _with_ids(schema.fields, self.ids)


def merge_columns(
    table: str,
    base: TableSchema,
    main: Sequence[TableSchema],
    branch: Sequence[TableSchema],
    withdrawn: Collection[int] = (),
) -> MergedColumns:
    """Merge what both sides changed since ``base``; main's columns come first, then the branch's new ones.

    ``main`` and ``branch``: their schema versions since then, ascending, not empty. ``withdrawn``: as in
    ``plan_schemas``.

    Raises:
        ConflictError: says for each column what is in the way, and what to do.
    """
    merge = _Merge(base, main, branch, withdrawn)
    fields = merge.fields()
    if merge.problems:
        raise ConflictError(
            f"{table}: columns changed on main and on the branch since the branch point and can't be brought "
            f"together: {'; '.join(merge.problems)}. Or create a new branch from main's head, change its columns "
            "there, and repeat the correction",
            details={"columns": merge.problems},
        )
    return MergedColumns(fields=fields, ids=merge.ids, highest=merge.highest)


class _Merge:
    def __init__(
        self,
        base: TableSchema,
        main: Sequence[TableSchema],
        branch: Sequence[TableSchema],
        withdrawn: Collection[int],
    ) -> None:
        self.base, self.mine, self.theirs = base, main[-1], branch[-1]
        self.shared = set(field_ids(base.fields))
        self.problems: list[str] = []
        self.ids: dict[int, int] = {}
        self.highest = max(self.mine.highest_field_id, *field_ids(self.mine.fields))
        self.branch = branch
        known = [f for s in main if s.id not in withdrawn for f in s.fields]
        self._names_of_main = {f.name for f in known if f.id not in self.shared}

    def fields(self) -> tuple[DataField, ...]:
        if len({(s.partition_keys, s.primary_keys) for s in (self.base, self.mine, self.theirs)}) > 1:
            self.problems.append("a key column was renamed: rename it on the other side as well, to the same name")
        added = [f for f in self.theirs.fields if f.id not in self.shared]
        new = [f for f in added if not self._is_on_main(f)]
        theirs = {i for s in self.branch for i in field_ids(s.fields)}
        for field_id in sorted(theirs - self.ids.keys() - self.shared):  # one of its own on main
            self.highest += 1
            self.ids[field_id] = self.highest
        out = [*self._kept(), *_with_ids(new, self.ids)]
        names = [f.name for f in out]
        for name in sorted({n for n in names if names.count(n) > 1}):
            self.problems.append(f"two columns would have the name {name!r}: rename one of them")
        return tuple(out)

    def _is_on_main(self, field: DataField) -> bool:
        """Whether main has got this new column of the branch as well; notes why it can't be told, or can't be."""
        name = field.name
        mine = next((f for f in self.mine.fields if f.name == name), None)
        if mine is None:
            names = {f.name for s in self.branch for f in s.fields if f.id == field.id}
            former = sorted(names & self._names_of_main)
            if former:
                what = (
                    f"main has dropped or renamed column {name!r}"
                    if former == [name]
                    else (
                        f"the branch has renamed column {former[0]!r} to {name!r}, which main has under its former name"
                    )
                )
                self.problems.append(f"{what}: give it one name on both sides")
            return False
        if mine.id in self.shared:
            self.problems.append(f"main has renamed another column to {name!r}: rename one of the two")
        elif str(field.type) != str(mine.type):  # which leaves the ids out
            self.problems.append(
                f"column {name!r} is {mine.type} on main and {field.type} on the branch: alter one to the other's type"
            )
        else:
            self.ids |= dict(zip(field_ids((field,)), field_ids((mine,)), strict=True))
        return True

    def _kept(self) -> Iterator[DataField]:
        """Main's columns, with what the branch has changed in those of the branch point."""
        before = {f.id: f for f in self.base.fields}
        theirs = {f.id: f for f in _with_ids(self.theirs.fields, self.ids) if f.id in before}
        mine = {f.id: f for f in self.mine.fields}
        for field_id in before.keys() - mine.keys() & theirs.keys():
            if _told(theirs[field_id]) != _told(before[field_id]):
                name = before[field_id].name
                self.problems.append(f"main has dropped column {name!r}, and the branch has changed it: drop it there")
        for field in self.mine.fields:
            old, their = before.get(field.id), theirs.get(field.id)
            if old is None or (their is not None and _told(their) in (_told(old), _told(field))):
                yield field
            elif _told(field) == _told(old):
                if their is not None:
                    yield their
            else:
                now = "dropped" if their is None else f"made {their.name} {their.type}"
                self.problems.append(
                    f"column {old.name!r} was changed on main to {field.name} {field.type}, and {now} on the branch: "
                    f"make the same change on both sides"
                )


def _told(field: DataField) -> tuple[str, DataType]:
    return field.name, field.type


def _with_ids(fields: Sequence[DataField], ids: Mapping[int, int]) -> tuple[DataField, ...]:
    return tuple(replace(f, id=ids.get(f.id, f.id), type=_type_with_ids(f.type, ids)) for f in fields)


def _type_with_ids(data_type: DataType, ids: Mapping[int, int]) -> DataType:
    if isinstance(data_type, RowType):
        return replace(data_type, fields=_with_ids(data_type.fields, ids))
    if isinstance(data_type, ArrayType):
        return replace(data_type, element=_type_with_ids(data_type.element, ids))
    if isinstance(data_type, MapType):
        return replace(data_type, key=_type_with_ids(data_type.key, ids), value=_type_with_ids(data_type.value, ids))
    return data_type


_ICEBERG = "metadata.iceberg.storage"


@dataclass(frozen=True, slots=True)
class SchemaMapping:
    """``ids``: branch schema id -> main schema id, for each id asked for. ``new``: versions to append to main first.

    ``latest_first``: only the last of them has all of main's columns, so it is put before the others.
    """

    ids: Mapping[int, int]
    new: tuple[TableSchema, ...] = ()
    latest: TableSchema | None = None
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
    """Map the schema ids of a branch's files by content, and append the branch's new columns to main, with the comments
    of columns that the branch has changed.

    Options and the table's comment are not published: main keeps its own. Both logs are ascending and not empty.
    ``withdrawn``: versions of main with columns that it has no more, and of which no file has values.

    Raises:
        ConflictError: see ``merge_columns``; or main's options don't go with the columns. UnsupportedFeatureError: ids
            differ, and Iceberg readers go by those of the files. FormatError: a file names a schema that is missing.
    """
    found, ids = _mapped(table, base, main, branch, used, now_ms, withdrawn)
    found = _with_comments(found, base, main[-1], [s for s in branch if s.id > base.id], ids, now_ms)
    if found.new:
        known = opening_faults(main[-1])
        fault = next((fault for fault in opening_faults(found.new[-1]) if fault not in known), None)
        if fault is not None:
            raise ConflictError(
                f"{table}: with the branch's columns Paimon could not open main, or not use it: {fault}. Change that "
                f"option of main with alter_table first"
            )
    return found


def _with_comments(
    mapping: SchemaMapping,
    base: TableSchema,
    main: TableSchema,
    since: Sequence[TableSchema],
    ids: Mapping[int, int],
    now_ms: int,
) -> SchemaMapping:
    """Add the comments that the branch has changed in its versions ``since`` the base: of each column the newest one,
    where main's is one that the branch had before.
    """
    latest = mapping.latest or main
    comments: dict[int, list[str | None]] = {}
    for field in (f for schema in (base, *since) for f in schema.fields):  # those of a ROW's fields are of its type
        comments.setdefault(ids.get(field.id, field.id), []).append(field.description)
    mine = {f.id: f.description for f in main.fields}

    def commented(field: DataField) -> DataField:
        own = mine.get(field.id, field.description)
        known = comments.get(field.id, [])  # else main has changed it itself
        return replace(field, description=known[-1] if own in known else own)

    fields = tuple(map(commented, latest.fields))
    if fields == latest.fields:
        return mapping
    last = replace(latest, fields=fields)
    if not mapping.new:
        last = _later(latest, 1, last, now_ms)
    return replace(mapping, new=(*mapping.new[:-1], last), latest=last)


def _mapped(
    table: str,
    base: TableSchema,
    main: Sequence[TableSchema],
    branch: Sequence[TableSchema],
    used: set[int],
    now_ms: int,
    withdrawn: Collection[int],
) -> tuple[SchemaMapping, Mapping[int, int]]:
    """Return the mapping without changed comments, and main's ids of the branch's columns that have others there."""
    by_id = schemas_by_id(table, branch, used)
    mine, theirs = main[-1], branch[-1]
    known = {_key(s): s.id for s in main}
    unknown_used = any(_key(by_id[i]) not in known for i in used)
    if theirs.content in (mine.content, base.content) and not unknown_used:
        return SchemaMapping({i: known[_key(by_id[i])] for i in used}, (), mine), {}
    began, since = base, [s for s in branch if s.id > base.id]
    parted = next((i for i in reversed(range(len(since))) if since[i].content == mine.content), None)
    if parted is not None and theirs.content != mine.content:  # main has the branch's columns up to there: published
        base, since = since[parted], since[parted + 1 :]
    apart = theirs.content != mine.content
    if apart and (mine.content != base.content or _takes_ids(base, main, since, withdrawn)):
        return _merged(table, began, main, branch, used, now_ms, withdrawn)
    new = _appended(base, mine, since, now_ms)
    known |= {_key(s): s.id for s in new}
    return SchemaMapping({i: known[_key(by_id[i])] for i in used}, tuple(new), new[-1] if new else mine), {}


def schemas_by_id(table: str, branch: Sequence[TableSchema], used: set[int]) -> dict[int, TableSchema]:
    """Return a branch's schemas by id.

    Raises:
        FormatError: one that a file was written with is missing.
    """
    found = {s.id: s for s in branch}
    missing = sorted(used - found.keys())
    if missing:
        raise FormatError(f"{table}: files of the branch were written with schema {missing[0]}, which is missing there")
    return found


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
) -> tuple[SchemaMapping, Mapping[int, int]]:
    """Bring columns together that changed on both sides; main gets a version for each schema that files were written
    with, and as its latest one the columns of both."""
    mine = main[-1]
    later = [s for s in main if s.id > base.id] or [mine]
    found = merge_columns(table, base, later, [s for s in branch if s.id > base.id] or [branch[-1]], withdrawn)
    if TableOptions(mine.options).text(_ICEBERG, "disabled").lower() != "disabled" and any(
        i != found.ids[i] for i in found.ids
    ):
        raise UnsupportedFeatureError(
            f"{table}: the branch's new columns have other field ids than main's, and option {_ICEBERG} needs the same "
            "ids in all files. Create a new branch from main's head, add the columns there, and repeat the correction"
        )
    known = {_key(s): s.id for s in main}
    by_id = {s.id: s for s in branch}
    new: list[TableSchema] = []
    ids: dict[int, int] = {}

    def next_version(like: TableSchema, fields: tuple[DataField, ...]) -> TableSchema:
        return _later(mine, len(new) + 1, replace(like, fields=fields, highest_field_id=found.highest), now_ms)

    for schema_id in sorted(used):
        version = next_version(by_id[schema_id], found.of_main(by_id[schema_id]))
        if _key(version) not in known:
            known[_key(version)] = version.id
            new.append(version)
        ids[schema_id] = known[_key(version)]
    latest = next_version(mine, found.fields)
    if new or latest.content != mine.content:
        new.append(latest)
    return SchemaMapping(ids, tuple(new), new[-1] if new else mine, latest_first=True), found.ids


def _appended(base: TableSchema, mine: TableSchema, later: Sequence[TableSchema], now_ms: int) -> list[TableSchema]:
    new: list[TableSchema] = []
    previous: Any = base.content
    for schema in later:
        if schema.content == previous:
            continue
        previous = schema.content
        new.append(_later(mine, len(new) + 1, schema, now_ms))
    return new


def _later(mine: TableSchema, by: int, like: TableSchema, now_ms: int) -> TableSchema:
    """Return main's version ``by`` after its newest, with the columns and keys of another one."""
    return replace(
        mine,
        id=mine.id + by,
        fields=like.fields,
        partition_keys=like.partition_keys,
        primary_keys=like.primary_keys,
        highest_field_id=max(mine.highest_field_id, like.highest_field_id),
        time_millis=now_ms,
        version=mine.next_version,
    )


def _key(schema: TableSchema) -> str:
    return repr(schema.content)
