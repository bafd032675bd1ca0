"""Translates Spark errors: errors raised by our tasks, and faults of the user's query or function.

Spark's error condition decides who caused an error: each condition has an SQLSTATE, and some classes of these
(data exceptions such as DIVIDE_BY_ZERO and CAST_INVALID_INPUT, errors of analysis, of external routines, raised by the
query itself) recur in every try of a job. Everything else (a lost executor, memory, storage) is not translated and may
be tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_paimon.core import errors
from airflow_paimon.core.errors import InvalidInputError, PaimonError, StorageError
from airflow_paimon.core.sql_text.tokens import TOO_DEEP
from airflow_paimon.core.table.internal_columns import INTERNAL_PREFIX
from airflow_paimon.spark.jvm import is_instance

_RAISED = re.compile(r"airflow_paimon\.core\.errors\.(\w+): (.+)")
_USERS_STATES = frozenset({"0A", "21", "22", "38", "39", "42", "P0"})
"""SQLSTATE classes: unsupported feature, cardinality, data, external routines (38, 39), syntax, raised by the query."""
_FRAME = re.compile(r'^  File "([^"]+)", line \d+', re.MULTILINE)
_OWN_CODE = re.compile(r"/airflow_paimon/(core|data|spark)/")
_RAISED_BY_WORKERS = ("pyspark.errors.", "pyarrow.lib.Arrow")
_CAUSES = 20
_LONGEST_LIST = 5
_ASSIGNMENT_OVERFLOW = "[CAST_OVERFLOW_IN_TABLE_INSERT]"
_OVERFLOW_OR_DIVISION = (
    "Spark reports any arithmetic error in the assigned value so: check for a division by zero as well, which "
    "try_divide makes NULL"
)
"""Spark's CheckOverflowInTableInsert turns every arithmetic error below it into this condition."""
_POSITION = re.compile(r"== SQL.*\(line (\d+), position (\d+)\) ==")
_BARE_POSITION = re.compile(r";? \(?line (\d+),? pos (\d+)\)?;?$", re.MULTILINE)
"""How errors of parsing and of analysis say it, the position counted from 0."""
_OWN_NAME = rf"(?:`[^`]+`\.)*`{INTERNAL_PREFIX}\w+`"
_OWN_NAMES = re.compile(f", {_OWN_NAME}|{_OWN_NAME}, ")
"""Columns that rows are found by: among the names that Spark suggests for an unknown one."""
_UNKNOWN_TABLE = "[TABLE_OR_VIEW_NOT_FOUND]"
_NO_SUCH_NAME = (_UNKNOWN_TABLE, "[REQUIRES_SINGLE_PART_NAMESPACE]")
"""What Spark says of a name that only its own catalogs could have."""


@contextmanager
def task_errors() -> Iterator[None]:
    """Re-raise an error that one of our tasks raised inside the block, with its class."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = known_error(str(error))
        if found is None:
            raise
        raise found from error


@contextmanager
def query_errors(what: str, missing: type[PaimonError] = InvalidInputError, hint: str = "") -> Iterator[None]:
    """Like ``task_errors``; also raise ``InvalidInputError`` for faults of the user's SQL or function.

    In one line, with the position in the statement. ``what`` comes before it: ``--sql``, ``--function module:name``,
    ``UPDATE on db.t``. ``missing``: the error for a table that neither the warehouse nor Spark has; ``hint``: what to
    do then.
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


@contextmanager
def without_values(hides: bool) -> Iterator[None]:
    """Where ``hides``, give only the condition of an error at run time: Spark and Python quote the value that failed.

    Raises:
        InvalidInputError: a fault of the query or function. StorageError: another one.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except Exception as error:
        if not hides or isinstance(error, PaimonError | AnalysisException) or known_error(str(error)) is not None:
            raise
        is_fault = not isinstance(error, PySparkException | Py4JError) or fault_of_query(error) is not None
        condition = getattr(error, "getCondition", getattr(error, "getErrorClass", lambda: None))
        what = condition() or type(error).__name__
        kind = InvalidInputError if is_fault else StorageError
        raise kind(f"it fails with {what}. The message is left out, as it may quote a masked value") from None


def known_error(text: str) -> PaimonError | None:
    """Find the last error of this package in a traceback's text."""
    raised = [m for m in _RAISED.finditer(text) if m[1] in errors.__all__]
    if not raised:
        return None
    cls: type[PaimonError] = getattr(errors, raised[-1][1])
    return cls(raised[-1][2].strip())


def fault_of_query(error: Exception) -> str | None:
    """Return the fault of a query or function in one line; None for temporary and other errors."""
    from pyspark.errors import PySparkException, PythonException

    if isinstance(error, PythonException):
        return fault_of_python(str(error))
    if isinstance(error, PySparkException):
        if isinstance(error, TypeError | ValueError | AttributeError | LookupError | AssertionError | ImportError):
            return first_line(str(error))  # PySpark's own refusals of what it was given
        state = error.getSqlState() if hasattr(error, "getSqlState") else None
        return first_line(str(error)) if (state or "")[:2] in _USERS_STATES else None
    return _fault_of_java(error)


def fault_of_python(text: str) -> str | None:
    """Return the user's fault in a Python worker's traceback; None for errors in our code, e.g. of the storage."""
    _, found, trace = text.partition("Traceback (most recent call last):")
    if not found:
        return None
    files = _FRAME.findall(trace)
    last = [line for line in trace.splitlines() if line and not line.startswith(" ")]
    raised = last[0] if last else ""
    if any(_OWN_CODE.search(f) for f in files) or raised.startswith("MemoryError"):
        return None
    from_user = any("/pyspark/" not in f for f in files)
    return raised if raised and (from_user or raised.startswith(_RAISED_BY_WORKERS)) else None


def _fault_of_java(error: Any) -> str | None:
    """Look for a Spark error with a condition among the causes of a failed job."""
    from py4j.protocol import Py4JError

    try:
        cause = getattr(error, "java_exception", None)
        for _ in range(_CAUSES):
            if cause is None:
                return None
            if is_instance(cause, "java.lang.StackOverflowError"):
                return TOO_DEEP
            if is_instance(cause, "org.apache.spark.SparkThrowable"):
                state = cause.getSqlState()
                if (state or "")[:2] in _USERS_STATES:
                    return first_line(str(cause.getMessage()))
            elif _is_raised_by_query(cause):
                return first_line(str(cause.getMessage()))
            cause = cause.getCause()
    except Py4JError:  # the JVM is gone
        return None
    return None


def _is_raised_by_query(cause: Any) -> bool:
    """Whether it is what ``raise_error`` raised in Spark 3.5, where that has no condition."""
    trace = cause.getStackTrace()
    if str(cause.getClass().getName()) != "java.lang.RuntimeException" or not len(trace):
        return False
    return any(name in str(trace[0].getClassName()) for name in ("catalyst.expressions.RaiseError", "GeneratedClass"))


def fault_at(text: str, fault: str | None = None) -> str:
    """Return the fault in an error's text (None: its first line), with the position in the statement, from 1."""
    fault = fault or first_line(text)
    bare = _BARE_POSITION.search(text)
    if bare is not None:
        fault = _BARE_POSITION.sub("", fault)
        return f"{fault} (line {bare[1]}, position {int(bare[2]) + 1})"
    at = _POSITION.search(text)
    return f"{fault} (line {at[1]}, position {at[2]})" if at else fault.rstrip(";")


def first_line(text: str) -> str:
    """Return the line that holds Spark's error condition and its message, without plans, positions and stack traces.

    Where it ends in a colon, the lines up to the SQLSTATE belong to it: what the table has, what the statement gives.
    """
    found, *more = [line.strip() for line in text.splitlines() if line.strip()][:_LONGEST_LIST] or [""]
    end = next((at for at, line in enumerate(more, 1) if "SQLSTATE:" in line), None)
    if found.endswith(":") and end is not None:
        found = " ".join([found, *more[:end]])
    return f"{found} {_OVERFLOW_OR_DIVISION}" if _ASSIGNMENT_OVERFLOW in found else found
