"""Apply one schema change to the three branches of a chain table, all or none. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("alter_chain_table")
