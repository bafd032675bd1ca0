"""docker/: what can be checked of it without a Docker engine."""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import open_table
from airflow_paimon.data import read_arrow
from tests.airflow.processes import wait_until
from tests.conftest import REPO_ROOT
from tests.dags.compose import FOLDER, IMAGE, Stack, compose_file, running_stack, wait_for_run
from tests.dags.conftest import load_program

SERVICES = compose_file()["services"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
_KEYS = {"image", "build", "restart", "environment", "volumes", "depends_on", "command", "ports", "healthcheck",
         "hostname", "profiles"}  # fmt: skip


def test_everything_that_is_asked_for_is_there() -> None:
    components = {"api-server", "scheduler", "dag-processor", "triggerer"}
    assert components | {"postgres", "spark-master", "spark-worker-1", "spark-worker-2", "store"} <= set(SERVICES)
    for name in components:
        assert SERVICES[name]["command"][:2] == ["airflow", name]
    versions = dict(re.findall(r"^([\w.-]+)==(\S+)", (REPO_ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert versions["apache-airflow"].startswith("3.3.")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_well_formed(name: str) -> None:
    service: dict[str, Any] = SERVICES[name]
    assert set(service) <= _KEYS
    assert re.fullmatch(r"(airflow-paimon|postgres):\d+\.\d+(\.\d+)?(-bookworm)?", service["image"]), "pinned"
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "nothing is published beyond this machine"
    declared = set(compose_file()["volumes"])
    assert {v.partition(":")[0] for v in service.get("volumes", ())} <= declared
    waits = service.get("depends_on", ())
    assert set(waits) <= set(SERVICES)
    if isinstance(waits, dict):
        for other, how in waits.items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], other
    for value in service.get("environment", {}).values():
        assert isinstance(value, str), "YAML would make it something else"
        for host in re.findall(r"(?://|@)([a-z][a-z-]*)(?::\d+)?(?=[/\"]|$)", value):
            assert host in {*SERVICES, "localhost", "lake"}, host


def test_the_connections_are_what_airflow_reads() -> None:
    environment = SERVICES["scheduler"]["environment"]
    warehouse = json.loads(environment["AIRFLOW_CONN_PAIMON_DEFAULT"])
    assert warehouse["extra"]["warehouse"].startswith(f"s3://{SERVICES['store']['command'][-1]}/")
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "spark://spark-master"
    assert SERVICES["load-flights"]["environment"].items() <= environment.items()


def test_the_image_is_pinned_and_installs_the_wheel() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.12\.\d+-slim-bookworm", b) for b in bases)
    assert "pip wheel" in DOCKERFILE
    assert "-c /tmp/constraints.txt" in DOCKERFILE
    copied = [w for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE) for w in line.split()]
    shown = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    for path in copied:
        assert (REPO_ROOT / path).exists(), path
        assert f"!{path.partition('/')[0]}" in shown, path
    locked = (REPO_ROOT / "constraints.txt").read_text()
    for line in (FOLDER / "requirements.txt").read_text().splitlines():
        name = re.split(r"[\[=]", line)[0]
        assert line.startswith("#") or "==" in line or f"\n{name}==" in locked, f"{line} is not pinned"


def test_the_wheel_is_built_of_what_the_image_copies(tmp_path: Path) -> None:
    """``docker build`` has nothing else: no file that is not copied, none that the ignore file hides."""
    (stage,) = re.findall(r"^FROM .* AS wheel$(.*?)^FROM ", DOCKERFILE, re.MULTILINE | re.DOTALL)
    for line in re.findall(r"^COPY (.+)$", stage, re.MULTILINE):
        *sources, target = line.split()
        for path in sources:
            _copy(REPO_ROOT / path, tmp_path / (path if target == "./" else target))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "out").glob("airflow_paimon-*.whl"))


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def test_the_correction_is_that_of_the_demo() -> None:
    flights = load_program("_flights")
    conf = json.loads((FOLDER / "correct_flights.json").read_text())
    assert conf == {
        "table": flights.TABLE,
        "sql": flights.CORRECTION,
        "partitions": flights.PARTITIONS,
        "reason": flights.REASON,
    }


# Eleven processes and a gigabyte of packages: too much for each run of the suite; docs/docker.md says how to run it.
@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.skipif(not IMAGE, reason="AIRFLOW_PAIMON_IMAGE names no environment into which the image's steps were run")
def test_the_services_correct_the_flights(tmp_path: Path, java_home: Path) -> None:
    """All of them as processes, with the commands of docs/docker.md; nobody is asked for an approval."""
    conf = json.loads((FOLDER / "correct_flights.json").read_text()) | {"approval": False}
    with running_stack(tmp_path, java_home) as stack:
        assert "336776 flights are in demo.flights" in stack.run("load-flights")
        wait_until(lambda: _is_known(stack, "data_correction"), "the DAG is parsed", 120)
        stack.run("scheduler", "airflow", "dags", "unpause", "data_correction")
        stack.run(
            "scheduler", "airflow", "dags", "trigger", "data_correction", "--run-id", "fix", "--conf", json.dumps(conf)
        )
        assert wait_for_run(stack, "data_correction", "fix") == "success"
        options = {"endpoint_url": f"http://127.0.0.1:{stack.ports['5000']}", "key": "a", "secret": "b"}
        flights = load_program("_flights")
        rows = read_arrow(open_table("s3://lake/warehouse", flights.TABLE, storage_options=options))
        assert rows.num_rows == flights.ROWS
        assert max(day["max"] for day in flights.by_day(rows, flights.WRONG_DAYS)) < 1000, "minutes, not seconds"
        assert "Registering app" in (tmp_path / "spark-master.log").read_text()


def _is_known(stack: Stack, dag_id: str) -> bool:
    try:
        return bool(stack.api(f"dags/{dag_id}")["dag_id"])
    except urllib.error.HTTPError:
        return False
