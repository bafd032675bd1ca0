"""Undo a correction of a pipeline, in all of its tables: docs/howto/pipeline-correction.md."""

from airflow_paimon.dags import pipeline_undo_dag

dag = pipeline_undo_dag()
