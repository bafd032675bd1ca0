"""Merge small files and sorted runs into few, and drop deleted rows.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("compact")
