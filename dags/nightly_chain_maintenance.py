"""Nightly maintenance of a chain table: docs/chain-tables.md."""

from airflow_paimon.dags import chain_dag

dag = chain_dag()
