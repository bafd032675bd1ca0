"""Rename a tag of a branch. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("rename_tag")
