"""Set the automatic tags of main that are due, and expire those that are too many.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("trigger_tag_automatic_creation")
