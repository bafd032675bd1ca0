"""What Spark says of a statement, as our errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.sql_text.tokens import TOO_DEEP
from airflow_paimon.core.table.internal_columns import INTERNAL_PREFIX
from airflow_paimon.spark.failures import fault_at, fault_of_query, first_line, known_error
from airflow_paimon.spark.statements.statement_plan import Statement

_OWN_NAME = rf"(?:`[^`]+`\.)*`{INTERNAL_PREFIX}\w+`"
_OWN_NAMES = re.compile(f", {_OWN_NAME}|{_OWN_NAME}, ")
"""Columns that rows are found by: among the names that Spark suggests for an unknown one."""


_UNKNOWN_TABLE = "[TABLE_OR_VIEW_NOT_FOUND]"
_NO_SUCH_NAME = (_UNKNOWN_TABLE, "[REQUIRES_SINGLE_PART_NAMESPACE]")
"""What Spark says of a name that only its own catalogs could have."""


def statement_errors(statement: Statement) -> AbstractContextManager[None]:
    """Raise what Spark says of the statement as ``InvalidInputError``, in one line, with the position."""
    return sql_errors(f"{statement.kind} on {statement.target.text}")


@contextmanager
def sql_errors(what: str, missing: type[PaimonError] = InvalidInputError, hint: str = "") -> Iterator[None]:
    """Raise what Spark says of SQL as ``InvalidInputError``, in one line, with the position; ``what`` comes before it.

    ``missing``: the error for a table that neither the warehouse nor Spark has; ``hint``: what to do then.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except RecursionError:
        raise InvalidInputError(f"{what}: {TOO_DEEP}") from None
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        found = known_error(text)
        if found is not None:
            raise found from error
        fault = first_line(text) if isinstance(error, AnalysisException) else fault_of_query(error)
        if fault is None:
            raise
        kind = missing if fault.startswith(_UNKNOWN_TABLE) else InvalidInputError
        way_out = hint if fault.startswith(_NO_SUCH_NAME) else ""
        raise kind(f"{what}: {_OWN_NAMES.sub('', fault_at(text, fault))}{way_out}") from None
