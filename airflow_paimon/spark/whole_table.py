"""Runs work on all files of a table in Spark tasks: a manifest, or a folder, or a few small ones in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_paimon.core.parallel.workers import Piece
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import cores_of, map_tasks, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")

_FILE_BYTES = 64
"""What a task gives back of a file, about."""
_AT_ONCE_BYTES = 128 << 20
"""Of results that come to the driver at once, whose JVM holds them too."""


@dataclass(frozen=True, slots=True)
class PiecesInTasks:
    """See ``RunPieces``. ``session``: gives the session, which starts when there is work for it. ``name``: for people.

    Results come in waves of tasks, so that those of all tasks are never in memory at once.
    """

    session: Callable[[], SparkSession]
    name: str

    def __call__(
        self, function: Callable[[Sequence[Any]], Iterable[R]], pieces: Sequence[Piece], memory_bytes: int
    ) -> Iterator[R]:
        spark = self.session()
        files = sum(p.files for p in pieces)
        most = max(min(memory_bytes, _AT_ONCE_BYTES) // _FILE_BYTES, -(-files // len(pieces)) * cores_of(spark))
        for wave in pack(pieces, lambda piece: piece.files, most):
            frame = map_tasks(spark, [[p.items] for p in wave], lambda items: ship(lambda: function(items)), SCHEMA)
            with task_errors(), progress(spark, f"{self.name}: {sum(p.files for p in wave)} of {files} files"):
                results = collect(frame)
            yield from results
