"""A child that dies with the task: ``spark-submit``, or a bundled job in plain Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_paimon.bundled import job_path
from airflow_paimon.core.requests.printed import printable
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.hooks._job_files import RESULT_LINE, JobFolder, job_arguments
from airflow_paimon.hooks._supervisor_watch import supervised

_TIED_CHILD = Path(__file__).with_name("_tied_child.py")


class TiedProcess:
    """Runs one command at a time.

    ``log``: gets its lines, but for those by which a job prints its result: they are in ``results``. ``notice``: gets
    each line, too. ``grace``: seconds for it to end what it has begun; Airflow sends SIGKILL 5 seconds after SIGTERM.
    """

    def __init__(self, log: Any, notice: Callable[[str], None] = lambda line: None, grace: float = 0.0) -> None:
        self.killed = False
        self.results: list[str] = []
        self._log, self._notice, self._grace = log, notice, grace
        self._process: subprocess.Popen[str] | None = None

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        """Run a command to its end, and return its exit code. ``env``: variables besides those of this process."""
        tied = [sys.executable, "-I", "-S", str(_TIED_CHILD), str(os.getpid()), *command]
        self.results = []
        # Stdin is the task's line to its supervisor: the job must not hold it.
        self._process = subprocess.Popen(
            tied, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        try:
            if self.killed:  # while it was being started
                self._process.kill()
            for line in self._process.stdout:
                if line.startswith(RESULT_LINE):
                    self.results.append(line.strip())
                else:
                    self._notice(line)
                    self._log.info("%s", printable(line.rstrip()))
            return self._process.wait()
        finally:
            if self._process.poll() is None:  # an exception, a timeout say, came between
                self._end()
                self._process.wait()
            self._process.stdout.close()

    def end(self) -> None:
        """End the command, and each one that is still to be run; returns within 4 seconds."""
        self.killed = True
        self._end()

    def _end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        if self._grace:
            process.terminate()
            try:
                process.wait(self._grace)
            except subprocess.TimeoutExpired:
                pass
            else:
                return
        process.kill()


class JobProcess(TiedProcess):
    """Runs bundled jobs beside the task. ``log``: see ``TiedProcess``."""

    def __init__(self, log: Any) -> None:
        super().__init__(log, grace=3.0)

    def run_job(
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
        result = folder.result()
        arguments = job_arguments(folder, request, texts, result.uri)
        with supervised(self.end):
            code = self.run([sys.executable, str(job_path(request.operation)), *arguments, *flags], env or {})
        return code, result.take()
