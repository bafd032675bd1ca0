"""Expire old long-lived changelogs, and delete the files that nothing needs. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("expire_changelogs")
