"""INSERT INTO and INSERT OVERWRITE: the query's rows in the table's columns, and what they replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.data.row_columns import POSITION_COLUMNS
from airflow_paimon.spark.spark_types import spark_type, sql_name
from airflow_paimon.spark.statements.evaluate import CHANGE, INSERTED, Evaluation
from airflow_paimon.spark.statements.statement_plan import InsertInto, Statement, find_column, unknown_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DYNAMIC = "spark.sql.sources.partitionOverwriteMode"


def is_dynamic(spark: SparkSession) -> bool:
    """Return whether INSERT OVERWRITE replaces the partitions of its rows only."""
    return str(spark.conf.get(_DYNAMIC, "static")).lower() == "dynamic"


def insert_rows(spark: SparkSession, statement: Statement, schema: TableSchema) -> DataFrame:
    """Return the rows to insert: the query's by position or BY NAME, PARTITION's values, defaults for the rest.

    Raises:
        AnalysisException: the query's columns don't fit, or the query is wrong.
    """
    from pyspark.sql import functions as sf

    insert = statement.insert
    assert insert is not None
    evaluation = Evaluation(spark, statement, schema, (), whole=True)
    query = evaluation.source()
    static = {_name(n, schema): text for n, text in insert.static.items()}
    given = _given(statement, insert, schema, query, static)
    stored = evaluation.insertable(query, given, insert.by_name)
    columns = []
    for field in schema.fields:
        if field.name in given:
            columns.append(sf.col(sql_name(field.name)))
        else:
            text = static.get(field.name, field.default_value)
            columns.append(sf.lit(text).cast(spark_type(field.type)).alias(field.name))
    return stored.select(*columns)


def inserted(spark: SparkSession, statement: Statement, schema: TableSchema, identity: Sequence[str]) -> DataFrame:
    """Return the rows of an INSERT INTO as ``Evaluation.run`` returns those of a MERGE; ``identity``: its columns."""
    from pyspark.sql import functions as sf

    fields = [POSITION_COLUMNS[name] for name in identity]
    nowhere = [sf.lit(None).cast(spark_type(f.type)).alias(f.name) for f in fields]
    rows = insert_rows(spark, statement, schema)
    return rows.select(*nowhere, sf.lit(INSERTED).alias(CHANGE), *(rows[c] for c in rows.columns))


def _given(
    statement: Statement, insert: InsertInto, schema: TableSchema, query: DataFrame, static: dict[str, str | None]
) -> list[str]:
    """Return the table's columns that the query gives, in its order, or by name in the table's."""
    if insert.by_name:
        found = {find_column(n, schema): n for n in query.columns}
        if None in found:
            raise unknown_column(statement, found[None], statement.target.at, schema)
        return [n for n in schema.field_names if n in found]
    if insert.columns:
        return [_name(n, schema) for n in insert.columns]
    return [n for n in schema.field_names if n not in static]


def overwritten(statement: Statement, schema: TableSchema, dynamic: bool) -> tuple[str, dict[str, Any] | None]:
    """Return the mode of the write, and the partition that it replaces."""
    insert = statement.insert
    assert insert is not None
    if statement.kind == "INSERT":
        return "append", None
    static = {_name(n, schema): text for n, text in insert.static.items()}
    if dynamic and schema.partition_keys and len(static) < len(schema.partition_keys):
        return "dynamic_overwrite", None
    return "overwrite", static or None


def _name(name: str, schema: TableSchema) -> str:
    found = find_column(name, schema)
    if found is None:
        raise InvalidInputError(f"There is no column {name!r} (columns: {', '.join(schema.field_names)})")
    return found
