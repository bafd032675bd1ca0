"""The rows that a correction's SQL can read without Spark: of ``branch``, ``main`` and further views."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from airflow_paimon.core.correction.plain_query import Views
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.partition_filter import partitions_where
from airflow_paimon.core.table.predicate import Predicate, columns_of
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.chain.scan import is_chain_read
from airflow_paimon.data.layers import Layer, plan_table_read
from airflow_paimon.data.memory_plan import memory_of
from airflow_paimon.data.read_schema import read_schema
from airflow_paimon.data.scan import plan_read
from airflow_paimon.spark.jobs.correction import Base
from airflow_paimon.spark.jobs.correction_sources import MAIN_VIEW, further_views
from airflow_paimon.spark.statements.plain import NotPlainError, matching
from airflow_paimon.spark.statements.tables import names_of
from airflow_paimon.spark.statements.views import viewed_table

_Version = int | str | None


class PlainViews:
    """What a request's SQL can read. ``memory_bytes``: how much of it this process may."""

    def __init__(self, context: Context, request: CorrectBranch, memory_bytes: int) -> None:
        self._context, self._request, self.memory_bytes = context, request, memory_bytes

    @cached_property
    def _tables(self) -> dict[str, tuple[Table, _Version]]:
        request, found = self._request, further_views(self._request)
        named = {
            name.lower(): viewed_table(request.warehouse, text, request.storage_options) for name, text in found.items()
        }
        return {MAIN_VIEW: (self._context.table, None), **named}

    @cached_property
    def _schemas(self) -> dict[str, TableSchema]:
        return {name: read_schema(table, version) for name, (table, version) in self._tables.items()}

    @cached_property
    def columns(self) -> Views:
        """The columns of each view but ``branch`` and those that show the branch, too: a statement reads them as its
        target, which it may have to compute again, or which other statements have changed before it.
        """
        branch = self._context.table.branch(self._request.branch)
        own = {name.lower() for name in names_of(branch, further_views(self._request))}
        return {name: schema.fields for name, schema in self._schemas.items() if name not in own}

    def given_name(self, view: str) -> str:
        """Return a view's name as the request gives it."""
        return next((name for name in further_views(self._request) if name.lower() == view), view)

    def schema(self, view: str) -> TableSchema:
        """Return the schema of a view but ``branch``."""
        return self._schemas[view]

    def fields(self, view: str, columns: Sequence[str]) -> tuple[DataField, ...]:
        """Return these columns of a view."""
        return tuple(self._schemas[view].field(name) for name in columns)

    def rows(self, view: str, columns: Sequence[str], condition: Predicate | None = None) -> pa.Table:
        """Read a view's rows for which a condition is true, at its newest state or that of its version.

        Raises:
            NotPlainError: they take more memory than there is, or only Spark reads them.
        """
        table, version = self._tables[view]
        if is_chain_read(table, version):
            raise NotPlainError(f"{table.label} is a chain table, whose rows Spark puts together")
        needed = _columns_read(self._schemas[view], columns, condition)
        layers = plan_table_read(table, version=version, columns=needed, predicate=condition)
        return self._read(layers, self._schemas[view], columns, condition)

    def rows_of_branch(self, base: Base, columns: Sequence[str], condition: Predicate | None) -> pa.Table:
        """Read the rows of the branch that a condition is true for, as a query on ``branch`` sees them.

        Raises:
            NotPlainError: they take more memory than there is.
        """
        schema = base.schema
        selection = partitions_where(condition, schema) if schema.partition_keys else None
        scan = plan_snapshot(base.table, base.head, schema, selection)
        layer = plan_read(
            scan,
            columns=_columns_read(schema, columns, condition),
            predicate=condition,
            time_travel=True,
            whole_buckets=bool(schema.primary_keys),
        )
        return self._read([layer], schema, columns, condition)

    def _read(
        self, layers: Sequence[Layer], schema: TableSchema, columns: Sequence[str], condition: Predicate | None
    ) -> pa.Table:
        """Read planned rows, if they fit, and if their columns are still those of the schema."""
        first = layers[0][0]
        if any(f.type != schema.field(f.name).type for f in first.fields):
            raise NotPlainError(f"{first.label}: its columns have changed")
        needed = memory_of((f for _, splits in layers for s in splits for f in s.files), schema)
        if needed > self.memory_bytes:
            raise NotPlainError(f"{first.label}: what it reads is more than {self.memory_bytes >> 20:,} MiB")
        batches = [b for read, splits in layers for b in matching(read, splits, condition, schema)]
        rows = pa.Table.from_batches(batches) if batches else first.output_schema.empty_table()
        return rows.select(list(columns))


def _columns_read(schema: TableSchema, columns: Sequence[str], condition: Predicate | None) -> tuple[str, ...]:
    """Return the columns of rows and of their condition, in the table's order."""
    used = {*columns, *(() if condition is None else columns_of(condition))}
    return tuple(name for name in schema.field_names if name in used)
