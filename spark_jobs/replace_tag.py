"""Give a tag another snapshot and retention.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("replace_tag")
