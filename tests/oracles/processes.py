"""Oracle processes: started once, asked by JSON lines, ended by their id."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

DEFAULT_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 20.0
# An oracle lives in an environment of its own: what points into the caller's is taken away.
_FOREIGN = frozenset(
    {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "CLASSPATH"}
)


class OracleError(Exception):
    """The oracle's engine refused or failed; `engine_class` is the class of its exception."""

    def __init__(self, message: str, engine_class: str = "") -> None:
        super().__init__(message)
        self.engine_class = engine_class


class OracleGoneError(Exception):
    """The oracle's process ended or did not answer in time; it can't be used any more."""


class OracleProcess:
    """One oracle's process. Context manager; closing stdin ends it, and its id when it doesn't go by itself."""

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                env={**{key: value for key, value in os.environ.items() if key not in _FOREIGN}, **(env or {})},
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._answers.put(line)
        self._answers.put(None)

    def request(self, op: str, timeout_s: float = DEFAULT_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Asks and waits; fields that are None are left out. Raises OracleError for the engine's own refusals."""
        message = {"op": op, **{name: value for name, value in fields.items() if value is not None}}
        stdin = self._process.stdin
        if stdin is None or self._process.poll() is not None:
            raise OracleGoneError(f"{self.name} has ended (exit {self._process.poll()}): {self._last_words()}")
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise OracleGoneError(f"{self.name} did not answer {op} in {timeout_s} s: {self._last_words()}") from None
        if line is None:
            self.close()
            raise OracleGoneError(f"{self.name} ended during {op}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise OracleError(f"{self.name} {op}: {answer['error']}", answer["class"])
        return answer

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        """Ends the process; does nothing when it has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(CLOSE_TIMEOUT_S)
        self._reader.join(CLOSE_TIMEOUT_S)
        if stdout is not None:
            stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
