"""PySpark's daemon, with what each Python worker that it forks would otherwise import anew: a second of CPU each."""

from pyspark.daemon import manager

import airflow_paimon.spark.tasks  # noqa: F401

if __name__ == "__main__":
    manager()
