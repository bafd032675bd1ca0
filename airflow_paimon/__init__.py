"""Airflow provider for the life of an Apache Paimon table. Importing this package imports nothing heavy."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_paimon.core.publish.replace_main import main_state
    from airflow_paimon.core.schema.tables import create_table
    from airflow_paimon.notebook.table import open_table
    from airflow_paimon.notebook.table_set import open_table_set

__version__ = "0.1.0"

__all__ = ["__version__", "create_table", "main_state", "open_table", "open_table_set"]


def __getattr__(name: str) -> Any:
    # PEP 562: Airflow imports this package in every process that lists providers; the core comes only when asked for.
    if name == "open_table":
        from airflow_paimon.notebook.table import open_table

        return open_table
    if name == "open_table_set":
        from airflow_paimon.notebook.table_set import open_table_set

        return open_table_set
    if name == "create_table":
        from airflow_paimon.core.schema.tables import create_table

        return create_table
    if name == "main_state":
        from airflow_paimon.core.publish.replace_main import main_state

        return main_state
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
