"""Say what a correction will read, write and meet, by metadata alone.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("plan_correction")
