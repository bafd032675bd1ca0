"""Repair the findings of check_table.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("repair_table")
