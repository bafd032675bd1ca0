"""Snapshots as DataFrames read by Paimon's connector, in the columns of a given schema."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.errors import NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.arrow_values import to_values
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import DataField, DataType
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.spark.spark_types import spark_schema, spark_type, sql_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads tables of one warehouse through the session's Paimon catalog ``catalog``."""

    spark: SparkSession
    catalog: str

    def name(self, view: Table) -> str:
        """Return the name by which Spark finds a view."""
        return ".".join(map(sql_name, self.parts(view)))

    def parts(self, view: Table) -> tuple[str, str, str]:
        """Return the parts of that name: catalog, database, table with branch."""
        database, _, table = view.name.partition(".")
        branch = "" if view.branch_name == MAIN else f"$branch_{view.branch_name}"
        return self.catalog, database, f"{table}{branch}"

    def read(self, view: Table, snapshot: Snapshot | None, schema: TableSchema) -> DataFrame:
        """Return the rows of a snapshot in the columns of ``schema``, matched by field id.

        Raises:
            NotFoundError: neither the snapshot nor a tag on it is left.
            UnsupportedFeatureError: only a tag holds it, and the columns were altered since.
        """
        if snapshot is None:
            return self.spark.createDataFrame([], spark_schema(schema.fields))
        own = view.schema(snapshot.schema_id)
        frame = self._pinned(view, snapshot, altered=own.content != view.schema().content)
        if own.content == schema.content:
            return frame
        by_id = {f.id: f for f in own.fields}
        return frame.select(*(_column(by_id.get(f.id), f) for f in schema.fields))

    def _pinned(self, view: Table, snapshot: Snapshot, *, altered: bool) -> DataFrame:
        if not altered:
            return self.spark.read.options(**_pin(view, snapshot)).table(self.name(view))
        # by an option the connector looks for the latest columns in the old snapshot; so it goes by the snapshot's, but
        # does not find a branch's own tags, and takes a tag of that name for the snapshot
        number = str(snapshot.id)
        if snapshot.id not in view.snapshot_ids() or number in {*view.tag_names(), *view.branch(MAIN).tag_names()}:
            raise UnsupportedFeatureError(
                f"{view.label}: the columns were altered since snapshot {number}, which is expired or has a tag's "
                f"name, so Paimon's connector can't read it"
            )
        return self.spark.sql(f"SELECT * FROM {self.name(view)} VERSION AS OF {number}")


def _pin(view: Table, snapshot: Snapshot) -> dict[str, str]:
    if snapshot.id in view.snapshot_ids():
        return {"scan.snapshot-id": str(snapshot.id)}
    tag = next((t.name for t in view.tags() if t.snapshot.identity == snapshot.identity), None)
    if tag is None:
        raise NotFoundError(
            f"{view.label}: snapshot {snapshot.id} is expired, and no tag of this branch holds it, so the connector "
            f"can't read it"
        )
    return {"scan.tag-name": tag}


def _column(stored: DataField | None, wanted: DataField) -> Column:
    from pyspark.sql import functions as sf

    if stored is None:
        return sf.lit(None).cast(_type(wanted)).alias(wanted.name)
    column = sf.col(sql_name(stored.name))
    return (column if stored.type == wanted.type else column.cast(_type(wanted))).alias(wanted.name)


def _type(field: DataField) -> Any:
    try:
        return spark_type(field.type)
    except KeyError:
        raise UnsupportedFeatureError(
            f"Column {field.name!r} of type {field.type} can't be read with another version of the schema"
        ) from None


def in_partitions(
    schema: TableSchema, partitions: Sequence[Sequence[Any]], columns: Sequence[str] | None = None
) -> Column:
    """Return the condition that a row lies in one of these partitions, in a form that the connector prunes by.

    ``columns``: the names of the partition columns in the frame, where those are others.
    """
    from pyspark.sql import functions as sf

    if not schema.partition_keys:
        return sf.lit(bool(partitions))
    names = schema.partition_keys if columns is None else columns
    terms = [_in_partition(schema, values, names) for values in partitions]
    while len(terms) > 1:  # a balanced tree: thousands of terms in a row overflow Spark's stack
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [pair[0] | pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return terms[0] if terms else sf.lit(False)


def _in_partition(schema: TableSchema, values: Sequence[Any], names: Sequence[str]) -> Column:
    from pyspark.sql import functions as sf

    out: Column | None = None
    for field, value, name in zip(schema.partition_fields, values, names, strict=True):
        column = sf.col(sql_name(name))
        same = column.isNull() if value is None else column == _literal(value, field.type)
        out = same if out is None else out & same
    assert out is not None
    return out


def _literal(value: Any, data_type: DataType) -> Column:
    from pyspark.sql import functions as sf

    if isinstance(value, Timestamp):
        if data_type.root == "TIMESTAMP_LTZ":
            return sf.timestamp_micros(sf.lit(value.to_nanos() // 1000))
        return sf.lit(value.to_sql(6)).cast(spark_type(data_type))
    if isinstance(value, bytes):
        return sf.lit(bytearray(value))
    if isinstance(value, (bool, int, float)):
        return sf.lit(value).cast(spark_type(data_type))
    return sf.lit(str(value)).cast(spark_type(data_type))


def in_paimon_types(rows: pa.Table, fields: Sequence[DataField]) -> pa.Table:
    """Convert rows from Spark to the types of the embedded engine."""
    columns = []
    for field in fields:
        column = rows.column(field.name)
        # types that the embedded engine doesn't have are shown as in Spark
        with contextlib.suppress(UnsupportedFeatureError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            column = column.cast(arrow_type(field.type), safe=False)
        columns.append(column)
    return pa.table(columns, names=[f.name for f in fields])


def partition_values_of(rows: pa.Table, schema: TableSchema) -> list[tuple[Any, ...]]:
    """Return the partition of each row, in internal values; its columns are called ``__p0``, ``__p1`` and so on."""
    fields = schema.partition_fields
    if not fields:
        return [()] * rows.num_rows
    named = rows.select([f"__p{i}" for i in range(len(fields))]).rename_columns([f.name for f in fields])
    typed = in_paimon_types(named, fields)
    return list(zip(*(to_values(typed.column(f.name), f.type) for f in fields), strict=True))
