"""Create a table, and check what may be altered of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.chain.setup import check_new_table, check_one_branch
from airflow_paimon.core.commit.committer import put_new, require_committable
from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType
from airflow_paimon.core.schema.option_checks import check_options
from airflow_paimon.core.schema.schema_plan import (
    RemoveOption,
    SchemaChange,
    SetOption,
    check_opening,
    new_schema,
)
from airflow_paimon.core.table.lineage import verified_lineage
from airflow_paimon.core.table.options import PROTECTIVE_OPTIONS, READ_TOGETHER
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_table


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
            is broken (also of chain tables), or ``if_exists`` is neither fail nor skip (a table is never replaced).
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
    check_opening(schema)
    _check_alone(schema, table.name)
    check_new_table(schema, table.name)
    try:
        if table.exists():
            raise AlreadyExistsError(f"Table {table.name} exists")
        put_new(table, table.paths.schema(0), schema.to_bytes())
    except AlreadyExistsError as error:
        current = table.schema()
        if if_exists == "skip" and _same(current, schema):
            return table
        raise AlreadyExistsError(
            f"Table {table.name} exists at {table.store.uri}"
            + (" with other columns or keys" if if_exists == "skip" else "; if_exists='skip' uses it as it is")
        ) from error
    return table


def _check_alone(schema: TableSchema, table: str) -> None:
    for key in READ_TOGETHER:
        if schema.options.get(key, "").strip() not in ("", MAIN):
            raise InvalidInputError(
                f"{table}: a new table has no branch that {key}={schema.options[key]} could name; create the table, "
                f"then the branch, then set the option with alter_table"
            )


def _same(current: TableSchema, wanted: TableSchema) -> bool:
    def shape(s: TableSchema) -> object:
        return [(f.name, str(f.type)) for f in s.fields], s.partition_keys, s.primary_keys

    return shape(current) == shape(wanted)


def check_alterable(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Refuse changes of a branch's protection, or of one branch of a chain table.

    Raises:
        InvalidInputError: a chain table's branches would not be one chain table any more (``alter_chain_table``).
        UnsafeOperationError: the option keeps a branch's files from expiring.
    """
    require_committable(table)
    _check_protection(table, changes)
    _check_other_branch(table, changes)
    check_one_branch(table, changes)


def _check_other_branch(table: Table, changes: Sequence[SchemaChange]) -> None:
    """Refuse a branch to read together with that does not exist: every read would fail from then on."""
    for change in changes:
        if not isinstance(change, SetOption) or change.key not in READ_TOGETHER:
            continue
        name = change.value.strip()
        if name and not table.branch(name).exists():
            raise InvalidInputError(
                f"{table.label}: {change.key}={name} names no branch of the table (its branches: "
                f"{', '.join([MAIN, *table.branch_names()])}); create the branch first"
            )


def _check_protection(table: Table, changes: Sequence[SchemaChange]) -> None:
    touched = [c.key for c in changes if isinstance(c, SetOption | RemoveOption) and c.key in PROTECTIVE_OPTIONS]
    if not touched or table.branch_name == MAIN:
        return
    lineage = verified_lineage(table.branch(MAIN), table.branch_name)
    if lineage is not None and lineage.snapshot_id is not None:
        raise UnsafeOperationError(
            f"{table.label}: option {touched[0]} keeps every engine from expiring this branch, which shares files with "
            f"{lineage.from_branch}; delete the branch when you are done with it instead"
        )
