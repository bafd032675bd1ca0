"""Remove branches and tags that corrections of a Paimon table left: docs/runbook.md."""

from airflow_paimon.dags import correction_cleanup_dag

dag = correction_cleanup_dag()
