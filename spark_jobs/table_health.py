"""Judge tables by their files and metadata: a score, its reasons, and what mends them.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("table_health")
