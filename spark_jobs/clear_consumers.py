"""Delete positions of streaming readers. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("clear_consumers")
