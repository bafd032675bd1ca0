"""Delete branches whose retention is over. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("expire_branches")
