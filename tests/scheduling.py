"""In which order tests run, and which of pytest-xdist's workers runs which, so that few start the same thing.

A worker gets a file at a time. What needs the same things that are slow to start goes to one worker as long as there is
some, and what takes long goes first: a long file at the end leaves the other workers idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_LONG_FIRST = (
    "live/",
    "oracles/test_flink",
    "dags/test_ui",
    "dags/",
    "oracles/",
    "airflow/",
    "spark/",
    "stateful/",
    "jobs/",
)
_CONNECTOR = ("char", "connector_engine", "engine_faults", "expire", "interop_publish", "matrix", "oracles")
_ONE_WORKER = (
    ("tests/live/",),
    ("tests/oracles/test_flink",),
    tuple(f"tests/oracles/test_{name}.py" for name in _CONNECTOR),
)
"""Beginnings of the names of files that share something that is slow to start: one worker gets all of them."""
_KINDS = (
    ("tests/live/", "tests/dags/", "tests/airflow/", "tests/plugin/"),
    ("tests/oracles/", "tests/data/test_java.py", "tests/data/chain/test_compact_java.py"),
    ("tests/spark/", "tests/golden/test_statement_lives.py", "tests/data/test_row_tracking_tries.py"),
)
"""What waits much of its time, for Airflow, a cluster or an approval; what asks the oracles; what computes in Spark,
with all workers from the third on. Workers without any of their own take what needs none of these, and then the rest.
"""


def sort(items: list[pytest.Item]) -> None:
    """Put the files that take long first; the order within a file stays."""

    def place(item: pytest.Item) -> int:
        path = item.nodeid.removeprefix("tests/")
        return next((at for at, begin in enumerate(_LONG_FIRST) if path.startswith(begin)), len(_LONG_FIRST))

    items.sort(key=place)


class ByFileOrFolder(LoadFileScheduling):  # type: ignore[misc]
    """Gives a worker what needs what it has started."""

    def _split_scope(self, nodeid: str) -> str:
        return next((names[0] for names in _ONE_WORKER if nodeid.startswith(names)), super()._split_scope(nodeid))

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(_next_scope(self.workqueue, self.nodes.index(node)), last=False)
        super()._assign_work_unit(node)


def _next_scope(waiting: Iterable[str], worker: int) -> str:
    """Choose what a worker gets of the files and folders that wait, which are in the order in which they should run."""

    def place(scope: str) -> int:
        kind = next((at for at, folders in enumerate(_KINDS) if scope.startswith(folders)), None)
        # What waits is the last that another worker takes: it needs an Airflow of its own for it.
        return 0 if kind == min(worker, len(_KINDS) - 1) else 1 if kind is None else 3 if kind == 0 else 2

    return min(waiting, key=place)
