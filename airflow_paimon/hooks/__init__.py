"""Airflow hooks: the Paimon connection, and the submission of bundled jobs to Spark."""
