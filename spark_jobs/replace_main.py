"""Give main the whole state of a branch, and keep the previous one. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("replace_main")
