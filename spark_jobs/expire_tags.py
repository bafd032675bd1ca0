"""The job ``expire_tags``; ``--help`` says what it does. Made by ``make functions``."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("expire_tags")
