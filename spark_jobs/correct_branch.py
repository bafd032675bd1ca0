"""Correct a branch by UPDATE, DELETE, MERGE or INSERT statements, or by the rows of a query or a function.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("correct_branch")
