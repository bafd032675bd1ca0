"""Find the stored files that hold rows of a condition, and who reaches them. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("find_rows")
