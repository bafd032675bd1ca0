"""Roll a branch back to the live files of an earlier snapshot or tag, as a new snapshot.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("rollback_to")
