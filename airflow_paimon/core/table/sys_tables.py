"""Paimon's tables about all tables of a warehouse: ``sys.tables`` and ``sys.all_table_options``, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from airflow_paimon.core.catalogs import Catalog
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.table import Table, find_tables

DATABASE = "sys"
_TEXT, _LONG, _FLAG = pa.string(), pa.int64(), pa.bool_()
_OF_TABLES = {
    "database_name": _TEXT, "table_name": _TEXT, "table_type": _TEXT, "partitioned": _FLAG, "primary_key": _FLAG,
    "owner": _TEXT, "created_at": _LONG, "created_by": _TEXT, "updated_at": _LONG, "updated_by": _TEXT,
    "record_count": _LONG, "file_size_in_bytes": _LONG, "file_count": _LONG, "last_file_creation_time": _LONG,
}  # fmt: skip
"""What only a server keeps is null, as in Paimon: owners, times, sizes. ``record_count`` is the head's."""
_OF_OPTIONS = {"database_name": _TEXT, "table_name": _TEXT, "key": _TEXT, "value": _TEXT}


def sys_table(catalog: Catalog, name: str) -> pa.Table | None:
    """Return a table of the database ``sys``; None: there is no such one. Tables that can't be opened are left out."""
    if name.lower() not in _TABLES:
        return None
    columns, rows_of = _TABLES[name.lower()]
    rows = [row for table in _tables(catalog) for row in rows_of(table)]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(columns.items())))


def _tables(catalog: Catalog) -> Iterator[Table]:
    for database in sorted(catalog.databases()):
        yield from find_tables(catalog, database)


def _about(table: Table) -> Iterator[Mapping[str, object]]:
    try:
        schema, head = table.schema(), table.latest_snapshot()
    except PaimonError:
        return
    yield _named(table) | {
        "table_type": schema.options.get("type", "table"),
        "partitioned": bool(schema.partition_keys),
        "primary_key": bool(schema.primary_keys),
        "record_count": 0 if head is None else head.total_record_count,
    }


def _options(table: Table) -> Iterator[Mapping[str, object]]:
    try:
        found = table.schema().options
    except PaimonError:
        return
    for key, value in sorted(found.items()):
        yield _named(table) | {"key": key, "value": value}


def _named(table: Table) -> dict[str, object]:
    database, _, name = table.name.partition(".")
    return {"database_name": database, "table_name": name}


_Rows = Callable[[Table], Iterator[Mapping[str, object]]]
_TABLES: Mapping[str, tuple[Mapping[str, pa.DataType], _Rows]] = {
    "tables": (_OF_TABLES, _about),
    "all_table_options": (_OF_OPTIONS, _options),
}
