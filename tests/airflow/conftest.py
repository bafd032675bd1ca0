"""A real Airflow for these tests: its own home, a migrated SQLite database."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """Migrate the metadata database of the run's AIRFLOW_HOME."""
    from airflow.utils import db

    db.initdb()
    return Path(os.environ["AIRFLOW_HOME"])
