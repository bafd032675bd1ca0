"""Publish a branch onto main as one snapshot, and keep what main got since.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("merge_branch")
