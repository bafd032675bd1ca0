"""The oracles as fixtures, each started when a test first asks for it and kept for the session.

A conftest takes them with `from tests.oracles.fixtures import java_oracle, ...`. Without a prepared oracle (or without
the golden tables) a test skips and says so; with AIRFLOW_PAIMON_REQUIRE_ALL=1, as in CI, it fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from tests.flink_cluster import Flink, flink_cluster
from tests.oracles import layout
from tests.oracles.drivers import JavaOracle, PypaimonOracle, RustOracle, SparkConnectorOracle
from tests.oracles.golden import GoldenArchive, GoldenCase, golden_cases, golden_folder, unpack
from tests.oracles.processes import OracleProcess

REQUIRE_ALL = "AIRFLOW_PAIMON_REQUIRE_ALL"

Oracle = TypeVar("Oracle", bound=OracleProcess)

# Several conftests may take the fixtures; there is one process of each oracle all the same.
_started: dict[str, OracleProcess] = {}


def unavailable(reason: str) -> NoReturn:
    """Skips the test with the reason, or fails it where everything is required."""
    if os.environ.get(REQUIRE_ALL) == "1":
        pytest.fail(f"{reason} ({REQUIRE_ALL}=1)", pytrace=False)
    pytest.skip(reason)


def _started_oracle(name: str, kind: Callable[[Path], Oracle], scratch: Path) -> Iterator[Oracle]:
    if (reason := layout.missing(name)) is not None:
        unavailable(reason)
    oracle: Oracle = _started[name] if name in _started else kind(scratch)  # type: ignore[assignment]
    _started[name] = oracle
    yield oracle
    _started.pop(name, None)
    oracle.close()


@pytest.fixture(scope="session")
def java_oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaOracle]:
    """O3, Paimon's Java engine."""
    yield from _started_oracle("o3", JavaOracle, tmp_path_factory.mktemp("java-oracle"))


@pytest.fixture(scope="session")
def pypaimon_oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PypaimonOracle]:
    """O1, pypaimon."""
    yield from _started_oracle("o1", PypaimonOracle, tmp_path_factory.mktemp("pypaimon-oracle"))


@pytest.fixture(scope="session")
def rust_oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RustOracle]:
    """O2, pypaimon-rust."""
    yield from _started_oracle("o2", RustOracle, tmp_path_factory.mktemp("rust-oracle"))


@pytest.fixture(scope="session")
def connector_oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnectorOracle]:
    """O4, Paimon's Spark connector 0.9.0."""
    yield from _started_oracle("o4", SparkConnectorOracle, tmp_path_factory.mktemp("connector-oracle"))


def _started_flink(name: str, folder: Path) -> Iterator[Flink]:
    if (reason := layout.missing(name)) is not None:
        unavailable(reason)
    with flink_cluster(folder, name) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """Flink with Paimon's connector. A test makes a database and jobs of its own, and cancels these."""
    yield from _started_flink("flink", tmp_path_factory.mktemp("flink"))


@pytest.fixture(scope="session")
def flink120(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """Flink 1.20 with an older connector of Paimon."""
    yield from _started_flink("flink120", tmp_path_factory.mktemp("flink120"))


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenArchive]:
    """Gives an archive of the golden tables, unpacked once for the session; its tables are for reading only."""
    if golden_folder() is None:
        unavailable("no golden tables: set AIRFLOW_PAIMON_GOLDEN to the folder with the archives")
    scratch = tmp_path_factory.mktemp("golden")
    return lambda archive: unpack(archive, scratch)


def golden_params(archive: str, wanted: Callable[[GoldenCase], bool] = lambda case: case.as_stored) -> list[object]:
    """Cases to parametrize a test by, which also takes the fixture `golden`; without the golden tables one that
    skips (or fails) there."""
    cases = [pytest.param(case, id=case.id) for case in golden_cases(archive) if wanted(case)]
    return list(cases) or [pytest.param(None, id="no-golden-tables")]
