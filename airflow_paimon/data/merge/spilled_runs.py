"""Sorted runs of one bucket, in memory and on the local disk, which become one when all of its rows are there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from airflow_paimon.data.merge.engine import MergeRules
from airflow_paimon.data.merge.runs import merge_runs, spilling

RUN_ROWS = 32_768
"""Rows of a batch of a run."""

_BATCH_BYTES = 4 << 20
"""Of a batch of wide rows: one of each run is in memory."""


class RunBuffer:
    """Takes runs as ``runs_to_write`` returns them and makes one of them, in bounded memory.

    ``limit_bytes``: of the runs in memory; when they exceed it, all of them are put on the local disk. ``close``
    deletes them there.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._paths: list[Path] = []

    def __bool__(self) -> bool:
        return bool(self._held or self._paths)

    def add(self, run: pa.Table) -> None:
        """Add a run that is newer than those before."""
        if not run.num_rows:
            return
        self._held.append(run)
        self._held_bytes += run.nbytes
        if self._held_bytes >= self._limit:
            self._spill()

    def merged(self, rules: MergeRules) -> Iterator[pa.RecordBatch]:
        """Return the rows of all runs in key order, each key once; deletes stay."""
        if not self._paths and len(self._held) == 1:
            yield from self._held[0].to_batches()
            return
        runs = [*map(read_run, self._paths), *(iter(_in_batches(run)) for run in self._held)]
        yield from merge_runs(runs, replace(rules, keep_deletes=True))

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
        self._folder, self._paths, self._held, self._held_bytes = None, [], [], 0

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="airflow-paimon-spill-")
        for run in self._held:
            path = Path(self._folder.name, f"{len(self._paths)}.arrow")
            write_run(path, _in_batches(run))
            self._paths.append(path)
        self._held, self._held_bytes = [], 0


def _in_batches(run: pa.Table) -> list[pa.RecordBatch]:
    """Divide a run into batches small enough that one of each of many runs can be in memory."""
    wide = run.nbytes // run.num_rows + 1
    batches: list[pa.RecordBatch] = run.to_batches(max_chunksize=max(1, min(RUN_ROWS, _BATCH_BYTES // wide)))
    return batches


def write_run(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    """Write the batches of a run, at least one. Raises as ``spilling``."""
    with spilling(), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_run(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as batches:
        yield from batches
