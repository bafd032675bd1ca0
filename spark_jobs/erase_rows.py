"""Erase rows of a condition from main, every branch, and their history. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("erase_rows")
