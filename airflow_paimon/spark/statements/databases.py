"""USE, which chooses the database of names without one for this session, and SHOW CURRENT DATABASE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.spark.statements.asked import DATABASE_SETTING, Asked, parts_of
from airflow_paimon.spark.statements.local_rows import text_frame
from airflow_paimon.spark.statements.parse import kind_of, sequence_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CATALOG = "paimon"
"""What Paimon's documents call their catalog: here the warehouse that ``sql`` is called with."""


def _use(asked: Asked, plan: Any) -> DataFrame:
    by_word = kind_of(plan) == "SetNamespaceCommand"
    parts = list(map(str, sequence_items(plan.namespace()))) if by_word else list(parts_of(plan.child()))
    catalog = open_catalog(asked.warehouse, asked.storage_options)
    known = catalog.databases()
    if len(parts) == 2 and parts[0].lower() == _CATALOG:
        parts = parts[1:]
    if len(parts) == 1 and (parts[0] in known or parts[0].lower() != _CATALOG):
        if parts[0] not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise NotFoundError(f"USE: {catalog.label} has no database {parts[0]!r} (it has {listed})")
        asked.spark.conf.set(DATABASE_SETTING, parts[0])
    elif len(parts) != 1:
        raise InvalidInputError(f"USE {'.'.join(parts)}: name a database of the warehouse")
    return _current(asked, plan)


def _current(asked: Asked, plan: Any) -> DataFrame:
    columns = {"catalog": "string", "namespace": "string"}
    return text_frame(asked.spark, columns, [(_CATALOG, asked.database or "")])


RUN = {"SetCatalogAndNamespace": _use, "SetNamespaceCommand": _use, "ShowCurrentNamespaceCommand": _current}
"""By the kind of Spark's plan."""
