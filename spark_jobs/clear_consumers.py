"""Delete positions of streaming readers, so that they keep no snapshot any more.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("clear_consumers")
