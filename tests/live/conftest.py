"""One whole Airflow for all files of this folder, which one worker of pytest-xdist runs: each test adds its DAG."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.live.live_airflow import LiveAirflow, live_airflow


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a test that fails what Airflow logged: its processes and folders are gone afterwards."""
    report = yield
    airflow = getattr(item, "funcargs", {}).get("whole_airflow")
    if report.when == "call" and report.failed and airflow is not None:
        report.sections.extend(airflow.what_went_wrong())
    return report


@pytest.fixture(scope="package")  # its components look for work as long as they are there
def whole_airflow(java_home: Path) -> Iterator[LiveAirflow]:
    with live_airflow(Path(os.environ["AIRFLOW_HOME"]) / "live") as started:
        yield started


@pytest.fixture
def airflow(whole_airflow: LiveAirflow) -> Iterator[LiveAirflow]:
    """At the end the test's DAGs are paused: what it left unfinished starts nothing beside the next one."""
    yield whole_airflow
    whole_airflow.pause_all()
