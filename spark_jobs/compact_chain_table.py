"""Compact partitions of a chain table into full ones in its snapshot branch.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("compact_chain_table")
