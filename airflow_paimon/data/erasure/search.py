"""Counts the rows of stored files for which a condition holds: the physical ones, whether readers see them or not.

Of a file only the columns of the condition are read, and only if its statistics don't rule the condition out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.erasure.stored_files import StoredFile
from airflow_paimon.core.errors import FormatError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.core.sql_text.condition import parse_condition
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.features import check_file
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import is_outside
from airflow_paimon.core.table.predicate import Bounds, Condition, Predicate, columns_of
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import KEY_PREFIX, ROW_ID, SEQUENCE_NUMBER, VALUE_KIND, repeated
from airflow_paimon.data.files.evolution import plan_mapping
from airflow_paimon.data.files.pruning import (
    Filter,
    keep,
    key_bounds,
    partition_bounds,
    value_bounds,
)
from airflow_paimon.data.files.read import column_names, read_data_file
from airflow_paimon.data.read import filtered, row_group_filter
from airflow_paimon.data.where import to_expression

_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A condition on the rows of a table. ``schema``: the columns that it names."""

    condition: Predicate
    where: pc.Expression
    schema: TableSchema

    @property
    def fields(self) -> tuple[DataField, ...]:
        """The columns of the condition."""
        names = columns_of(self.condition)
        return tuple(f for f in self.schema.fields if f.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """``rows``: of the file, for which the condition holds. ``read``: whether the file was opened for that.

    ``problem``: why it can't be told.
    """

    file: StoredFile
    rows: int = 0
    read: bool = False
    problem: str | None = None


def parse_search(text: str, schema: TableSchema) -> Search:
    """Parse a condition such as ``user_id = 17``; raises as ``parse_condition`` does, but repeats no value of it.

    Raises:
        UnsupportedFeatureError: it compares a column of type CHAR other than for equality.
    """
    condition = _padded(parse_condition(text, schema, hidden=True), schema)
    return Search(condition=condition, where=to_expression(condition, schema), schema=schema)


def _padded(condition: Predicate, schema: TableSchema) -> Predicate:
    """Let texts of CHAR columns match as they are, without blanks at their end, and padded: engines store any of these.

    Raises:
        UnsupportedFeatureError: see ``parse_search``.
    """
    if not isinstance(condition, Condition):
        return replace(condition, parts=tuple(_padded(p, schema) for p in condition.parts))
    data_type = schema.field(condition.column).type
    if not isinstance(data_type, AtomicType) or data_type.root != "CHAR" or condition.op.startswith("is "):
        return condition
    if condition.op not in ("=", "in"):
        raise UnsupportedFeatureError(
            f"Column {condition.column!r} is a CHAR, which engines store with blanks at its end or without, so it is "
            f"not compared by {condition.op}; use = or IN"
        )
    length = data_type.args[0] if data_type.args else 1
    values = condition.value if condition.op == "in" else (condition.value,)
    forms = [form for v in values for form in (v, v.rstrip(" "), v.ljust(length))]
    return Condition(condition.column, "in", tuple(dict.fromkeys(forms)))


def search_files(
    table: Table, search: Search, files: Sequence[StoredFile], schemas: Sequence[TableSchema]
) -> list[Searched]:
    """Search files, several at a time, in order; one that has been deleted meanwhile is left out.

    ``schemas``: all versions of the columns, for files without one.
    """
    found = map_parallel(lambda file: _searched(table, search, file, schemas), files, _AT_ONCE)
    return [one for one in found if one is not None]


def _searched(table: Table, search: Search, file: StoredFile, schemas: Sequence[TableSchema]) -> Searched | None:
    if file.problem is not None:
        return Searched(file=file, problem=file.problem)
    try:
        if file.entry is None:
            return Searched(file=file, rows=_in_unlisted(table, search, file, schemas), read=True)
        return _in_listed(table, search, file)
    except PaimonError as error:
        outside = is_outside(file.path)
        if isinstance(error, FormatError) and not outside and not table.store.exists(file.path):
            return None
        return Searched(file=file, problem=error.message)


def _in_listed(table: Table, search: Search, file: StoredFile) -> Searched:
    """Search a file that a manifest names."""
    assert file.entry is not None and file.schema is not None
    data, written, wanted = file.entry.file, file.schema, search.schema
    _refuse_former(search, written)
    values = StoredPartitions(written).values(file.entry.partition)
    fixed = partition_bounds(wanted, values)
    rows = Filter(predicate=search.condition)
    bounds = {**value_bounds(data, written, wanted), **_key_bounds(file, wanted), **fixed}
    if not keep(rows, [bounds], wanted)[0]:
        return Searched(file=file)
    constant = dict(zip(wanted.partition_keys, values, strict=True))
    needed = tuple(f for f in search.fields if f.name not in constant)
    if not needed:  # the partition decides
        one = pa.RecordBatch.from_arrays([pa.nulls(1)], names=[""])
        return Searched(file=file, rows=data.row_count * _matching(search, one, constant))
    check_file(data, written, table=table.label)
    mapping = plan_mapping(written.fields, needed)
    batches = read_data_file(
        table.store,
        file.path,
        mapping.file_fields,
        legacy_ltz=TableOptions(written.options).flag("orc.timestamp-ltz.legacy.type", True),
        keep_row_group=row_group_filter(rows, mapping, fixed, wanted),
    )
    counted = 0
    for found in batches:
        counted += _matching(search, mapping.apply(found.rows), constant)
    return Searched(file=file, rows=counted, read=True)


def _refuse_former(search: Search, written: TableSchema) -> None:
    """Refuse a file with a column of the condition's name that the table has dropped since: it may hold the value."""
    living = {f.id for f in search.schema.fields}
    for field in search.fields:
        if any(f.name == field.name and f.id not in living for f in written.fields):
            raise UnsupportedFeatureError(
                f"its column {field.name!r} is not the one that the table has under that name, but one that was dropped"
            )


def _key_bounds(file: StoredFile, wanted: TableSchema) -> dict[str, Bounds]:
    """The bounds of the keys; none if the file was written by a table with other ones."""
    assert file.entry is not None and file.schema is not None
    written = {f.id: f.type for f in file.schema.key_fields}
    same = written == {f.id: f.type for f in wanted.key_fields}
    return key_bounds(file.entry.file, wanted) if same and wanted.primary_keys else {}


def _matching(search: Search, rows: pa.RecordBatch, constant: Mapping[str, object]) -> int:
    columns = {name: rows.column(name) for name in rows.schema.names}
    for field in search.fields:
        if field.name in constant:
            columns[field.name] = repeated(constant[field.name], field.type, rows.num_rows)
    return filtered(pa.RecordBatch.from_pydict(columns), search.where).num_rows if rows.num_rows else 0


def _in_unlisted(table: Table, search: Search, file: StoredFile, schemas: Sequence[TableSchema]) -> int:
    """Search a file that no manifest names: by the names that the columns had in any version of the table."""
    names = [{f.name: None for s in schemas for f in s.fields if f.id == field.id} for field in search.fields]
    known = list(dict.fromkeys(name for some in names for name in some))
    reused = [n for n in known if len({f.id for s in schemas for f in s.fields if f.name == n}) > 1]
    if reused:
        raise FormatError(f"no manifest records which version of column {reused[0]!r} this file has")
    zoned = next((f.name for f in search.fields if f.type.root == "TIMESTAMP_LTZ"), None)
    if zoned is not None and file.name.endswith(".orc"):
        raise FormatError(
            f"no manifest records in which of two ways this ORC file stores the times of column {zoned!r}"
        )
    types = {name: f.type for f, some in zip(search.fields, names, strict=True) for name in some}
    fields = [DataField(at, name, types[name]) for at, name in enumerate(known)]
    counted = 0
    for found in read_data_file(table.store, file.path, fields):
        columns = [pc.coalesce(*(found.rows.column(n) for n in some)) for some in names]
        rows = pa.RecordBatch.from_arrays(columns, names=[f.name for f in search.fields])
        counted += _matching(search, rows, {})
    versions = {frozenset(s.field_names) for s in schemas}
    if not counted and frozenset(_own_columns(table, file.path)) not in versions:
        raise FormatError(
            "it has columns of no version of the table, such as of a deleted branch, and no manifest defines them; "
            "remove_orphan_files deletes it if nothing refers to it"
        )
    return counted


def _own_columns(table: Table, path: str) -> list[str]:
    """Return the columns in a file but those that Paimon adds."""
    own = (KEY_PREFIX, SEQUENCE_NUMBER, VALUE_KIND, ROW_ID)
    with table.store.open_input(path) as source:
        return [name for name in column_names(source, path) if not name.startswith(own)]
