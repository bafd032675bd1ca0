"""The runbooks as functions that make a DAG: ``from airflow_paimon.dags import correction_dag``.

Beside them are ``choice``, ``number``, ``switch``, ``text`` and ``texts``, which make fields of a form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_paimon.dags.chain import chain_dag
    from airflow_paimon.dags.correction import correction_dag
    from airflow_paimon.dags.correction_cleanup import correction_cleanup_dag
    from airflow_paimon.dags.erasure import erasure_dag
    from airflow_paimon.dags.flink_jobs import FlinkJob
    from airflow_paimon.dags.maintenance import maintenance_dag
    from airflow_paimon.dags.pipeline import pipeline_dag
    from airflow_paimon.dags.undo import correction_undo_dag, pipeline_undo_dag
    from airflow_paimon.runbooks.fields import choice, number, switch, text, texts

__all__ = [
    "FlinkJob",
    "chain_dag",
    "choice",
    "correction_cleanup_dag",
    "correction_dag",
    "correction_undo_dag",
    "erasure_dag",
    "maintenance_dag",
    "number",
    "pipeline_dag",
    "pipeline_undo_dag",
    "switch",
    "text",
    "texts",
]


def __getattr__(name: str) -> Any:
    """Import a factory's module when it is asked for: a DAG file is read often, and should load only its own."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = f"dags.{name.removesuffix('_dag')}" if name.endswith("_dag") else "runbooks.fields"
    module = {"FlinkJob": "dags.flink_jobs"}.get(name, "dags.undo" if name.endswith("_undo_dag") else module)
    return getattr(import_module(f"airflow_paimon.{module}"), name)
