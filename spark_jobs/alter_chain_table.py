"""Apply one schema change to all three branches of a chain table, or to none.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("alter_chain_table")
