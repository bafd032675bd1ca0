"""Change columns and options of a table's branch, all changes as one schema version.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("alter_table")
