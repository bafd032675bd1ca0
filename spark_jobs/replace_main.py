"""Give main the whole state of a branch: rows, columns, options, and the branch's tags.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("replace_main")
