"""Texts that a request gives as files, such as SQL and rules."""

from __future__ import annotations

from pathlib import Path

from airflow_paimon.core.errors import InvalidInputError


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
