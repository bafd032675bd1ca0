"""Findings about what a table's catalog shows of it, and their repair. The schema file is what counts."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.catalogs.table_store import CatalogTableStore
from airflow_paimon.core.errors import StorageError, first_few
from airflow_paimon.core.plan import UpdateCatalog
from airflow_paimon.core.requests.findings import WARNING, Finding
from airflow_paimon.core.table.table import Table

_KIND = "metastore"
_NAMED = 5


def catalog_findings(table: Table) -> Iterator[Finding]:
    """A catalog that shows other columns or options than main's newest schema, or can't be asked."""
    if not isinstance(table.store, CatalogTableStore) or not table.exists():
        return
    schema = table.schema()
    at_risk = "nothing in the table; readers of the catalog, such as Hive, see older columns or options"
    try:
        differs = table.store.guard.lag(schema)
    except StorageError as error:
        message = f"What the catalog shows of the table is unknown: {error.message}"
        yield Finding(kind=_KIND, subject="", severity=WARNING, message=message, at_risk=at_risk)
        return
    if differs:
        named = first_few(differs, _NAMED, "; ")
        yield Finding(
            kind=_KIND,
            subject="",
            severity=WARNING,
            message=f"The catalog shows the table otherwise than schema {schema.id}: {named}",
            at_risk=at_risk,
            repair="bring columns and options of that schema to the catalog",
            actions=(UpdateCatalog(path=table.paths.schema(schema.id), reason="the schema file is what counts"),),
        )


def update_catalog(table: Table) -> None:
    """Bring main's newest schema to the table's catalog."""
    assert isinstance(table.store, CatalogTableStore), "a finding names such a table"
    table.store.guard.schema_changed(table.schema())
