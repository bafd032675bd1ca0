"""Expire old snapshots, and delete the files that no branch, tag or reader needs any more.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("expire_snapshots")
