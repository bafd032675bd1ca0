"""Put a branch's changes on a new branch of main's head.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("rebase_branch")
