"""Count the bytes that each branch, tag and range of snapshots holds. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("storage_usage")
