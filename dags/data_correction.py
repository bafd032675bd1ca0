"""Correct data of a Paimon table on a branch, have it approved, publish it: docs/runbook.md."""

from airflow_paimon.dags import correction_dag

dag = correction_dag()
