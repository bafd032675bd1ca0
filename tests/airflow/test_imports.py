"""A DAG file pays for what importing an operator imports, in every parse."""

import subprocess
import sys

PROBE = """
import sys
from airflow.sdk import DAG
before = set(sys.modules)
import airflow_paimon.operators.branch, airflow_paimon.operators.maintenance
import airflow_paimon.sensors.snapshot, airflow_paimon.assets
new = set(sys.modules) - before
heavy = ("pyspark", "pyarrow", "numpy", "fastavro", "fsspec", "s3fs", "botocore", "requests",
         "airflow.providers.apache.spark", "airflow_paimon.core.table.table", "airflow_paimon.core.store")
print(sorted(m for m in new if m.startswith(heavy)))
"""


def test_importing_the_operators_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
