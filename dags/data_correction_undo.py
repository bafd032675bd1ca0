"""Undo a published correction of a Paimon table: docs/runbook.md."""

from airflow_paimon.dags import correction_undo_dag

dag = correction_undo_dag()
