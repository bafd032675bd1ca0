"""Compare the rows of two branches, or of a branch and its base.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("diff_branches")
