"""Paimon tables in Spark: a plan becomes tasks, tasks return commit messages, the driver commits once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_paimon.spark.check import check_branch
    from airflow_paimon.spark.datasource import register
    from airflow_paimon.spark.read import read_table
    from airflow_paimon.spark.statements.sql import sql
    from airflow_paimon.spark.write import write_table

__all__ = ["check_branch", "read_table", "register", "sql", "write_table"]

_HOMES = {
    "check_branch": "airflow_paimon.spark.check",
    "read_table": "airflow_paimon.spark.read",
    "register": "airflow_paimon.spark.datasource",
    "sql": "airflow_paimon.spark.statements.sql",
    "write_table": "airflow_paimon.spark.write",
}


def __getattr__(name: str) -> Any:
    """Import pyspark lazily, as metadata-only jobs import this package as well."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from airflow_paimon.spark.versions import require_spark

    require_spark()
    return getattr(import_module(home), name)
