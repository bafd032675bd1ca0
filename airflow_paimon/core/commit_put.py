"""Single files put if absent, outside of commits: schema versions, ledger entries, records."""

from __future__ import annotations

from airflow_paimon.core.errors import UnsupportedStorageError
from airflow_paimon.core.table import Table


def require_committable(table: Table) -> None:
    """Refuse a storage without an honest put-if-absent, before anything is written."""
    if not table.store.can_commit:
        scheme = table.store.uri.partition(":")[0]
        raise UnsupportedStorageError(
            f"{table.label}: storage {scheme!r} offers no put-if-absent here, so a commit could be lost; "
            f"keep the table on a local disk or on S3, or commit through that catalog's own engine",
            table=table.name,
        )


def put_new(table: Table, path: str, data: bytes) -> None:
    """Put one file if absent, outside a plan: schema versions, ledger entries."""
    require_committable(table)
    table.store.create(path, data)
