"""A table's rows as DuckDB asks for them: only the columns and the rows that a statement needs are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.data.arrow_read import PinnedRows


class PinnedDataset(ds.Dataset):  # type: ignore[misc]
    """The rows of one state of a table, for any number of scans.

    DuckDB takes no other kind of object for a source that it tells its columns and conditions. ``failure``: why the
    last scan broke off, as DuckDB hands on no more than a text.
    """

    failure: PaimonError | None = None

    def __init__(self, rows: PinnedRows) -> None:
        self._rows = rows
        self._schema = rows.schema

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__} can't be pickled")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> _Scanner:
        """Read the rows for which ``filter`` is true, exactly: DuckDB doesn't look at them again."""
        try:
            reader = self._rows.batches(columns, filter)
        except PaimonError as error:
            self.failure = error
            raise
        return _Scanner(pa.RecordBatchReader.from_batches(reader.schema, self._watched(reader)))

    def _watched(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except PaimonError as error:
            self.failure = error
            raise


class _Scanner(ds.Scanner):  # type: ignore[misc]
    """As much of a scanner as DuckDB uses."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    @property
    def projected_schema(self) -> pa.Schema:
        return self._reader.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader
