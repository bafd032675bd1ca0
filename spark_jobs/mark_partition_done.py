"""Mark partitions as complete. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("mark_partition_done")
