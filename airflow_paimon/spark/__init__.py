"""Paimon tables in Spark: a plan becomes tasks, tasks return commit messages, the driver commits once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from airflow_paimon.spark.datasource import register
    from airflow_paimon.spark.read import read_table
    from airflow_paimon.spark.statements.sql import sql
    from airflow_paimon.spark.write import write_table

__all__ = ["read_table", "register", "require_spark", "sql", "write_table"]

_HOMES = {
    "read_table": "airflow_paimon.spark.read",
    "register": "airflow_paimon.spark.datasource",
    "sql": "airflow_paimon.spark.statements.sql",
    "write_table": "airflow_paimon.spark.write",
}
_OLDEST = (3, 5)


def __getattr__(name: str) -> Any:
    """Import pyspark lazily, as metadata-only jobs import this package as well."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    require_spark()
    return getattr(import_module(home), name)


def require_spark() -> None:
    """Refuse a Spark that is too old for any of this.

    Raises:
        UnsupportedFeatureError: names the version and the way out.
    """
    import pyspark

    found = pyspark.__version__
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        raise UnsupportedFeatureError(
            f"This is Spark {found}, and airflow-paimon needs {'.'.join(map(str, _OLDEST))} or newer: submit with "
            f"the spark-submit of a newer one (the connection's spark-binary), or install a newer pyspark"
        )
