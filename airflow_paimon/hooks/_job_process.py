"""A bundled job as a Python process beside the task: it dies with the task, and its result comes from a file."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_paimon.bundled import job_path
from airflow_paimon.core.requests.arguments import RESULT_URI, STORAGE_OPTIONS_ONCE, to_arguments
from airflow_paimon.core.requests.printed import printable
from airflow_paimon.core.requests.requests import Request, flag_name
from airflow_paimon.hooks._job_files import JobFolder
from airflow_paimon.hooks._supervisor_watch import supervised
from airflow_paimon.hooks.cluster_job import RESULT_LINE

TIED_CHILD = Path(__file__).with_name("_tied_child.py")
_GRACE_SECONDS = 3.0
"""For the job to end what it has begun. Airflow follows its SIGTERM with SIGKILL after 5 seconds."""


class JobProcess:
    """Runs one job. ``log``: the logger that gets its lines, but for the result, which who runs the job logs."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.killed = False

    def run(
        self,
        folder: JobFolder,
        request: Request,
        texts: Mapping[str, str],
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any] | None]:
        """Run the request's job and return its exit code, and its result if it left one.

        ``texts``: fields of the request that name a file, with the file's content. ``flags``: more than the request's.
        ``env``: variables besides those of this process.
        """
        shipped: dict[str, Any] = {name: str(folder.write(f"{name}.sql", text)) for name, text in texts.items()}
        request, result = dataclasses.replace(request, **shipped), folder.result()
        arguments = [*to_arguments(request), f"{flag_name(RESULT_URI)}={result.uri}", *flags]
        if request.storage_options:
            path = folder.write("storage-options.json", json.dumps(dict(request.storage_options)))
            arguments.append(f"{flag_name(STORAGE_OPTIONS_ONCE)}={path}")
        with supervised(self.end):
            code = self._run([str(job_path(request.operation)), *arguments], {**os.environ, **(env or {})})
        return code, result.take()

    def end(self) -> None:
        """End the job; returns within 4 seconds."""
        self.killed = True
        self._end()

    def _end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()

    def _run(self, command: list[str], env: Mapping[str, str]) -> int:
        tied = [sys.executable, "-I", "-S", str(TIED_CHILD), str(os.getpid()), sys.executable, *command]
        # Stdin is the task's line to its supervisor: the job must not hold it.
        self._process = subprocess.Popen(
            tied, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        try:
            if self.killed:  # while it was being started
                self._process.kill()
            for line in self._process.stdout:
                if not line.startswith(RESULT_LINE):
                    self._log.info("%s", printable(line.rstrip()))
            return self._process.wait()
        finally:
            if self._process.poll() is None:  # an exception, a timeout say, came between
                self._end()
                self._process.wait()
            self._process.stdout.close()
