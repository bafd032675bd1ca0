"""Count the bytes that each branch, tag and range of snapshots holds, and what its end would free.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("storage_usage")
