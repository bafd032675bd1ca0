"""Proofs of erasures that stay with the table: ``_airflow_paimon/erasures/<time>-<digest of the condition>.json``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.errors import AlreadyExistsError
from airflow_paimon.core.format.records import record_bytes
from airflow_paimon.core.table.record_kinds import ERASURES
from airflow_paimon.core.table.table import Table

_DIGITS = 16
_KEPT = ("time", "condition_sha256", "proven", "erased", "state", "files", "not_searched", "warnings")


def keep_proof(table: Table, details: Mapping[str, Any], said: Mapping[str, str], *, changed: bool) -> str | None:
    """Keep the proof of an erasure that is complete; return where. Neither the condition nor a value of a row is in it.

    None: one of the same condition is there, and nothing was erased since. ``said``: the snapshots' properties.

    Raises:
        StorageError: it can't be written.
    """
    digest = details["condition_sha256"][:_DIGITS]
    if not changed and any(name.endswith(f"-{digest}.json") for name in table.store.names(ERASURES.folder)):
        return None
    mark = "".join(c for c in details["time"] if c.isalnum())
    path = ERASURES.path(f"{mark}-{digest}")
    record = {"table": table.name, **{name: details[name] for name in _KEPT}, "properties": dict(said)}
    with suppress(AlreadyExistsError):
        put_new(table, path, record_bytes(record))
    return path
