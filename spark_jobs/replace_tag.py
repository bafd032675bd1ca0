"""The job ``replace_tag``; ``--help`` says what it does. Made by ``make functions``."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("replace_tag")
