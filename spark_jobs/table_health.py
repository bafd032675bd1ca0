"""Judge a table by its files and metadata, with reasons. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("table_health")
