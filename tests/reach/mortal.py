"""A program that performs operations, each in a process of its own, which may kill itself at a change of the storage.

Reads lines: the operation's arguments as JSON, ``_dies`` among them (see `Death`). Answers with one line each: the
result, the error, or ``{"killed": ["create", "snapshot/snapshot-7"]}``. Nothing but what the operations import stands
in the processes that are forked: no connection, no thread.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import tests
from airflow_paimon import execution
from airflow_paimon.core.catalogs.table_store import CatalogTableStore
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compact import compact
from tests.stores import MUTATIONS, _Wrapper

T = TypeVar("T")
COMMITTED = "committed"
"""Dies when the snapshot is put, before anything else learns of it: a lock of the catalog is still held."""


@dataclass(frozen=True)
class Mortal:
    """A running program, which performs one operation after the other."""

    process: subprocess.Popen[str]

    def perform(self, operation: str, values: dict[str, Any], dies: int | str = 0) -> dict[str, Any]:
        """``dies``: at which change of the storage, from 1, before it is made; or `COMMITTED`; 0: it lives."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**values, "_operation": operation, "_dies": dies}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def mortal() -> Iterator[Mortal]:
    root = Path(tests.__file__).parent.parent
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Mortal(process)


class DyingStore(_Wrapper):
    """Sends SIGKILL to its own process; says before at which change."""

    def __init__(self, inner: Store, dies: int | str, say: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(inner)
        self._dies, self._say, self._count = dies, say, 0
        self._lock = threading.Lock()

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if method not in MUTATIONS:
            return action()
        with self._lock:
            self._count += 1
            if self._count == self._dies:
                self._die(method, path)
        result = action()
        if self._dies == COMMITTED and re.fullmatch(r"(.*/)?snapshot/snapshot-\d+", path) and method == "create":
            self._die(method, path)
        return result

    def _die(self, method: str, path: str) -> None:
        self._say({"killed": [method, path]})
        os.kill(os.getpid(), signal.SIGKILL)


def perform(values: dict[str, Any], dies: int | str, say: Callable[[dict[str, Any]], None]) -> OperationResult:
    request = build_request(values.pop("_operation"), values)
    context = open_context(request)
    context = replace(context, table=_dying(context.table, dies, say))
    if isinstance(request, Compact):
        return compact(context, request)
    return execution.perform(context, request)


def _dying(table: Table, dies: int | str, say: Callable[[dict[str, Any]], None]) -> Table:
    store = table.store
    if isinstance(store, CatalogTableStore):  # it dies while it holds the lock, too
        inner = DyingStore(store.inner, dies, say)
        return replace(table, store=CatalogTableStore(inner, store.table, store.guard, store.refused))
    return replace(table, store=DyingStore(store, dies, say))


def main() -> None:
    for line in sys.stdin:
        values = json.loads(line)
        dies = values.pop("_dies")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = live(values, dies)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) != (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            print(json.dumps({"error": f"ended with status {status}"}), flush=True)


def live(values: dict[str, Any], dies: int | str) -> int:
    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer, default=str), flush=True)

    try:
        say(perform(values, dies, say).to_json())
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
    return 0


if __name__ == "__main__":
    main()
