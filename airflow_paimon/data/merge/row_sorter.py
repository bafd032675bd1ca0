"""Sorts the rows of buckets by key in bounded memory, with sorted runs on the local disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.masking import shown_value
from airflow_paimon.core.table.scan import BucketKey
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER
from airflow_paimon.data.merge.engine import MergeRules
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import align_runs, merge_runs
from airflow_paimon.data.merge.sort_keys import Keys, sort_keys
from airflow_paimon.data.merge.sorted_runs import Part, deciding_rows, gathered, not_ignored, runs_to_write
from airflow_paimon.data.merge.versions import Indices, gather

SORT_BYTES = 128 << 20
"""Bytes held in memory before they are written to disk as sorted runs. Sorting briefly takes as much again."""

_RUN_ROWS = 32_768


class RowSorter:
    """Takes rows of any buckets, as ``conform_rows`` returns them, and returns those of one bucket in key order.

    Each key may occur once per bucket; with ``combines`` the table's merge engine makes one row of those with one key,
    as Paimon's writers do. A context manager, which deletes the temporary files at its end.
    """

    def __init__(
        self, schema: TableSchema, label: str, limit_bytes: int = SORT_BYTES, *, combines: bool = False
    ) -> None:
        self._combines = combines
        self._numbers: dict[BucketKey, int] = {}
        self._schema = schema
        self._label = label
        self._limit = limit_bytes
        self._held: dict[BucketKey, list[Part]] = {}
        self._held_bytes = 0
        self._runs: dict[BucketKey, list[Path]] = {}
        self._files = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> RowSorter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, key: BucketKey, batch: pa.RecordBatch, indices: Indices | None) -> None:
        """Add the rows of a batch at ``indices``, None = all.

        Raises:
            InvalidInputError: a key occurs twice, or a delete to which the merge engine gives no meaning is combined.
        """
        self._held.setdefault(key, []).append((batch, indices))
        rows = batch.num_rows if indices is None else len(indices)
        self._held_bytes += batch.nbytes * rows // max(batch.num_rows, 1)
        if self._held_bytes >= self._limit:
            self._spill()

    def rows(self, key: BucketKey) -> Iterator[pa.RecordBatch]:
        """Return the rows of a bucket, without those that the table's options ignore.

        Raises:
            InvalidInputError: as ``add``.
        """
        runs = [_read_run(path) for path in self._runs.pop(key, ())]
        if parts := self._held.pop(key, None):
            runs.append(iter(self._sorted(key, parts)))
        if self._combines:
            for batch in merge_runs(runs, replace(merge_rules(self._schema), keep_deletes=True)):
                yield batch.drop_columns([SEQUENCE_NUMBER])
            return
        for slices, keys in align_runs(runs, MergeRules(keys=self._schema.trimmed_primary_keys)):
            merged = slices[0]
            if len(slices) > 1:
                together = np.concatenate(keys)
                order = np.argsort(together, kind="stable")
                columns = [gather([s.column(i) for s in slices], order) for i in range(merged.num_columns)]
                merged = pa.RecordBatch.from_arrays(columns, schema=merged.schema)
                self._check_unique(merged, together[order])
            kept = not_ignored(merged, self._schema)  # only now: a key that comes twice may lie in two runs
            yield merged if len(kept) == merged.num_rows else merged.take(pa.array(kept))

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="airflow-paimon-sort-")
        for key, parts in self._held.items():
            path = Path(self._folder.name, f"{self._files}.arrow")
            self._files += 1
            batches = self._sorted(key, parts)
            if not batches:
                continue
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            self._runs.setdefault(key, []).append(path)
        self._held, self._held_bytes = {}, 0

    def _sorted(self, key: BucketKey, parts: list[Part]) -> list[pa.RecordBatch]:
        if self._combines:
            return self._combined(key, parts)
        deciding = deciding_rows(parts, self._schema)
        keys = sort_keys([[deciding.column(name) for name in self._schema.trimmed_primary_keys]])[0]
        order = np.argsort(keys, kind="stable")
        self._check_unique(deciding, keys[order], order)
        batches: list[pa.RecordBatch] = gathered(parts, order).to_batches(max_chunksize=_RUN_ROWS)
        return batches

    def _combined(self, key: BucketKey, parts: list[Part]) -> list[pa.RecordBatch]:
        first = self._numbers.get(key, 0)
        self._numbers[key] = first + sum(b.num_rows if i is None else len(i) for b, i in parts)
        try:
            (run,) = runs_to_write(parts, self._schema, first)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self._label}: {error.message}") from None
        batches: list[pa.RecordBatch] = run.to_batches(max_chunksize=_RUN_ROWS)
        return [b for b in batches if b.num_rows]

    def _check_unique(self, rows: pa.RecordBatch, keys: Keys, order: Indices | None = None) -> None:
        """Refuse two rows with the same key. ``keys`` are sorted."""
        twins = np.flatnonzero(keys[1:] == keys[:-1])
        if not len(twins):
            return
        row = int(twins[0] if order is None else order[twins[0]])
        names = self._schema.trimmed_primary_keys
        named = ", ".join(f"{n} = {shown_value(self._schema, n, rows.column(n)[row].as_py())}" for n in names)
        raise InvalidInputError(
            f"{self._label}: the rows hold a primary key more than once, such as {named}: each key must occur once, as "
            f"otherwise it is undefined which row wins"
        )


def _read_run(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as batches:
        yield from batches
