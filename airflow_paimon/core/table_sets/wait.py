"""Whether a set has the version that somebody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_paimon.core.catalogs import Catalog
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.table import parse_timestamp
from airflow_paimon.core.table.table_sets import TableSet, check_set_name, set_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCondition:
    """All that is given must hold of the newest version. ``since_ms``: it was made at this time or later."""

    table_set: str
    after: int | None = None
    since_ms: int | None = None
    tables: Sequence[str] = ()


def parse_set_condition(
    table_set: str, after: int | str | None, since: int | str | None, tables: Sequence[str]
) -> SetCondition:
    """Check what a sensor was given.

    Raises:
        InvalidInputError: names the argument.
    """
    number = None if after is None else str(after).strip().removeprefix(f"set:{table_set}@")
    if number is not None and not (number.isascii() and number.isdigit()):
        raise InvalidInputError(f"after is the number of a version, or set:{table_set}@NUMBER; got {after!r}")
    return SetCondition(
        table_set=check_set_name(table_set),
        after=None if number is None else int(number),
        since_ms=None if since is None else parse_timestamp(since),
        tables=list(tables),
    )


def awaited_version(catalog: Catalog, condition: SetCondition) -> tuple[TableSet | None, str]:
    """Look once, at the cost of a listing and a small read; returns the version, None = none yet, and what is missing.

    Raises:
        UnsupportedCatalogError: the catalog's server keeps the warehouse.
    """
    found, name = set_folder(catalog, condition.table_set).latest(), condition.table_set
    if found is None:
        return None, f"a first version of table set {name}"
    if condition.after is not None and found.number <= condition.after:
        return None, f"a version of table set {name} after {condition.after} (the newest is {found.number})"
    if condition.since_ms is not None and found.created_ms < condition.since_ms:
        return None, f"a version of table set {name} that is later than {found.number}"
    missing = [table for table in condition.tables if table not in found.tables]
    if missing:
        return None, f"a version of table set {name} with {', '.join(missing)} ({found.number} has not)"
    return found, ""
