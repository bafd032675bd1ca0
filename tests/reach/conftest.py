"""Tests of whole deployments. They take minutes each, so only `make reach` runs them."""

import os

from tests.airflow.conftest import airflow_home, run_dag

__all__ = ["airflow_home", "run_dag"]

collect_ignore_glob = [] if os.environ.get("AIRFLOW_PAIMON_REACH") == "1" else ["test_*.py"]
