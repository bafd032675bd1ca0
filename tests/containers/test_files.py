"""docker/: what can be checked of it without a Docker engine."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import seaweed_server
from tests.containers.engine import FOLDER, Command, commands, compose_file
from tests.dags.conftest import load_program
from tests.environment import REPO_ROOT

SERVICES = compose_file()["services"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
LOCKED = (REPO_ROOT / "constraints.txt").read_text()
_KEYS = {"image", "build", "restart", "environment", "volumes", "depends_on", "command", "ports", "healthcheck",
         "hostname", "profiles"}  # fmt: skip


def test_everything_that_is_asked_for_is_there() -> None:
    components = {"api-server", "scheduler", "dag-processor", "triggerer"}
    assert components | {"postgres", "spark-master", "spark-worker-1", "spark-worker-2", "store"} <= set(SERVICES)
    for name in components:
        assert SERVICES[name]["command"][:2] == ["airflow", name]
    assert "\napache-airflow==3.3." in LOCKED


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_well_formed(name: str) -> None:
    service: dict[str, Any] = SERVICES[name]
    assert set(service) <= _KEYS
    assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?(-bookworm)?", service["image"]), "pinned"
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
    assert warehouse["extra"]["warehouse"].startswith("s3://lake/")
    keys = SERVICES["store"]["environment"]
    assert (warehouse["login"], warehouse["password"]) == (keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"])
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "spark://spark-master"
    assert SERVICES["load-flights"]["environment"].items() <= environment.items()


def test_the_store_is_the_seaweedfs_that_the_tests_run_and_keeps_its_data() -> None:
    store = SERVICES["store"]
    assert f"\nseaweedfs-bin=={store['image'].partition(':')[2]}\n" in LOCKED
    program = seaweed_server.binary()
    assert program is not None
    mode, *options = store["command"]
    listed = subprocess.run([program, "help", mode], capture_output=True, text=True, timeout=60).stderr
    known = re.findall(r"^  (-\S+)", listed, re.MULTILINE)
    for option in options:
        assert option.partition("=")[0] in known, option
    assert {"-dir=/data", "-bucket=lake", "-ip=store"} <= set(options)
    assert [v.partition(":")[2] for v in store["volumes"]] == ["/data"], "an address that changes would not find it"


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
    for line in (FOLDER / "requirements.txt").read_text().splitlines():
        name = re.split(r"[\[=]", line)[0]
        assert line.startswith("#") or "==" in line or f"\n{name}==" in LOCKED, f"{line} is not pinned"


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


def test_commands_of_a_page_end_where_they_are_complete() -> None:
    page = "```text\n$ one \\\n    two\n$ three '\nfour'\nfive\n```\n```bash\n$ six\n```\n"
    assert commands(page) == [Command("one \\\n    two", ""), Command("three '\nfour'", "five")]
