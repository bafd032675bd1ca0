"""``python -m airflow_paimon``: look-ups for people. Needs neither Airflow nor Spark, changes nothing."""
