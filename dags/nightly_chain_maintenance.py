"""Nightly maintenance of a chain table: docs/howto/chain-maintenance.md."""

from airflow_paimon.dags import chain_dag

dag = chain_dag()
