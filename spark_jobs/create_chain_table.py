"""Create a chain table, or convert a primary-key table, with its branches and options.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("create_chain_table")
