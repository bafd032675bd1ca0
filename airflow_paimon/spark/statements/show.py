"""DESCRIBE and SHOW: what the catalog and a table's metadata say, as DataFrames with the columns of Spark's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.catalogs import Catalog, open_catalog
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.sql_text.call import ShowList
from airflow_paimon.core.table.inspect import live_partitions
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, find_databases, find_tables
from airflow_paimon.spark.arrow_frames import text_frame
from airflow_paimon.spark.jvm import kind_of, mapping_of, option_of, sequence_items
from airflow_paimon.spark.spark_types import is_declared, sql_name, sql_text, sql_type
from airflow_paimon.spark.statements.sql_request import SqlRequest, partition_of, parts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DESCRIBED = {"col_name": "string", "data_type": "string", "comment": "string"}


def show_list(request: SqlRequest, show: ShowList) -> DataFrame:
    """Run SHOW BRANCHES (without main) or SHOW TAGS (of the branch that is named)."""
    table = request.table(f"SHOW {show.what}", show.name)
    if show.what == "BRANCHES":
        return text_frame(request.spark, {"branch": "string"}, [(n,) for n in table.branch(MAIN).branch_names()])
    return text_frame(request.spark, {"tag": "string"}, [(n,) for n in table.tag_names()])


def _describe(request: SqlRequest, plan: Any) -> DataFrame:
    if mapping_of(plan.partitionSpec()):
        raise InvalidInputError("DESCRIBE ... PARTITION is not run; SELECT from db.`t$partitions` shows partitions")
    table = request.table("DESCRIBE", parts_of(plan.relation()))
    schema = table.schema()
    rows = [_described(f) for f in schema.fields]
    if schema.partition_keys:
        rows += [("# Partition Information", "", ""), ("# col_name", "data_type", "comment")]
        rows += [_described(schema.field(key)) for key in schema.partition_keys]
    if plan.isExtended():
        rows += [("", "", ""), ("# Detailed Table Information", "", "")]
        rows += [(name, text, "") for name, text in _details(table, schema)]
    return text_frame(request.spark, _DESCRIBED, rows)


def _described(field: DataField) -> tuple[str, str, str | None]:
    kind = sql_type(field.type)
    return field.name, kind if "STRUCT" in kind else kind.lower().replace(", ", ","), field.description


def _details(table: Table, schema: TableSchema) -> Sequence[tuple[str, str]]:
    snapshot = table.latest_snapshot_id()
    properties = ",".join(f"{key}={value}" for key, value in sorted(_properties(schema).items()))
    return [
        ("Name", table.label),
        *([("Comment", schema.comment)] if schema.comment else []),
        ("Location", table.store.uri),
        ("Provider", "paimon"),
        ("Schema Version", str(schema.id)),
        ("Latest Snapshot", "" if snapshot is None else str(snapshot)),
        ("Table Properties", f"[{properties}]"),
    ]


def _describe_column(request: SqlRequest, plan: Any) -> DataFrame:
    schema = request.table("DESCRIBE", parts_of(plan.relation())).schema()
    path = [str(p) for p in sequence_items(plan.column().nameParts())]
    found = [f for f in schema.fields if len(path) == 1 and f.name.lower() == path[0].lower()]
    if not found:
        raise InvalidInputError(
            f"DESCRIBE: there is no column {'.'.join(path)!r} (columns: {', '.join(schema.field_names)})"
        )
    name, kind, comment = _described(found[0])
    rows = [("col_name", name), ("data_type", kind), ("comment", "NULL" if comment is None else comment)]
    return text_frame(request.spark, {"info_name": "string", "info_value": "string"}, rows)


def _databases(request: SqlRequest, plan: Any) -> DataFrame:
    namespace = plan.namespace() if kind_of(plan) == "ShowNamespaces" else plan.child()
    if parts_of(namespace):
        raise InvalidInputError("SHOW DATABASES IN ...: databases of a warehouse have none below them")
    wanted = _wanted(option_of(plan.pattern()))
    names = [(name,) for name in sorted(_catalog(request).databases()) if wanted(name)]
    return text_frame(request.spark, {"namespace": "string"}, names)


def _tables(request: SqlRequest, plan: Any) -> DataFrame:
    """Without IN, the tables of the current database, or of all where none is chosen."""
    current = () if request.database is None else (request.database,)
    catalog, parts = _catalog(request), parts_of(plan.namespace()) or current
    wanted = _wanted(option_of(plan.pattern()))
    known = find_databases(catalog)
    if parts and (len(parts) > 1 or parts[0] not in known):
        raise NotFoundError(
            f"SHOW TABLES: {catalog.label} has no database {'.'.join(parts)!r} (it has {', '.join(sorted(known))})"
        )
    names = [
        table.name.partition(".")[::2]
        for database in (parts or sorted(known))
        for table in find_tables(catalog, database, lambda name: wanted(name.partition(".")[2]))
    ]
    columns = {"namespace": "string", "tableName": "string", "isTemporary": "boolean"}
    return text_frame(request.spark, columns, [(database, name, False) for database, name in names])


def _partitions(request: SqlRequest, plan: Any) -> DataFrame:
    table = request.table("SHOW PARTITIONS", parts_of(plan.table()))
    keys = table.schema().partition_keys
    if not keys:
        raise InvalidInputError(f"SHOW PARTITIONS: {table.label} is not partitioned")
    given = option_of(plan.pattern())
    asked_for = {} if given is None else partition_of(given.spec())
    if unknown := sorted(asked_for.keys() - {k.lower() for k in keys}):
        raise InvalidInputError(
            f"SHOW PARTITIONS: {unknown[0]!r} is not a partition column of {table.label} ({', '.join(keys)})"
        )
    found = live_partitions(table, table.latest_snapshot())
    if asked_for:
        spec = {key: asked_for[key.lower()] for key in keys if key.lower() in asked_for}
        wanted = choose_partitions(table.schema(), [spec], table.label)
        found = [values for values in found if wanted.matches(values)]
    texts = sorted(shown_partition(table.schema(), values) for values in found)
    return text_frame(request.spark, {"partition": "string"}, [(text,) for text in texts])


def _show_properties(request: SqlRequest, plan: Any) -> DataFrame:
    table = request.table("SHOW TBLPROPERTIES", parts_of(plan.table()))
    found, key = _properties(table.schema()), option_of(plan.propertyKey())
    rows = sorted(found.items())
    if key is not None:
        rows = [(str(key), found.get(str(key), f"Table {table.label} does not have property: {key}"))]
    return text_frame(request.spark, {"key": "string", "value": "string"}, rows)


def _columns(request: SqlRequest, plan: Any) -> DataFrame:
    schema = request.table("SHOW COLUMNS", parts_of(plan.child())).schema()
    return text_frame(request.spark, {"col_name": "string"}, [(name,) for name in schema.field_names])


def _show_create(request: SqlRequest, plan: Any) -> DataFrame:
    """Give the CREATE TABLE that makes such a table. Types that Spark's SQL can't spell are noted in a comment."""
    table = request.table("SHOW CREATE TABLE", parts_of(plan.child()))
    schema = table.schema()
    columns = ",\n".join(f"  {_column(f)}" for f in schema.fields)
    name = ".".join(map(sql_name, table.label.split(".", 1)))
    text = f"CREATE TABLE {name} (\n{columns})\nUSING paimon\n"
    if schema.partition_keys:
        text += f"PARTITIONED BY ({', '.join(map(sql_name, schema.partition_keys))})\n"
    if schema.comment is not None:
        text += f"COMMENT {sql_text(schema.comment)}\n"
    properties = {k: v for k, v in _properties(schema).items() if k not in ("provider", "comment", "path")}
    if properties:
        listed = ",\n".join(f"  {sql_text(key)} = {sql_text(value)}" for key, value in sorted(properties.items()))
        text += f"TBLPROPERTIES (\n{listed})\n"
    return text_frame(request.spark, {"createtab_stmt": "string"}, [(text,)])


def _column(field: DataField) -> str:
    text = f"{sql_name(field.name)} {sql_type(field.type)}{'' if field.type.nullable else ' NOT NULL'}"
    if field.description is not None:
        text += f" COMMENT {sql_text(field.description)}"
    return text if is_declared(field) else f"{text} /* {field.type} */"


def _properties(schema: TableSchema) -> dict[str, str]:
    """Return what Paimon's connector shows as properties of a table."""
    keys = {"primary-key": ",".join(schema.primary_keys)} if schema.primary_keys else {}
    comment = {} if schema.comment is None else {"comment": schema.comment}
    return {**schema.options, **keys, **comment, "provider": "paimon"}


def _catalog(request: SqlRequest) -> Catalog:
    return open_catalog(request.warehouse, request.storage_options)


def _wanted(pattern: Any) -> Callable[[str], bool]:
    """Return the condition of LIKE: ``*`` stands for anything, ``|`` divides alternatives, case doesn't count."""
    if pattern is None:
        return lambda _: True
    parts = [".*".join(map(re.escape, part.strip().split("*"))) for part in str(pattern).split("|")]
    found = re.compile("|".join(f"(?:{part})" for part in parts), re.IGNORECASE | re.DOTALL)
    return lambda name: found.fullmatch(name) is not None


RUN: Mapping[str, Callable[[SqlRequest, Any], DataFrame]] = {
    "DescribeRelation": _describe,
    "DescribeColumn": _describe_column,
    "ShowNamespaces": _databases,
    "ShowNamespacesCommand": _databases,
    "ShowTables": _tables,
    "ShowPartitions": _partitions,
    "ShowTableProperties": _show_properties,
    "ShowColumns": _columns,
    "ShowCreateTable": _show_create,
}
"""By the kind of Spark's plan."""
