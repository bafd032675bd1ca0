"""The job ``mark_partition_done``; ``--help`` says what it does. Made by ``make functions``."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("mark_partition_done")
