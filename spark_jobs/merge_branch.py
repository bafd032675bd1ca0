"""Publish a branch onto main: a three-way merge by bucket, as one snapshot. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("merge_branch")
