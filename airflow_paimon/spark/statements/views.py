"""Further tables that a statement or a query can name: temporary views for as long as it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.data.row_columns import ROW_COLUMNS, with_row_columns
from airflow_paimon.spark.statements.analysed import bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_view_names(views: Mapping[str, Any]) -> None:
    """Refuse names that SQL can't write plainly, and views that are neither a table's name nor a DataFrame.

    Raises:
        InvalidInputError: names the view.
    """
    if not isinstance(views, Mapping):
        raise InvalidInputError(f"views is a dict of names and tables, e.g. {{'fixes': 'sales.fixes'}}, not {views!r}")
    for name, view in views.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidInputError(f"A view needs a plain name, such as fixes, not {name!r}")
        if not isinstance(view, str) and not hasattr(view, "createTempView"):
            raise InvalidInputError(f"The view {name!r} has to be a table such as db.t, or a DataFrame, not {view!r}")
    lower = [n.lower() for n in views]
    if len(set(lower)) < len(lower):
        raise InvalidInputError("Two views have the same name but for case; give each another name")


@contextmanager
def registered(spark: SparkSession, views: Mapping[str, DataFrame], *, marked: bool = False) -> Iterator[None]:
    """Give DataFrames names in SQL inside the context. ``marked``: restricted SQL may read them.

    Raises:
        InvalidInputError: the session has a view of such a name.
    """
    with ExitStack() as made:  # each goes, also when another one can't be dropped
        for name, frame in views.items():
            _register(name, bound(frame) if marked else frame)
            made.callback(spark.catalog.dropTempView, name)
        yield


def _register(name: str, frame: DataFrame) -> None:
    from pyspark.errors import AnalysisException

    try:
        frame.createTempView(name)
    except AnalysisException:
        raise InvalidInputError(f"The Spark session has a temporary view {name!r} already; drop it first") from None


def may_mention(sql: str | None, view: str) -> bool:
    """Whether a query may read a view: its text holds the name, or puts names together (``IDENTIFIER``)."""
    return sql is None or re.search(rf"\b({re.escape(view)}|identifier)\b", sql, re.IGNORECASE) is not None


def view_columns(schema: TableSchema, sql: str | None) -> tuple[str, ...] | None:
    """Return the columns of a view: with row id and version of each row where the query names one of them; None = all
    of the table's.
    """
    named = sql is not None and any(name.lower() in sql.lower() for name in ROW_COLUMNS)
    return with_row_columns(schema).field_names if named else None
