"""Find the stored files of all branches that hold rows of a condition, and who reaches them.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("find_rows")
