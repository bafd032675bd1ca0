"""Columns whose values people are not to see: in samples of diffs, on approval pages, in errors, logs and XComs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import MASKED_OPTION, TableOptions

_SECRET = re.compile(r"secret|token|password|credential|access[-_.]?key|account[-_.]?key|sas[-_.]", re.IGNORECASE)
MASK = "***"
CHANGED = "*** (changed)"
"""Stands for the later value of two that differ."""


@dataclass(frozen=True, slots=True)
class Masks:
    """``columns``: hidden ones, in lower case. ``unknown``: names that no version of the table has."""

    columns: frozenset[str]
    unknown: tuple[str, ...] = ()

    def row(self, row: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a sample row without the values of hidden columns; ``before``: the row that it was."""
        return {name: self._value(name, value, before) for name, value in row.items()}

    def _value(self, name: str, value: Any, before: Mapping[str, Any] | None) -> Any:
        if name.lower() not in self.columns:
            return value
        return CHANGED if before is not None and before.get(name) != value else MASK

    def pair(self, pair: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample of a changed row, ``{"before", "after"}``."""
        return {"before": self.row(pair["before"]), "after": self.row(pair["after"], pair["before"])}


def masked_names(schema: TableSchema) -> tuple[str, ...]:
    """Return the names in the table's option."""
    return TableOptions(schema.options).names(MASKED_OPTION)


def columns_to_mask(table: str, masks: Iterable[str]) -> list[str]:
    """Return the columns of a table that masks name: ``COLUMN``, or ``TABLE:COLUMN`` where ``*`` stands for anything.

    Capital and small letters are the same. What can be read in two ways hides both.
    """
    found = []
    for mask in masks:
        found.append(mask)
        parts = mask.split(":")
        for at in range(1, len(parts)):
            if fnmatchcase(table.lower(), ":".join(parts[:at]).strip().lower()):
                found.append(":".join(parts[at:]).strip())
    return found


def masks_of(schemas: Iterable[TableSchema], more: Iterable[str] = ()) -> Masks:
    """Return what the options of any of these versions of a table hide, and ``more``.

    A column that one of them has renamed is hidden under all of its names.
    """
    known = list(schemas)
    names = {name.lower() for name in (*more, *(n for schema in known for n in masked_names(schema)))}
    ids = {f.id for schema in known for f in schema.fields if f.name.lower() in names}
    hidden = {f.name.lower() for schema in known for f in schema.fields if f.id in ids}
    unknown = sorted(name for name in names - hidden if ":" not in name)  # else it is perhaps of another table
    return Masks(frozenset(names | hidden), tuple(unknown))


def masked_value(schema: TableSchema, name: str, value: Any) -> str:
    """Return a value for a message, without that of a hidden column."""
    return MASK if name.lower() in masks_of([schema]).columns else repr(value)


def masked_option(key: str, value: str) -> str:
    """Blank out the value of an option whose name speaks of a secret (``primary-key`` doesn't)."""
    return MASK if _SECRET.search(key) else value
