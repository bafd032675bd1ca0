"""Delete branches whose retention is over, unless they are protected or have unpublished commits.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("expire_branches")
