"""``read_table``: a table as a DataFrame. Files that need no merge are read by Spark's own Parquet reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.paths import MAIN, without_system_table
from airflow_paimon.core.table.predicate import restrict
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.arguments import check_columns, timestamp_argument
from airflow_paimon.data.chain.branch_states import chain_read_mode, parse_gap_policy
from airflow_paimon.data.planner import plan_rows, read_schema
from airflow_paimon.data.read_groups import IN_SPARK, GroupPlan, Layer, ReadPlan
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.row_columns import ROW_COLUMNS, with_row_columns
from airflow_paimon.data.system_tables import check_system_table, system_fields
from airflow_paimon.spark.char_columns import filled_frame
from airflow_paimon.spark.filters import parse_where
from airflow_paimon.spark.native_scan import divide, native_frame
from airflow_paimon.spark.parquet_scan import NoParquetScanError
from airflow_paimon.spark.plan_text import aliased
from airflow_paimon.spark.shares import read_share, task_shares
from airflow_paimon.spark.spark_types import spark_schema, sql_name
from airflow_paimon.spark.tasks import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def read_table(
    spark: SparkSession,
    warehouse: str | None = None,
    name: str | None = None,
    branch: str = MAIN,
    version: int | str | None = None,
    timestamp: int | str | datetime | None = None,
    columns: Sequence[str] | None = None,
    where: str | Column | None = None,
    storage_options: Mapping[str, Any] | None = None,
    gap_policy: str = "empty",
    chain_read: str = "full",
    *,
    path: str | None = None,
) -> DataFrame:
    """Read one snapshot of a branch: the latest, or that of ``version`` (int = snapshot id, str = tag) or
    ``timestamp`` (ISO text or datetime with an offset, or epoch milliseconds).

    ``name`` may end in ``$audit_log`` or ``$ro``, of a branch as well (``db.t$branch_fix$audit_log``): see
    ``read_system_table``.

    ``where`` (SQL text or a Column) filters the rows, and also prunes partitions, files and row groups; the same
    condition in ``.where()`` after this call prunes only what Spark's own reader reads. The same applies to ``columns``
    and ``.select()``. Types are those of Paimon's own connector. A chain table's main view is read as ``read_arrow``
    reads it, ``gap_policy`` (``empty``, ``carry_forward``) and ``chain_read`` (``full``, ``incremental``, ``hybrid``)
    included: the branches, each at its newest snapshot, are merged where needed.

    Raises:
        NotFoundError: no such table, branch, snapshot or tag. InvalidInputError: an unknown column, a naive timestamp,
            ``chain_read`` other than ``full`` for a view that is not the main view of a chain table.
        UnsupportedFeatureError: the table has a feature with which the result would be wrong.
        FormatError: a file of the table is missing or corrupt (also when the rows are read). ConflictError: the branch
            was deleted or made anew while its files were planned.
    """
    name, system = without_system_table(name) if isinstance(name, str) and "$" in name else (name, None)
    table = open_table(warehouse, name, branch, storage_options, path=path)
    check_columns(table, columns)
    moment = timestamp_argument(timestamp)
    if system is not None:
        return _system_frame(spark, table, system, columns, where, version=version, timestamp=moment)
    policy = parse_gap_policy(gap_policy)
    mode = chain_read_mode(table, version, chain_read)
    wanted, needed, predicate = columns, columns, None
    if where is not None:
        schema = read_schema(table, version, moment)
        found = parse_where(spark, where, with_row_columns(schema))
        predicate = found.predicate
        wanted, needed = _columns_to_read(schema, columns, found.columns, str(where))
    read_request = ReadRequest(
        version=version, timestamp=moment, columns=needed, predicate=predicate, mode=mode, gap_policy=policy
    )
    planned = plan_rows(table, read_request, IN_SPARK)
    frame = filled_frame(frame_of(spark, planned), planned.read.fields)
    if where is not None:
        frame = frame.where(where)
    if wanted is not None and needed is not None and list(needed) != list(wanted):
        frame = frame.select(*map(sql_name, wanted))
    return aliased(frame, table.label, version, timestamp, columns, str(where), policy, mode)


def _system_frame(
    spark: SparkSession,
    table: Table,
    system: str,
    columns: Sequence[str] | None,
    where: str | Column | None,
    **at: Any,
) -> DataFrame:
    """Read a system table that has the table's rows; ``where`` prunes as far as it names columns of the table."""
    kind = check_system_table(table, system)
    schema = read_schema(table, at["version"], at["timestamp"])
    predicate, needed = None, columns
    if where is not None:
        whole = replace(schema, fields=system_fields(kind, schema))
        predicate, needed = parse_where(spark, where, whole).predicate, None
    predicate = restrict(predicate, set(schema.field_names))
    planned = plan_rows(table, ReadRequest(columns=needed, predicate=predicate, system=kind, **at), IN_SPARK)
    frame = filled_frame(frame_of(spark, planned), planned.read.fields)
    frame = frame if where is None else frame.where(where)
    return frame if columns is None else frame.select(*map(sql_name, columns))


def _columns_to_read(
    schema: TableSchema, columns: Sequence[str] | None, used: frozenset[str] | None, where: str
) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Return the columns of the result and those to read for it and a filter; None = all of the table's.

    ``used``: the columns that the filter uses; None = unknown.
    """
    known = with_row_columns(schema).field_names
    if used is None:
        used = frozenset(n for n in known if n not in ROW_COLUMNS or n in where.upper())
    if columns is None and not used & ROW_COLUMNS.keys():
        return None, None
    wanted = schema.field_names if columns is None else columns
    return wanted, list(dict.fromkeys([*wanted, *(n for n in known if n in used)]))


def frame_of(spark: SparkSession, plan: ReadPlan) -> DataFrame:
    """Return the DataFrame of a planned read. Only merges run in our own tasks, unless files are very many."""
    frames: list[DataFrame] = []
    if not plan.is_large:
        plan = replace(plan, groups=[_without_native(spark, group, frames) for group in plan.groups])
    shares = [[share] for share in task_shares(plan)]  # in our own tasks: any format, any storage
    if shares or not frames:
        frames.append(map_tasks(spark, shares, read_share, spark_schema(plan.read.fields)))
    return reduce(lambda one, other: one.union(other), frames)


def _without_native(spark: SparkSession, group: GroupPlan, frames: list[DataFrame]) -> GroupPlan:
    """Add the frames of the files that Spark's reader reads correctly; return what is left to read."""
    layers: list[Layer] = []
    for read, splits in group.layers:
        division = divide(spark, read, splits)
        left = division.merged
        try:
            frames += [native_frame(spark, read, key, files) for key, files in sorted(division.native.items())]
        except NoParquetScanError:
            left = splits
        layers.append((read, list(left)))
    return replace(group, layers=tuple(layers))
