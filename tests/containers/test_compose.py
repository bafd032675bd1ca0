"""docker/compose.yaml on a Docker engine, by the commands of docs/docker.md: to a corrected table that stays."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.airflow.processes import wait_until
from tests.containers.engine import COMPOSE_FILE, Command, commands, docker, missing, run
from tests.containers.stand_ins import provide_base_images
from tests.dags.conftest import load_program
from tests.environment import REPO_ROOT
from tests.loopback import free_port

_DAG = "/api/v2/dags/data_correction"
_COMPOSE = ("compose", "-f", str(COMPOSE_FILE))
_WRONG_DAYS = "33060 minutes late at most"


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.skipif(os.environ.get("AIRFLOW_PAIMON_CONTAINERS") != "1", reason="for `make compose-test`: takes minutes")
def test_the_commands_of_the_page_correct_the_flights_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing():
        pytest.skip(reason)
    stand_ins = provide_base_images()
    print("compose-test: stand-ins are", ", ".join(stand_ins) or "none of the images", file=sys.stderr)
    page = (REPO_ROOT / "docs/docker.md").read_text()
    start, load, unpause, trigger, read = commands(page)
    airflow_port, spark_port = free_port(), free_port()
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "airflow-paimon-test")
    monkeypatch.setenv("AIRFLOW_PORT", str(airflow_port))
    monkeypatch.setenv("SPARK_PORT", str(spark_port))
    with _removed_afterwards():
        run(start)
        run(load)
        run(Command(read.text, _WRONG_DAYS))
        airflow = _logged_in(airflow_port)
        wait_until(lambda: _answer(airflow, _DAG), "the DAG is parsed", 60, pause=2)
        run(unpause)
        run(trigger)
        _approve(airflow)
        assert _end(airflow) == "success"
        run(read)
        assert _completed_jobs(spark_port) == 1
        docker(*_COMPOSE, "kill")
        docker(*_COMPOSE, "down")  # now only the volumes are left
        docker(*_COMPOSE, "up", "--detach")
        run(read)
        assert _end(_logged_in(airflow_port)) == "success"


@contextmanager
def _removed_afterwards() -> Iterator[None]:
    """Containers of an earlier run that was killed go as well; when the test fails, their logs are shown."""
    down = (*_COMPOSE, "--profile", "tools", "down", "--volumes", "--remove-orphans")
    docker(*down)
    try:
        yield
    except BaseException:
        print(docker(*_COMPOSE, "ps", "--all", check=False).stdout)
        print(docker(*_COMPOSE, "logs", "--tail", "60", check=False).stdout)
        raise
    finally:
        docker(*down)


def _logged_in(port: int) -> Any:
    airflow = load_program("demo_ui").Api(port)
    found = wait_until(lambda: _answer(airflow, "/auth/token"), "the API server answers", 60, pause=2)
    airflow.token = found["access_token"]
    return airflow


def _answer(airflow: Any, path: str) -> dict[str, Any]:
    """What the API answers; nothing while it is starting, or where there is nothing yet."""
    try:
        found: dict[str, Any] = airflow.call(path)
    except urllib.error.HTTPError as refusal:
        assert refusal.code == 404, refusal
        return {}
    except OSError:
        return {}
    return found


def _run_of(airflow: Any) -> dict[str, Any]:
    (found,) = airflow.call(f"{_DAG}/dagRuns")["dag_runs"]
    run: dict[str, Any] = found
    return run


def _tasks(airflow: Any) -> dict[str, str | None]:
    found = airflow.call(f"{_DAG}/dagRuns/{_run_of(airflow)['dag_run_id']}/taskInstances")["task_instances"]
    return {task["task_id"]: task["state"] for task in found}


def _approve(airflow: Any) -> None:
    """Wait for the question, and answer it as the page of required actions does.

    Not before the scheduler knows that the process that asked has ended: if it hears of that when the task is queued
    again, Airflow 3.3 tries the task again, which asks anew.
    """

    def asked() -> bool:
        states = _tasks(airflow)
        assert not {"failed", "upstream_failed"} & set(states.values()), states
        if states["approve"] != "awaiting_input":
            return False
        ended = f"TaskInstance Finished: dag_id={_DAG.rpartition('/')[2]}, task_id=approve,"
        return ended in docker(*_COMPOSE, "logs", "scheduler").stdout

    wait_until(asked, "somebody is asked for an approval", 60, pause=2)
    path = f"{_DAG}/dagRuns/{_run_of(airflow)['dag_run_id']}/taskInstances/approve/-1/hitlDetails"
    assert "(3 partitions)" in airflow.call(path)["subject"]
    airflow.call(path, {"chosen_options": ["Approve"], "params_input": {}}, method="PATCH")


def _end(airflow: Any) -> str:
    wait_until(lambda: _run_of(airflow)["state"] in ("success", "failed"), "the DAG run ends", 60, pause=2)
    return str(_run_of(airflow)["state"])


def _completed_jobs(port: int) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/json/", timeout=30) as answer:
        return len(json.load(answer)["completedapps"])
