"""Make the next version of a set of tables: one snapshot of each, read as one.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("create_table_set")
