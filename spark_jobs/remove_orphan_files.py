"""Delete old files that no snapshot, tag or changelog of any branch refers to.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("remove_orphan_files")
