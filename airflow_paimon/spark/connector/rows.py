"""Prepares the rows of a correction for Paimon's connector: fits them to the table's columns and checks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.staging import Staging
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError, UnsupportedFeatureError, first_few
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.features import POSTPONED_WAY_OUT
from airflow_paimon.core.table.hidden_names import hidden
from airflow_paimon.core.table.masking import shown_value
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import PartitionChoice, StoredPartitions, shown_partition
from airflow_paimon.core.table.scan import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import not_visible
from airflow_paimon.data.files.arrow_types import ROW_KIND
from airflow_paimon.spark.arrow_frames import collect_arrow
from airflow_paimon.spark.connector.frames import partition_values_of
from airflow_paimon.spark.jobs.correction import Base
from airflow_paimon.spark.rows_in import check_frame
from airflow_paimon.spark.spark_types import spark_type, sql_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COUNT = hidden("count")
_NAMED, _LISTED = 5, 100
Counts = Mapping[tuple[Any, ...], int]


def check_target(branch: Table, schema: TableSchema, mode: str) -> None:
    """Refuse tables on which the branch would not show the rows that the connector writes.

    Raises:
        UnsupportedFeatureError: names the option and the way out.
    """
    options = TableOptions(schema.options)
    problem = None
    if options.chain_table:
        problem = "chain tables (option chain-table.enabled)", "leave engine out: the embedded engine does"
    elif options.flag("data-evolution.enabled"):
        way_out = (
            "change the branch with SQL of Paimon's own engine (UPDATE, MERGE INTO), and publish it with merge_branch"
        )
        problem = "tables with data-evolution.enabled=true", way_out
    elif schema.primary_keys and options.bucket == -2:
        problem = "primary-key tables with postponed buckets (bucket=-2)", POSTPONED_WAY_OUT
    elif schema.crosses_partitions and mode == "overwrite":
        # a key of the rows may live in another partition, where an overwrite of this one leaves it
        problem = "--mode overwrite of tables whose primary key lacks a partition column", "use --mode upsert"
    if problem is not None:
        raise UnsupportedFeatureError(
            f"{branch.label}: correct_branch with engine=connector does not write {problem[0]}; {problem[1]}",
            details={"feature": problem[0]},
        )


def require_visible(base: Base, chosen: Callable[[tuple[Any, ...]], bool]) -> None:
    """Refuse to correct partitions with committed rows that no query sees before they are compacted.

    Raises:
        UnsafeOperationError: names the partitions and the way out.
    """
    values = StoredPartitions(base.schema).values
    hidden = [
        e for e in not_visible(live_entries(base.table, base.head).values(), base.schema) if chosen(values(e.partition))
    ]
    if not hidden:
        return
    names = sorted({shown_partition(base.schema, values(e.partition)) for e in hidden})
    where = f"partition{'s' * (len(names) > 1)} {first_few(names, _NAMED)}" if names != [""] else "the table"
    rows = sum(e.file.row_count for e in hidden)
    database, _, name = base.table.name.partition(".")
    call = f"CALL sys.compact(table => '{database}.`{name}$branch_{base.table.branch_name}`')"
    raise UnsafeOperationError(
        f"{base.table.label}: {where} hold{'s' * (len(names) == 1)} {len(hidden)} files with {rows} committed "
        f"rows that wait for a compaction. No query sees them before, so a correction would lose them. Compact the "
        f"branch first, in a Spark session with Paimon's connector: {call}",
        details={"partitions": names[:_LISTED], "files": len(hidden), "rows": rows},
    )


def require_compacted(staging: Staging, base: Base) -> None:
    """Refuse files written by the connector whose rows the branch would not show."""
    before = {e.identifier for e in live_entries(base.table, base.head).values()} if staging.shares else set()
    staged = live_entries(staging.view, staging.view.latest_snapshot()).values()
    hidden = [e for e in not_visible(staged, base.schema) if e.identifier not in before]
    if hidden:
        raise UnsafeOperationError(
            f"{base.table.label}: Paimon's connector did not compact {len(hidden)} of the files that it wrote, so the "
            f"branch would not show their rows; nothing was published. Remove table options that put compaction off "
            f"(lookup-wait, lookup-compact)"
        )


def fitted(rows: DataFrame, schema: TableSchema, branch: Table) -> DataFrame:
    """Return the rows with the table's columns, in order and in its types.

    Raises:
        InvalidInputError: a column is missing, unknown or of another kind of type, or says which rows to delete.
    """
    from pyspark.sql import functions as sf

    if ROW_KIND in rows.columns:
        raise InvalidInputError(
            f"{branch.label}: engine=connector can't delete rows by {ROW_KIND}; overwrite the partition with the rows "
            f"that stay"
        )
    try:
        check_frame(rows, schema, branch.label)
    except UnsupportedFeatureError:  # a type that only the connector knows: it checks by itself
        return rows
    given = set(rows.columns)
    kept = [f for f in schema.fields if f.name in given]  # others have a default value
    return rows.select(*(sf.col(sql_name(f.name)).cast(spark_type(f.type)).alias(f.name) for f in kept))


def count_rows(given: DataFrame, rows: DataFrame, schema: TableSchema, branch: Table) -> Counts:
    """Count the rows by partition, and check each value: ``rows`` are those ``given``, in the table's types.

    Raises:
        InvalidInputError: a value is null where NOT NULL, too long, or not one of its column's type.
    """
    from pyspark.sql import functions as sf

    partitions = [sf.col(sql_name(k)).alias(f"__p{i}") for i, k in enumerate(schema.partition_keys)]
    problems = _problems(given, rows, schema)
    sums = [sf.sum(c.cast("long")).alias(f"__x{i}") for i, (c, _) in enumerate(problems)]
    counted = collect_arrow(given.groupBy(*partitions).agg(sf.count(sf.lit(1)).alias(_COUNT), *sums))
    for i, (_, what) in enumerate(problems):
        bad = sum(n or 0 for n in counted.column(f"__x{i}").to_pylist())
        if bad:
            raise InvalidInputError(f"{branch.label}: {bad} rows to write have {what}")
    found = partition_values_of(counted, schema)
    return {v: n for v, n in zip(found, counted.column(_COUNT).to_pylist(), strict=True) if n}


def _problems(given: DataFrame, rows: DataFrame, schema: TableSchema) -> list[tuple[Column, str]]:
    from pyspark.sql import functions as sf

    before, after = ({f.name: f.dataType for f in frame.schema.fields} for frame in (given, rows))
    out: list[tuple[Column, str]] = []
    for field in schema.fields:
        if field.name not in after:
            continue
        column, where = sf.col(sql_name(field.name)), f"column {field.name!r}"
        if not field.type.nullable or field.name in schema.primary_keys:
            out.append((column.isNull(), f"a null in {where}, which is NOT NULL"))
        if before[field.name] != after[field.name] and isinstance(field.type, AtomicType):
            there = column.cast(after[field.name])
            lost = column.isNotNull() & ~there.cast(before[field.name]).eqNullSafe(column)
            out.append((lost, f"a value in {where} that is not a(n) {field.type}"))
        if field.type.root in ("CHAR", "VARCHAR") and isinstance(field.type, AtomicType):
            out.append((sf.length(column) > field.type.args[0], f"a text in {where} that is longer than {field.type}"))
    return out


def check_rows(
    rows: DataFrame, counts: Counts, choice: PartitionChoice, schema: TableSchema, branch: Table, request: CorrectBranch
) -> None:
    """Refuse rows outside the chosen partitions, and keys that come twice where one of the rows would be lost.

    Raises:
        InvalidInputError: names them.
    """
    if request.mode == "overwrite" or request.partitions:
        strange = next((v for v in counts if not choice.matches(v)), None)
        if strange is not None:
            raise InvalidInputError(
                f"{branch.label}: the rows hold partition {shown_partition(schema, strange)}, which is not among those "
                f"to correct: name it with --partitions, or filter it out"
            )
    if schema.primary_keys and TableOptions(schema.options).merge_engine in ("deduplicate", "first-row"):
        _check_unique(rows, schema, branch)


def _check_unique(rows: DataFrame, schema: TableSchema, branch: Table) -> None:
    from pyspark.sql import functions as sf

    keys = list(map(sql_name, schema.primary_keys))
    twice = rows.groupBy(*keys).agg(sf.count(sf.lit(1)).alias(_COUNT)).where(sf.col(_COUNT) > 1)
    some = twice.agg(sf.count(sf.lit(1)), sf.first(sf.struct(*keys))).collect()[0]
    if some[0]:
        named = ", ".join(f"{n} = {shown_value(schema, n, some[1][n])}" for n in schema.primary_keys)
        raise InvalidInputError(
            f"{branch.label}: the rows hold {some[0]} primary keys more than once, such as {named}: a key may "
            f"occur only once, as it is undefined which of its rows is right"
        )
