"""Change a branch's owner, reason, retention or protection.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("alter_branch")
