"""Find incomplete branches, missing protective tags, missing files and stale records.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("check_table")
