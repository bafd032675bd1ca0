"""Run a function or statements over upstream tables, from a point on, into branches.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("replay_branch")
