"""Warns of options that are set and that no engine knows: a refusal would keep a newer Paimon's options out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from airflow_paimon.core.schema.schema_plan import SchemaChange, SetOption
from airflow_paimon.core.table.known_options import unknown_options

log = logging.getLogger(__name__)


def warn_of_options(table: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Log a warning for each unknown option, and return them for a result's details: ``warnings``, if there are any."""
    found = unknown_options(names)
    for sentence in found:
        log.warning("%s: %s", table, sentence)
    return {"warnings": found} if found else {}


def warn_of_changes(table: str, changes: Sequence[SchemaChange]) -> dict[str, list[str]]:
    """Like ``warn_of_options``, for what changes set."""
    return warn_of_options(table, [change.key for change in changes if isinstance(change, SetOption)])
