"""Correct a table and those that are made from it, publish all: docs/howto/pipeline-correction.md."""

from airflow_paimon.dags import pipeline_dag

dag = pipeline_dag()
