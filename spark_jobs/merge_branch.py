"""Publish a branch onto main as one snapshot; refused if main changed the same buckets. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("merge_branch")
