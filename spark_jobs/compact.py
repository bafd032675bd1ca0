"""Write the small files of an append table together, and drop deleted rows. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("compact")
