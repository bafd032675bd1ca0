"""Create a chain table, or make a primary-key table one: both branches, all options. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("create_chain_table")
