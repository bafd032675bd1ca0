"""Delete a branch other than main.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("delete_branch")
