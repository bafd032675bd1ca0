"""ALTER TABLE on main or a branch: the changes of one statement are one schema version, by ``alter_table``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import AlterTable
from airflow_paimon.core.schema.schema_plan import (
    AddColumn,
    CommentColumn,
    CommentTable,
    DropColumn,
    MoveColumn,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
    WidenColumn,
)
from airflow_paimon.core.schema.tables import alter_by
from airflow_paimon.core.table.inspect import live_partitions
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partition_text import partition_text
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.drop import drop_partitions
from airflow_paimon.spark.jvm import kind_of, mapping_of, option_of, sequence_items
from airflow_paimon.spark.statements.create import declared_type
from airflow_paimon.spark.statements.sql_request import OPERATION, SqlRequest, partition_of, parts_of

ALTER = "ALTER TABLE"
_FIXED = ("primary-key", "partition", "path", "provider", "location", "owner")
"""Properties that describe a table and are no options of it."""


def _alter(request: SqlRequest, plan: Any) -> dict[str, Any]:
    table = request.table(ALTER, parts_of(plan.table()))
    changes = _CHANGES[kind_of(plan)](plan, table.schema())
    if not changes:
        return request.result(
            ALTER, table.name, table.branch_name, changed=False, details={"schema_id": table.schema().id}
        )
    given = {
        "warehouse": request.warehouse,
        "table": table.name,
        "branch": table.branch_name,
        "change": [request.statement],
        "operation_id": request.operation_id,
        "storage_options": request.storage_options,
    }
    alter = build_request("alter_table", given)
    assert isinstance(alter, AlterTable)
    with verified_commits():
        result = alter_by(open_context(alter), alter, changes).to_json()
    return {**result, "operation": OPERATION, "details": {"statement": ALTER, **result["details"]}}


def _drop_partitions(request: SqlRequest, plan: Any) -> dict[str, Any]:
    """Each partition is to be named whole, as Paimon's connector asks."""
    table = request.table(ALTER, parts_of(plan.table()))
    keys = table.schema().partition_keys
    wanted = [_partition(table, keys, partition_of(spec.spec())) for spec in sequence_items(plan.parts())]
    if not plan.ifExists():
        known = live_partitions(table, table.latest_snapshot())
        for partition in wanted:
            if not any(map(choose_partitions(table.schema(), [partition], table.label).matches, known)):
                raise NotFoundError(
                    f"{ALTER}: {table.label} has no partition {partition_text(partition)}; DROP IF EXISTS drops those "
                    "that exist"
                )
    result = drop_partitions(table, wanted, request.operation_id, writers_stopped=request.writers_stopped)
    details = {"statement": f"{ALTER} DROP PARTITION", **result["details"]}
    return {**result, "operation": OPERATION, "details": details}


def _partition(table: Table, keys: Sequence[str], given: Mapping[str, str | None]) -> dict[str, str | None]:
    if set(given) != {key.lower() for key in keys}:
        raise InvalidInputError(
            f"{ALTER} {table.label} DROP PARTITION: name every partition column and no other ({', '.join(keys)}); "
            f"DELETE FROM {table.name} WHERE ... drops several partitions"
        )
    return {key: given[key.lower()] for key in keys}


def _added(plan: Any, schema: TableSchema) -> list[SchemaChange]:
    return [_add(c, schema) for c in sequence_items(plan.columnsToAdd())]


def _add(column: Any, schema: TableSchema) -> SchemaChange:
    name = str(column.colName())
    if column.path().isDefined():
        raise _nested([*_path(column.path().get()), name])
    if column.default().isDefined():
        raise UnsupportedFeatureError(f"{ALTER}: DEFAULT of column {name!r} is not executed; leave it out")
    kind = declared_type(name, column.dataType(), bool(column.nullable()))
    position = option_of(column.position())
    after = None if position is None else _after(position, schema)
    return AddColumn(name=name, type=kind, comment=option_of(column.comment()), after=after)


def _after(position: Any, schema: TableSchema) -> str:
    """Return the column that a position is after, "" for the first place."""
    place = position.position()
    return "" if kind_of(place) == "First" else _known(str(place.column()), schema)


def _renamed(plan: Any, schema: TableSchema) -> list[SchemaChange]:
    return [RenameColumn(name=_column(plan.column(), schema), to_name=str(plan.newName()))]


def _dropped(plan: Any, schema: TableSchema) -> list[SchemaChange]:
    names = [_column(c, schema) for c in sequence_items(plan.columnsToDrop())]
    return [DropColumn(name=n) for n in names if not plan.ifExists() or n in schema.field_names]


def _altered(plan: Any, schema: TableSchema) -> list[SchemaChange]:
    return [change for spec in sequence_items(plan.specs()) for change in _changes_of(spec, schema)]


def _changes_of(spec: Any, schema: TableSchema) -> list[SchemaChange]:
    name, found = _column(spec.column(), schema), list[SchemaChange]()
    if spec.newDataType().isDefined():
        found.append(WidenColumn(name=name, type=declared_type(name, spec.newDataType().get(), True)))
    if spec.newNullability().isDefined():
        raise UnsupportedFeatureError(
            f"{ALTER}: NOT NULL of column {name!r} can't be changed; a rule of airflow-paimon.required-checks refuses "
            f"nulls in new rows"
        )
    if spec.newDefaultExpression().isDefined() or spec.dropDefault():
        raise UnsupportedFeatureError(f"{ALTER}: DEFAULT of column {name!r} is not executed")
    if spec.newComment().isDefined():
        found.append(CommentColumn(name=name, comment=str(spec.newComment().get())))
    if spec.newPosition().isDefined():
        found.append(MoveColumn(name=name, after=_after(spec.newPosition().get(), schema)))
    return found


def _set(plan: Any, schema: TableSchema) -> list[SchemaChange]:
    properties = mapping_of(plan.properties())
    _check_properties(properties)
    return [
        CommentTable(comment=value) if key == "comment" else SetOption(key=key, value=value)
        for key, value in properties.items()
    ]


def _unset(plan: Any, schema: TableSchema) -> list[SchemaChange]:
    keys = [str(key) for key in sequence_items(plan.propertyKeys())]
    _check_properties(keys)
    return [CommentTable(comment=None) if key == "comment" else RemoveOption(key=key) for key in keys]


def _check_properties(keys: Iterable[str]) -> None:
    for key in keys:
        if key in _FIXED:
            raise InvalidInputError(
                f"{ALTER}: the property {key!r} describes the table and can't be changed; make a new table and INSERT "
                f"INTO it"
            )


def _column(node: Any, schema: TableSchema) -> str:
    path = _path(node)
    if len(path) > 1:
        raise _nested(path)
    return _known(path[0], schema)


def _known(name: str, schema: TableSchema) -> str:
    """Return the column as the table spells it: Spark's names don't mind case. One that isn't there stays."""
    return next((n for n in schema.field_names if n.lower() == name.lower()), name)


def _path(node: Any) -> list[str]:
    return [str(part) for part in sequence_items(node.name())]


def _nested(path: Sequence[str]) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{ALTER}: {'.'.join(path)} is a field inside of a column, and only whole columns are altered here; add a new "
        f"column and fill it, or alter the table with Paimon's own connector"
    )


def _not_renamed(request: SqlRequest, plan: Any) -> dict[str, Any]:
    raise UnsupportedFeatureError(
        f"{ALTER} ... RENAME TO is not executed: object stores can't rename a table in one step. Create the new table "
        f"with CREATE TABLE ... AS SELECT"
    )


_CHANGES: Mapping[str, Callable[[Any, TableSchema], list[SchemaChange]]] = {
    "AddColumns": _added,
    "RenameColumn": _renamed,
    "DropColumns": _dropped,
    "AlterColumns": _altered,
    "SetTableProperties": _set,
    "UnsetTableProperties": _unset,
    "CommentOnTable": lambda plan, _: [CommentTable(comment=str(plan.comment()))],
}
RUN: Mapping[str, Callable[[SqlRequest, Any], dict[str, Any]]] = {
    **dict.fromkeys(_CHANGES, _alter),
    "DropPartitions": _drop_partitions,
    "RenameTable": _not_renamed,
}
"""By the kind of Spark's plan."""
