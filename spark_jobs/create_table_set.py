"""The job ``create_table_set``; ``--help`` says what it does. Made by ``make functions``."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("create_table_set")
