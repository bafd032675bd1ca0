"""Write the rows of a query or a function into a branch. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("correct_branch")
