"""What CREATE DATABASE and DROP DATABASE do in every catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_paimon import create_database, create_table, drop_database
from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UnsafeOperationError


def check_databases(warehouse: str, options: Mapping[str, Any] | None = None) -> None:
    """Make a database ``made``, a table in it, and drop it when the table is gone by other means."""
    catalog, given = open_catalog(warehouse, options), {"storage_options": options}
    assert create_database(warehouse, "made", **given)
    assert "made" in catalog.databases() and catalog.tables("made") == []
    with pytest.raises(AlreadyExistsError, match="made"):
        create_database(warehouse, "made", **given)
    assert not create_database(warehouse, "made", if_exists="skip", **given)
    for name in ("sys", "a.b", "a/b", "", "a b", "a$b"):
        with pytest.raises(InvalidInputError):
            create_database(warehouse, name, **given)
    assert create_database(warehouse, "other", **given)
    create_table(warehouse, "other.t", [("k", "BIGINT")], storage_options=options)
    with pytest.raises(UnsafeOperationError, match=r"has tables \(t\)"):
        drop_database(warehouse, "other", **given)
    assert catalog.tables("other") == ["t"]
    assert drop_database(warehouse, "made", **given)
    assert "made" not in catalog.databases()
    with pytest.raises(NotFoundError, match="has no database 'made'"):
        drop_database(warehouse, "made", **given)
    assert not drop_database(warehouse, "made", if_missing="skip", **given)
    assert create_database(warehouse, "made", **given) and drop_database(warehouse, "made", **given)
