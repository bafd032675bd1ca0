"""Distribute the rows of a table with fixed buckets, or of some partitions, to another number of buckets.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("rescale")
