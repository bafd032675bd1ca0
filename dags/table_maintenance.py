"""Nightly maintenance of many tables: docs/howto/nightly-maintenance.md."""

from airflow_paimon.dags import maintenance_dag

dag = maintenance_dag()
