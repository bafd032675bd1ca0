"""Erase a person's rows from a Paimon table, with an approval and a proof: docs/howto/erase-rows.md."""

from airflow_paimon.dags import erasure_dag

dag = erasure_dag()
