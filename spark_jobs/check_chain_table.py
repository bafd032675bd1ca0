"""Find problems of a chain table: option drift, gaps, stale partitions, hidden deltas.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("check_chain_table")
