"""Erase rows of a condition from main and every branch, and from what old snapshots and tags still hold.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("erase_rows")
