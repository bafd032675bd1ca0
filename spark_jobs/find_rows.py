"""The job ``find_rows``; ``--help`` says what it does. Made by ``make functions``."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("find_rows")
