"""Mark partitions as complete, for whoever waits for that.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("mark_partition_done")
