"""The rows that a user's SQL or function gives, over views of the branch, of main and of other tables."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.requests.requests import CorrectBranch, ReplayBranch, Request
from airflow_paimon.core.requests.text_files import sql_of
from airflow_paimon.core.sql_text import checks
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.spark.failures import fault_of_query, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

BRANCH_VIEW = "branch"
MAIN_VIEW = "main"


def read_sql(request: CorrectBranch | ReplayBranch) -> str | None:
    """Return the SQL of a request, without a semicolon at its end; None: a function is given instead.

    Raises:
        InvalidInputError: as ``sql_of``, or the function is not of the form ``module:name``.
    """
    if request.function is not None:
        parse_function(request.function)
    return sql_of(request)


def divided(request: CorrectBranch, sql: str | None) -> list[str]:
    """Return the statements of ``--sql``, one or more; one is returned as it is. None for a function.

    Raises:
        InvalidInputError: one is no correction (``checks.divided``), or several, where one is taken or in a dry run.
    """
    texts = [] if sql is None else checks.divided(sql)
    if request.engine == "connector":
        checks.check_for_connector(texts)
        if request.dry_run:
            raise InvalidInputError(
                f"{request.table}: engine=connector finds the rows of a statement only by writing them; leave dry_run "
                "(--dry-run) out, as the branch is not main, or with engine=embedded"
            )
    if len(texts) > 1 and request.dry_run:
        raise InvalidInputError(
            f"{request.table}: sql (--sql) has {len(texts)} statements, and a dry run takes one: the second one needs "
            "what the first one writes. Leave dry_run (--dry-run) out, as the branch is not main, or run one at a time"
        )
    return texts


def as_asked(request: Request) -> Request:
    """Return a request with a digest of its SQL in the place of the SQL, or of the file that has it.

    Raises:
        InvalidInputError: as ``sql_of``.
    """
    sql = sql_of(request) if isinstance(request, CorrectBranch | ReplayBranch) else None
    return request if sql is None else replace(request, sql=text_digest(sql))  # type: ignore[call-arg]


def text_digest(text: str) -> str:
    """Identify a query by its text: each try of an operator writes it to another file."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def without_row_columns(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the rows without row id and version, which ``*`` brings along where the query names one of them."""
    extra = set(with_row_columns(schema).field_names) - set(schema.field_names)
    named = [column for column in rows.columns if column.upper() in extra]
    return rows.drop(*named) if named else rows


def source_name(request: CorrectBranch) -> str:
    """Name what gives the rows, for messages."""
    return "sql (--sql)" if request.sql is not None else f"function (--function) {request.function}"


def spark_query(spark: SparkSession, sql: str) -> DataFrame:
    """Return the rows of a query by Spark alone, where there is no JVM to look into its plan."""
    # as a subquery: a statement that is not a query is an error, instead of being carried out
    return spark.sql(f"SELECT * FROM ({sql}\n)")


def parse_function(name: str) -> tuple[str, str]:
    """Split ``module:name``.

    Raises:
        InvalidInputError: it is not of that form.
    """
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise InvalidInputError(f"function (--function) {name!r} is not of the form module:name")
    return module, function


def import_function(name: str) -> Any:
    """Import the user's function.

    Raises:
        InvalidInputError: it is not there.
    """
    module_name, function_name = parse_function(name)
    try:
        return getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InvalidInputError(
            f"function (--function) {name}: {error}; the module must be importable where the driver runs, e.g. by "
            "py_files of spark_options"
        ) from error


def function_version(name: str) -> str | None:
    """Say which version of a function runs: a digest of its module's source, and the package that brought it.

    ``sha256:4f...`` or ``sha256:4f... of fixes 1.4.0``; None if neither can be told.
    """
    module = inspect.getmodule(import_function(name))
    if module is None:
        return None
    try:
        found = [text_digest(inspect.getsource(module))]
    except (OSError, TypeError):
        found = []
    package = module.__name__.partition(".")[0]
    owners = metadata.packages_distributions().get(package, [])
    if len(owners) == 1:
        found.append(f"of {owners[0]} {metadata.version(owners[0])}")
    return " ".join(found) or None


def function_rows(spark: SparkSession, name: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows that the user's function gives.

    Raises:
        InvalidInputError: it is not there, raises, or returns no DataFrame.
    """
    from pyspark.sql import DataFrame

    rows: DataFrame = call_function(name, import_function(name), spark, dict(views))
    # a class of its own in each of PySpark's two kinds of sessions, both below pyspark.sql.DataFrame since 4.0
    if not isinstance(rows, DataFrame) and type(rows).__name__ != "DataFrame":
        raise InvalidInputError(f"function (--function) {name} returned {type(rows).__name__}, not a DataFrame")
    return rows


def call_function(name: str, function: Any, *arguments: Any) -> Any:
    """Call the user's function: what it raises is the user's error, unless Spark says that it may pass."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return function(*arguments)
    except (PaimonError, MemoryError):
        raise
    except (PySparkException, Py4JError) as error:
        fault = fault_of_query(error)
        if fault is None:
            raise
        raise InvalidInputError(f"function (--function) {name}: {fault}") from None
    except Exception as error:  # whatever the user's code raises is the user's to mend
        log.exception("--function %s raised", name)
        raise InvalidInputError(
            f"function (--function) {name}: {type(error).__name__}: {first_line(str(error))}"
        ) from None
