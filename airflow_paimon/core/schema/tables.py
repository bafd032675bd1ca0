"""Create a table; alter its options and columns, per branch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.commit.committer import put_new, require_committable
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType
from airflow_paimon.core.schema.option_checks import check_options
from airflow_paimon.core.schema.schema_plan import (
    RemoveOption,
    SchemaChange,
    SetOption,
    apply_changes,
    new_schema,
)
from airflow_paimon.core.table.lineage import verified_lineage
from airflow_paimon.core.table.options import PROTECTIVE_OPTIONS, TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_table

_ATTEMPTS = 20


def create_table(
    warehouse: str,
    name: str,
    columns: Sequence[tuple[str, str | DataType]],
    *,
    partition_keys: Sequence[str] = (),
    primary_keys: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    comment: str | None = None,
    comments: Mapping[str, str] | None = None,
    if_exists: str = "fail",
    storage_options: Mapping[str, Any] | None = None,
) -> Table:
    """Create a table of a filesystem warehouse. ``columns``: (name, type in Paimon's notation), in order.

    Raises:
        AlreadyExistsError: it exists (with ``if_exists="skip"``: with other columns or keys). InvalidInputError: a rule
            is broken, or ``if_exists`` is neither fail nor skip (a table is never replaced).
    """
    if if_exists not in ("fail", "skip"):
        raise InvalidInputError(f"create_table: if_exists must be 'fail' or 'skip', got {if_exists!r}")
    table = open_table(warehouse, name, storage_options=storage_options)
    if table.branch_name != MAIN:
        raise InvalidInputError(f"{name}: a table can't be created through a branch; use create_branch")
    require_committable(table)
    schema = new_schema(
        columns,
        partition_keys=partition_keys,
        primary_keys=primary_keys,
        options=options,
        comment=comment,
        comments=comments,
        now_ms=int(time.time() * 1000),
    )
    check_options(schema)
    try:
        if table.exists():
            raise AlreadyExistsError(f"Table {table.name} exists", table=table.name)
        put_new(table, table.paths.schema(0), schema.to_bytes())
    except AlreadyExistsError as error:
        current = table.schema()
        if if_exists == "skip" and _same(current, schema):
            return table
        raise AlreadyExistsError(
            f"Table {table.name} exists at {table.store.uri}"
            + (" with other columns or keys" if if_exists == "skip" else "; if_exists='skip' uses it as it is"),
            table=table.name,
        ) from error
    return table


def _same(current: TableSchema, wanted: TableSchema) -> bool:
    def shape(s: TableSchema) -> object:
        return [(f.name, str(f.type)) for f in s.fields], s.partition_keys, s.primary_keys

    return shape(current) == shape(wanted)


def alter_table(table: Table, changes: Sequence[SchemaChange]) -> TableSchema:
    """Apply changes to one branch's schema as one new version; other branches keep theirs.

    Raises:
        InvalidInputError: a rule is broken, or columns of a chain table's branch are to change: its branches must have
            the same (``alter_chain_table``). UnsafeOperationError: the option keeps a branch's files from expiring.
        ConflictError: concurrent changes kept winning.
    """
    if not changes:
        raise InvalidInputError(f"{table.label}: name at least one change", table=table.name)
    check_alterable(table, changes)
    for _ in range(_ATTEMPTS):
        current = table.require().schema()
        has_data = table.latest_snapshot_id() is not None
        new = apply_changes(current, changes, has_data=has_data, now_ms=int(time.time() * 1000))
        try:
            put_new(table, table.paths.schema(new.id), new.to_bytes())
        except AlreadyExistsError:
            continue
        return new
    raise ConflictError(f"{table.label}: concurrent schema changes kept winning; try again", table=table.name)


def check_alterable(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Refuse changes of a branch's protection, or of one branch of a chain table; see ``alter_table``."""
    require_committable(table)
    _check_protection(table, changes)
    _check_chain(table, changes)


def _check_chain(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Refuse changes to one branch's columns: if they differ, every read of a chain table fails in Paimon."""
    if all(isinstance(c, SetOption | RemoveOption) for c in changes):
        return
    options = TableOptions(table.branch(MAIN).require().schema().options)
    parts = (MAIN, options.snapshot_branch, options.delta_branch)
    if options.chain_table and all(parts) and table.branch_name in parts:
        raise InvalidInputError(
            f"{table.label} is a branch of a chain table, whose three branches must have the same columns; use "
            f"alter_chain_table, which alters them together",
            table=table.name,
        )


def _check_protection(table: Table, changes: Sequence[SchemaChange]) -> None:
    touched = [c.key for c in changes if isinstance(c, SetOption | RemoveOption) and c.key in PROTECTIVE_OPTIONS]
    if not touched or table.branch_name == MAIN:
        return
    lineage = verified_lineage(table.branch(MAIN), table.branch_name)
    if lineage is not None and lineage.snapshot_id is not None:
        raise UnsafeOperationError(
            f"{table.label}: option {touched[0]} keeps every engine from expiring this branch, which shares files with "
            f"{lineage.from_branch}; delete the branch when you are done with it instead",
            table=table.name,
        )
