"""Texts that a request gives as files, such as SQL and rules; SQL may also stand in the request itself."""

from __future__ import annotations

from pathlib import Path

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import CorrectBranch, PlanCorrection, ReplayBranch
from airflow_paimon.core.sql_text.statement import QUERIES, STATEMENTS


def read_text(path: str, what: str) -> str:
    """Read a text file. ``what``: names it, in the error.

    Raises:
        InvalidInputError: it can't be read, and why.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInputError(f"{what} can't be read: {why}") from None


def names_file(text: str, ends: tuple[str, ...]) -> bool:
    """Say whether a text is the name of a file with one of these ends, and no SQL or YAML that happens to end so."""
    words = text.split()
    if not words or not words[-1].endswith(ends) or "\n" in text.strip():
        return False
    first = words[0]
    return len(words) == 1 or not (first[0] in "-[{(" or first.lower() in (*QUERIES, *STATEMENTS))


def sql_of(request: CorrectBranch | PlanCorrection | ReplayBranch) -> str | None:
    """Return the SQL of a request, without a semicolon at its end; None: a function is given instead.

    Raises:
        InvalidInputError: both or neither given, or the file can't be read, or there is nothing but a semicolon.
    """
    if (request.sql is None) == (request.function is None):
        raise InvalidInputError(
            f"{request.table}: {request.operation} takes sql (--sql) or function (--function) module:name, "
            f"one of the two"
        )
    return None if request.sql is None else _sql_text(request.table, request.sql).strip().rstrip(";").strip()


def _sql_text(table: str, given: str) -> str:
    """Return the value itself if it has a space and names no file, else its file's text."""
    value = given.strip()
    if any(c.isspace() for c in value) and not names_file(value, (".sql",)):
        return value
    text = read_text(value, f"{table}: sql (--sql) takes statements, or the path of a file with them, and {value!r}")
    if not text.strip().rstrip(";").strip():
        raise InvalidInputError(
            f"{table}: the file {value} of sql (--sql) is empty; write one statement or SELECT into it"
        )
    return text
