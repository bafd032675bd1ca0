"""What ``airflow_paimon.open_table`` returns: a table whose rows and history a notebook reads and shows."""
