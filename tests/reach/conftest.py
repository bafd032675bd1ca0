"""Tests of deployments, and of each storage and catalog. They take minutes each, so only `make reach` runs them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.airflow.conftest import airflow_home, run_dag
from tests.places import EVERYTHING, Servers

__all__ = ["airflow_home", "run_dag"]

collect_ignore_glob = [] if EVERYTHING else ["test_*.py"]


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers behind all places; each starts when it is first needed."""
    with ExitStack() as stack:
        yield Servers(stack, tmp_path_factory.mktemp("servers"))
