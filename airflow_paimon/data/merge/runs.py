"""Merges the sorted runs of a section in bounded memory, whatever the merge engine (docs/contributing/format.md,
Merging).

All runs are advanced together: rows up to the lowest end of the current batches are complete in all runs, so they are
removed from all of them, merged with numpy, and returned in key order.

If there are many runs, neighbouring ones first become one run, on the local disk, that holds all versions of their keys
in the order of the runs. Nothing is merged there, so the result does not depend on how many runs there were.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_paimon.core.errors import FormatError, StorageError
from airflow_paimon.data.merge.engine import MergeRules, merge_slices
from airflow_paimon.data.merge.sort_keys import Keys, are_stable, sort_keys
from airflow_paimon.data.merge.versions import drop_retracts, gather

MOST_RUNS = 64
"""Runs that are open at once."""
_ALONE = 2

Run = Iterator[pa.RecordBatch]
Align = Callable[[Sequence[Run]], Iterator[tuple[list[pa.RecordBatch], list[Keys]]]]
"""Divides runs into slices with all versions of their keys, as ``align_runs``."""


@contextmanager
def few_runs(runs: Sequence[Run], align: Align) -> Iterator[Sequence[Run]]:
    """Return at most ``MOST_RUNS`` runs, oldest first, of any number of them. The first two, which may be by far the
    largest, stay alone; all others have the same columns. The temporary files are deleted at the end.
    """
    first, rest = runs[:_ALONE], runs[_ALONE:]
    with ExitStack() as stack:
        while len(rest) > MOST_RUNS - _ALONE:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-paimon-merge-"))
            groups = -(-(len(rest) - MOST_RUNS + _ALONE) // (MOST_RUNS - 1))
            kept = max(len(rest) - groups * MOST_RUNS, 0)
            made = []
            for start in range(kept, len(rest), MOST_RUNS):
                aligned = align(rest[start : start + MOST_RUNS])
                ordered = (rows for slices, keys in aligned for rows in _in_key_order(slices, keys))
                made.append(stored_run(Path(folder, f"{start}.arrow"), ordered))
            rest = [*rest[:kept], *made]
        yield [*first, *rest]


def stored_run(path: Path, batches: Iterable[pa.RecordBatch]) -> Run:
    """Write a run to the local disk; returns it, to be read once. Raises as ``spilling``."""
    writer = None
    with spilling():
        sink = pa.OSFile(str(path), "wb")
    with sink:
        for rows in batches:
            with spilling():
                writer = writer or pa.ipc.new_stream(sink, rows.schema)
                writer.write_batch(rows)
        if writer is not None:
            with spilling():
                writer.close()
    return _read(path)


@contextmanager
def spilling() -> Iterator[None]:
    """Say what to do where the local disk doesn't take sorted rows.

    Raises:
        StorageError: names the temporary folder.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Sorted rows can't be written to the temporary folder {tempfile.gettempdir()}: {error.strerror or error}. "
            f"Name a folder with more space by the environment variable TMPDIR"
        ) from error


def _in_key_order(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches about as large as the slices; all versions of a key are in one."""
    together = np.concatenate(keys)
    order = np.argsort(together, kind="stable")
    ordered, schema = together[order], slices[0].schema
    least = -(-len(order) // len(slices))
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    cuts = np.unique(np.searchsorted(starts, np.arange(0, len(order), least)))
    begins = starts[cuts[cuts < len(starts)]].tolist()
    columns = [gather([s.column(name) for s in slices], order) for name in schema.names]
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        yield whole.slice(begin, end - begin)


def _read(path: Path) -> Run:
    if path.stat().st_size:
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as batches:
            yield from batches
    path.unlink()


def merge_runs(runs: Sequence[Iterator[pa.RecordBatch]], rules: MergeRules) -> Iterator[pa.RecordBatch]:
    """Merge sorted runs, oldest first, into batches of live rows in key order. One batch of each run is in memory, of
    ``MOST_RUNS`` runs at most.

    Raises:
        FormatError: a run is not sorted by the key.
    """
    with runs_at_once(runs, rules) as few:
        for slices, keys in align_runs(few, rules):
            merged = merge_slices(slices, keys, rules)
            if merged.num_rows:
                yield merged


def runs_at_once(
    runs: Sequence[Iterator[pa.RecordBatch]], rules: MergeRules
) -> AbstractContextManager[Sequence[Iterator[pa.RecordBatch]]]:
    """Return as few runs as may be open at once, with all versions of these; see ``few_runs``."""
    return few_runs(runs, lambda some: align_runs(some, rules))


def align_runs(
    runs: Sequence[Iterator[pa.RecordBatch]], rules: MergeRules
) -> Iterator[tuple[list[pa.RecordBatch], list[Keys]]]:
    """Divide sorted runs into slices, with their keys, each with all versions of its keys, in key order.

    Raises:
        FormatError: a run is not sorted by the key.
    """
    inputs = [_RunReader(run, rules) for run in runs]
    while True:
        for one in inputs:
            one.fill()
        inputs = [one for one in inputs if one.rows]
        if not inputs:
            return
        for one, own in zip(inputs, _keys_of(inputs, rules), strict=True):
            one.take_keys(own)
        open_ends = [one.keys[-1] for one in inputs if not one.exhausted]
        slices: list[pa.RecordBatch] = []
        keys: list[Keys] = []
        for one in inputs:
            count = one.rows if not open_ends else int(np.searchsorted(one.keys, min(open_ends), side="right"))
            if count:
                batch, part = one.cut(count)
                slices.append(batch)
                keys.append(part)
        yield slices, keys


def _keys_of(inputs: Sequence[_RunReader], rules: MergeRules) -> list[Keys]:
    columns = [[one.batch.column(name) for name in rules.keys] for one in inputs]
    if not are_stable(columns[0]):
        return sort_keys(columns)
    return [sort_keys([own])[0] if one.is_new else one.keys for one, own in zip(inputs, columns, strict=True)]


class _RunReader:
    """One run: the rest of its current batch, and the source of the next."""

    def __init__(self, run: Iterator[pa.RecordBatch], rules: MergeRules) -> None:
        self._source = run
        self._rules = rules
        self._end: list[pa.Array] = []
        self.batch: pa.RecordBatch = None
        self.keys: Keys = np.empty(0)
        self.exhausted = False
        self.is_new = False

    @property
    def rows(self) -> int:
        return 0 if self.batch is None else int(self.batch.num_rows)

    def fill(self) -> None:
        """Get the next non-empty batch when the current one is used up."""
        while not self.rows and not self.exhausted:
            self.batch = next(self._source, None)
            self.exhausted = self.batch is None
            self.is_new = True
            if self.batch is not None and self._rules.engine.skips_retracts:
                self.batch = drop_retracts(self.batch)
            if self.rows:
                self._check_follows()

    def _check_follows(self) -> None:
        """Refuse a key that is not above those already merged: it would be merged without its other versions."""
        columns = [self.batch.column(name) for name in self._rules.keys]
        if self._end:
            before, after = sort_keys([self._end, [c.slice(0, 1) for c in columns]])
            if not before[0] < after[0]:
                raise _unsorted()
        self._end = [c.slice(self.rows - 1) for c in columns]

    def take_keys(self, keys: Keys) -> None:
        """Store the keys of the rest of the batch."""
        self.keys = keys
        if self.is_new and (keys[1:] < keys[:-1]).any():
            raise _unsorted()
        self.is_new = False

    def cut(self, count: int) -> tuple[pa.RecordBatch, Keys]:
        """Remove the first rows."""
        head, part = self.batch.slice(0, count), self.keys[:count]
        self.batch, self.keys = self.batch.slice(count), self.keys[count:]
        return head, part


def _unsorted() -> FormatError:
    return FormatError(
        "A data file is not sorted by the primary key, so it can't be merged (another engine's clustering, or a "
        "corrupt file); run check_table"
    )
