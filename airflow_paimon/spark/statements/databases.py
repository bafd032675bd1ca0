"""CREATE and DROP DATABASE; USE, which chooses the database of names without one for this session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.schema.databases import create_database, drop_database
from airflow_paimon.spark.arrow_frames import text_frame
from airflow_paimon.spark.jvm import kind_of, mapping_of, sequence_items
from airflow_paimon.spark.statements.sql_request import DATABASE_SETTING, SqlRequest, parts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CATALOG = "paimon"
"""What Paimon's documents call their catalog: here the warehouse that ``sql`` is called with."""


def _use(request: SqlRequest, plan: Any) -> DataFrame:
    by_word = kind_of(plan) == "SetNamespaceCommand"
    parts = list(map(str, sequence_items(plan.namespace()))) if by_word else list(parts_of(plan.child()))
    catalog = open_catalog(request.warehouse, request.storage_options)
    known = catalog.databases()
    if len(parts) == 2 and parts[0].lower() == _CATALOG:
        parts = parts[1:]
    if len(parts) == 1 and (parts[0] in known or parts[0].lower() != _CATALOG):
        if parts[0] not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise NotFoundError(f"USE: {catalog.label} has no database {parts[0]!r} (it has {listed})")
        request.spark.conf.set(DATABASE_SETTING, parts[0])
    elif len(parts) != 1:
        raise InvalidInputError(f"USE {'.'.join(parts)}: name a database of the warehouse")
    return _current(request, plan)


def _current(request: SqlRequest, plan: Any) -> DataFrame:
    columns = {"catalog": "string", "namespace": "string"}
    return text_frame(request.spark, columns, [(_CATALOG, request.database or "")])


def _create(request: SqlRequest, plan: Any) -> dict[str, Any]:
    name = _name("CREATE DATABASE", plan.name())
    if given := sorted(mapping_of(plan.properties())):
        raise UnsupportedFeatureError(
            f"CREATE DATABASE {name}: {', '.join(given)} is not kept here, as not every catalog has a place for it: "
            f"leave it out; the catalog chooses the folder"
        )
    exists = "skip" if plan.ifNotExists() else "fail"
    changed = create_database(request.warehouse, name, if_exists=exists, storage_options=request.storage_options)
    return request.result("CREATE DATABASE", name, changed=changed)


def _drop(request: SqlRequest, plan: Any) -> dict[str, Any]:
    name = _name("DROP DATABASE", plan.namespace())
    if plan.cascade():
        raise UnsupportedFeatureError(
            f"DROP DATABASE {name} CASCADE is not executed: DROP TABLE its tables, then DROP DATABASE {name}"
        )
    missing = "skip" if plan.ifExists() else "fail"
    changed = drop_database(request.warehouse, name, if_missing=missing, storage_options=request.storage_options)
    if request.database == name:
        request.spark.conf.unset(DATABASE_SETTING)
    return request.result("DROP DATABASE", name, changed=changed)


def _name(what: str, node: Any) -> str:
    parts = parts_of(node)
    if len(parts) == 2 and parts[0].lower() == _CATALOG:
        parts = parts[1:]
    if len(parts) != 1:
        raise InvalidInputError(f"{what} {'.'.join(parts)}: a database has a name of one part")
    return parts[0]


RUN: Mapping[str, Callable[[SqlRequest, Any], Any]] = {
    "CreateNamespace": _create,
    "DropNamespace": _drop,
    "SetCatalogAndNamespace": _use,
    "SetNamespaceCommand": _use,
    "ShowCurrentNamespaceCommand": _current,
}
"""By the kind of Spark's plan."""
