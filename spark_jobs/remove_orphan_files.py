"""Delete old files that nothing refers to. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("remove_orphan_files")
