"""Find half-made branches, lost protective tags, missing files and stuck journals. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("check_table")
