"""Airflow with Celery and two workers that share nothing but the DAG folder: one is lost, the other one goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from airflow_paimon.core.schema.tables import create_table
from tests.airflow.processes import running, wait_until
from tests.conftest import require
from tests.core.tables import names
from tests.dags.conftest import CONF, RIGHT, TABLE, WRONG, amounts, expected, fill_orders
from tests.environment import REPO_ROOT
from tests.live.live_airflow import LiveAirflow, live_airflow
from tests.redis_server import redis_server
from tests.s3_server import KEY, REGION, SECRET, make_bucket, s3_server, storage_options

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DAG = "data_correction"


@dataclass(frozen=True)
class Workers:
    """Celery workers, each with a home, a working folder and a folder for temporary files of its own."""

    airflow: LiveAirflow
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        for name in names:
            self._start(name)
        wait_until(lambda: all(" ready." in self.log(name) for name in names), "the workers are ready", 240, pause=0.5)

    def _start(self, name: str) -> None:
        home = self.folder / name
        for part in ("airflow", "work", "tmp"):
            (home / part).mkdir(parents=True)
        # Neither connections nor the database's address, and no key to sign with: what a task needs comes by the API.
        left_out = ("AIRFLOW_CONN_", "AIRFLOW__DATABASE", "AIRFLOW__API_AUTH", "SPARK_CONF")
        inherited = {k: v for k, v in self.airflow.environment.items() if not k.startswith(left_out)}
        own = {"HOME": home, "AIRFLOW_HOME": home / "airflow", "TMPDIR": home / "tmp", "PWD": home / "work"}
        with (self.folder / f"{name}.log").open("wb") as log:
            options = ["--celery-hostname", name, "--concurrency", "2", "--skip-serve-logs", "--without-mingle"]
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "airflow", "celery", "worker", *options],
                env=inherited | {k: str(v) for k, v in own.items()},
                cwd=home / "work", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def lose(self, name: str) -> None:
        """SIGKILL for all that runs on this worker, and its disk is gone."""
        known: set[int] = set()

        def is_gone() -> bool:
            known.update(self.pids(name))
            for pid in known:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return all(_has_ended(pid) for pid in known)

        wait_until(is_gone, f"nothing of worker {name} is left", 10)
        self.processes.pop(name).wait()
        shutil.rmtree(self.folder / name)

    def pids(self, name: str) -> set[int]:
        """Processes of a worker: what descends from it, and what inherited its home, whatever became of their parents.

        Airflow's own processes, whose title is set, don't show what they inherited.
        """
        mark = f"AIRFLOW_HOME={self.folder / name / 'airflow'}".encode()
        parents, found = {}, {self.processes[name].pid}
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                parents[int(place.name)] = int(_status(int(place.name))[1])
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    found.add(int(place.name))
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found


def _status(pid: int) -> list[str]:
    """State, parent and more."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _has_ended(pid: int) -> bool:
    try:
        return _status(pid)[0] == "Z"
    except OSError:
        return True


@contextmanager
def celery_airflow(folder: Path) -> Iterator[Workers]:
    with redis_server(folder) as redis:
        settings = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": f"{redis}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"{redis}/1",
            # Seconds without a sign of life after which a task is tried again; 300 by default.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        }
        with live_airflow(folder / "airflow", settings) as airflow:
            workers = Workers(airflow, folder / "workers")
            try:
                yield workers
            finally:
                for name in [*workers.processes]:
                    workers.lose(name)


def test_a_correction_goes_on_at_the_other_worker(tmp_path: Path, java_home: Path) -> None:
    require(find_spec("celery") is not None, "Celery is not installed: `make reach` does it")
    with s3_server() as endpoint, celery_airflow(tmp_path) as workers:
        airflow = workers.airflow
        warehouse, options = f"s3://{make_bucket(endpoint)}/warehouse", storage_options(endpoint)
        main = fill_orders(partial(create_table, warehouse, TABLE, storage_options=options))
        before = names(main)
        extra = {"warehouse": warehouse, "endpoint": endpoint, "region": REGION, "local_execution": "none"}
        airflow.connect("lake", "paimon", extra, login=KEY, password=SECRET)
        airflow.connect("engine", "spark", {}, host="local[1]")
        airflow.add_dags(f"{DAG}.py", (REPO_ROOT / "dags" / f"{DAG}.py").read_text())
        workers.start("one", "two")
        dag = f"/api/v2/dags/{DAG}"
        wait_until(lambda: airflow.rows("select 1 from dag where dag_id = ? and not is_stale", DAG), "the DAG is there",
                   120, pause=0.5)  # fmt: skip
        conf = {**CONF, "paimon_conn_id": "lake", "spark_conn_id": "engine"}
        airflow.api.call(f"{dag}/dagRuns", {"dag_run_id": "r", "logical_date": None, "conf": conf})

        driver = wait_until(
            lambda: running(f"correct_branch.py --warehouse={warehouse}"), "the correction is submitted", 240
        )
        (lost,) = (name for name in ("one", "two") if set(driver) & workers.pids(name))
        workers.lose(lost)
        assert airflow.task("correct") == ("running", 1)
        assert not running(f"--warehouse={warehouse}"), "no driver outlives its worker"
        assert main.latest_snapshot_id() == 2

        # All that follows, the second try among it, is the other worker's.
        wait_until(lambda: airflow.task("approve")[0] == "awaiting_input", "somebody is asked", 480, pause=0.5)
        assert airflow.task("correct") == ("success", 2)
        assert {airflow.task(name) for name in ("check_params", "tag_main", "create_branch", "diff")} == {
            ("success", 1)
        }
        answer = {"chosen_options": ["Approve"], "params_input": {}}
        airflow.api.call(f"{dag}/dagRuns/r/taskInstances/approve/-1/hitlDetails", answer, method="PATCH")
        over = wait_until(
            lambda: airflow.rows("select state from dag_run where dag_id = ? and state in ('success', 'failed')", DAG),
            "the run is over", 480, pause=0.5,
        )  # fmt: skip
        assert over == [("success",)]
        assert amounts(main, *RIGHT, *WRONG) == expected(*RIGHT, *WRONG)
        assert [s.id for s in main.snapshots()] == [1, 2, 3], "published once"
        assert len(names(main) & before) == len(before) // 2
        assert main.branch_names() == [], "and cleaned up"
        assert airflow.xcom("correct")["changed"] is True
        assert SECRET not in workers.log("two") + workers.log("one")
