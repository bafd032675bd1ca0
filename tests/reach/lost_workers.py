"""Workers that are lost with their machine while their job is at work."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_paimon.core.requests.requests import Request
from tests.airflow.processes import wait_until

_WORKER = """
import json, sys
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.hooks.spark_job import SparkJobHook
hook, request, where = json.load(sys.stdin)
SparkJobHook("cluster", **hook).run_job(build_request("correct_branch", request), **where)
"""


def lose_worker(warehouse: str, hook: dict[str, Any], request: Request, tmp_path: Path) -> None:
    """Let a worker run a job, and kill everything of it when the job is at work, as on a lost machine.

    The worker has its own session; the job touches ``started``.
    """
    values = {k: v for k, v in dataclasses.asdict(request).items() if v}
    where = {"result_name": "k/try1.json", "results_folder": f"{warehouse}/_r"}
    with (tmp_path / "worker.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
    assert process.stdin
    process.stdin.write(json.dumps([hook, values, where]))
    process.stdin.close()
    wait_until((tmp_path / "started").exists, "the job is at work", 120)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
