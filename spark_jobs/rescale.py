"""Distribute the rows of a table with fixed buckets to another number of buckets. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("rescale")
