"""What the button *Test* of a connection checks of ``masked_columns``: a name that nothing has hides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING

from airflow_paimon.core.errors import InvalidInputError, PaimonError

if TYPE_CHECKING:
    from airflow_paimon.hooks.paimon import PaimonHook

_MOST_TABLES = 1000
"""Names that patterns are compared with."""


def check_masks(hook: PaimonHook) -> None:
    """Look for the tables and columns that the connection hides.

    Raises:
        InvalidInputError: names one that isn't there.
    """
    for pattern, columns in hook.masked.items():
        known = _columns_of(hook, pattern, {c.strip().lower() for c in columns})
        missing = [c for c in columns if c.strip().lower() not in known]
        if missing:
            near = get_close_matches(missing[0].lower(), known, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidInputError(
                f"masked_columns: {pattern} has no column {missing[0]}{meant}, so nothing is hidden there. Correct the "
                f"name, or leave it out"
            )


def _columns_of(hook: PaimonHook, pattern: str, wanted: set[str]) -> set[str]:
    """Return the columns of the tables that a pattern names, all versions of them, in lower case; not of further
    tables once all that are ``wanted`` are found.
    """
    if any(c in pattern for c in "*?["):
        names = [name for name in _table_names(hook) if fnmatchcase(name.lower(), pattern.strip().lower())]
    else:
        names = [pattern.strip()]
    found: set[str] = set()
    opened = 0
    for name in names:
        if wanted <= found and opened:
            break
        try:
            schemas = hook.get_table(name).require().schemas()
            found |= {field.name.lower() for schema in schemas for field in schema.fields}
            opened += 1
        except PaimonError:  # none, one of another format, or one that this user may not read
            continue
    if not opened:
        raise InvalidInputError(
            f"masked_columns: there is no table {pattern} that can be read, so nothing is hidden there. Correct the "
            f"name, or leave it out"
        )
    return found


def _table_names(hook: PaimonHook) -> Sequence[str]:
    catalog = hook.get_catalog()
    every = (f"{database}.{table}" for database in catalog.databases() for table in catalog.tables(database))
    return list(islice(every, _MOST_TABLES))
