"""Publish a branch onto main; refused if main changed since the branch point.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("fast_forward")
