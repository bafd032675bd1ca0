"""Merge the manifests of a branch into few, sorted by partition, without deleted entries.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("compact_manifest")
