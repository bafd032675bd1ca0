"""Drop partitions that are too old; in a chain table, whole segments.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("expire_partitions")
