"""Brings many sorted runs down to a few, so that a merge opens a bounded number of files and holds as many batches.

Nothing is merged here: neighbouring runs become one run, on the local disk, that holds all versions of their keys in
the order of the runs. So what is made of the versions does not depend on how many runs there were.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_paimon.data.merge.sort_keys import Keys
from airflow_paimon.data.merge.versions import gather

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
                made.append(_stored(Path(folder, f"{start}.arrow"), align(rest[start : start + MOST_RUNS])))
            rest = [*rest[:kept], *made]
        yield [*first, *rest]


def _stored(path: Path, aligned: Iterator[tuple[list[pa.RecordBatch], list[Keys]]]) -> Run:
    _write(path, aligned)
    return _read(path)


def _write(path: Path, aligned: Iterator[tuple[list[pa.RecordBatch], list[Keys]]]) -> None:
    writer = None
    with pa.OSFile(str(path), "wb") as sink:
        for slices, keys in aligned:
            for rows in _in_key_order(slices, keys):
                writer = writer or pa.ipc.new_stream(sink, rows.schema)
                writer.write_batch(rows)
        if writer is not None:
            writer.close()


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
