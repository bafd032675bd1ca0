"""Create a branch from a tag, from a snapshot, or empty.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("create_branch")
