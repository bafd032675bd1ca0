"""What a snapshot says of the statement or function that made its rows, for audits: bounded, without masked values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.masking import masks_of
from airflow_paimon.core.table.options import RECORD_SQL_OPTION
from airflow_paimon.core.table.properties import (
    FUNCTION_PROPERTY,
    FUNCTION_VERSION_PROPERTY,
    SQL_DIGEST_PROPERTY,
    SQL_PROPERTY,
    VIEWS_PROPERTY,
)

FULL, MASKED, NONE = "full", "masked", "none"
MAX_TEXT = 4000
"""Bytes of a text in a snapshot's file. Sensors read the whole snapshot with every look."""
_CUT = " ..."
_MADE_BY = (SQL_PROPERTY, SQL_DIGEST_PROPERTY, FUNCTION_PROPERTY, FUNCTION_VERSION_PROPERTY, VIEWS_PROPERTY)


def function_properties(name: str, version: str | None, views: Sequence[str] = ()) -> dict[str, str]:
    """Return the snapshot properties of a Python function. ``version``: see ``FUNCTION_VERSION_PROPERTY``."""
    out = {FUNCTION_PROPERTY: truncated(name)}
    if version:
        out[FUNCTION_VERSION_PROPERTY] = truncated(version)
    return out | ({VIEWS_PROPERTY: truncated(json.dumps(list(views)))} if views else {})


def record_sql(schemas: Sequence[TableSchema]) -> str:
    """Return how statements of a table are recorded.

    Raises:
        InvalidInputError: the option has another value.
    """
    level = schemas[-1].options.get(RECORD_SQL_OPTION, "").strip().lower()
    if level in (FULL, MASKED, NONE):
        return level
    if level:
        raise InvalidInputError(f"Table option {RECORD_SQL_OPTION} is {FULL}, {MASKED} or {NONE}, not {level!r}")
    return MASKED if masks_of(schemas).columns else FULL


def made_by(properties: Mapping[str, str]) -> dict[str, str]:
    """Return what the properties of a snapshot say of it, by short names: ``sql``, ``function`` and the like."""
    return {k.removeprefix("airflow-paimon.").replace("-", "_"): v for k, v in made_by_properties(properties).items()}


def made_by_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those of a snapshot's properties that say what made its rows."""
    return {k: properties[k] for k in _MADE_BY if k in properties}


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def stored_bytes(text: str) -> int:
    """Return how many bytes of a snapshot's file a text takes, with its escapes."""
    return len(json.dumps(text, ensure_ascii=False).encode()) - len('""')


def truncated(text: str, most: int = MAX_TEXT) -> str:
    """Return a text, cut where it would take more bytes of a snapshot's file than ``most``."""
    if stored_bytes(text) <= most:
        return text
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if stored_bytes(text[:middle]) <= most - len(_CUT) else (low, middle - 1)
    return text[:low] + _CUT
