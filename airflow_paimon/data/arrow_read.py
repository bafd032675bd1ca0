"""A table's rows in this process: as one Arrow table, as a stream of batches, or only their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_columns, check_table, timestamp_argument
from airflow_paimon.data.chain.grouped_read import (
    PlannedChain,
    pin_chain,
    plan_chain_by_groups,
    plan_pinned_chain_by_groups,
)
from airflow_paimon.data.chain.read import filled_chain, read_chain
from airflow_paimon.data.chain.scan import (
    PinnedChain,
    chain_read_mode,
    is_chain_read,
    parse_gap_policy,
    plan_chain_columns,
)
from airflow_paimon.data.grouped_read import plan_by_groups, plan_pinned_by_groups
from airflow_paimon.data.layers import Layer, PinnedLayers, pin_layers, pinned_schema
from airflow_paimon.data.read import read_split
from airflow_paimon.data.scan import ReadSplit, TableRead


def read_arrow(
    table: Table,
    version: int | str | None = None,
    timestamp: int | str | datetime | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    gap_policy: str = "empty",
    chain_read: str = "full",
) -> pa.Table:
    """Read a snapshot of a branch: the latest, or the one that ``version`` (int = snapshot id, str = tag) or
    ``timestamp`` (ISO text or datetime with an offset, or epoch milliseconds) names. Rows come in no particular order.

    TIMESTAMP columns have no zone, TIMESTAMP_LTZ columns are UTC, CHAR and VARCHAR are strings, a CHAR with the blanks
    at its end: it is found by a text with them or without. ``where`` keeps the rows for which an expression over the
    table's columns is true. With row tracking, ``columns`` and ``where`` may also name ``_ROW_ID`` and
    ``_SEQUENCE_NUMBER``, which are not read unless they are named. Only for chain tables:
    ``gap_policy`` chooses what a day without a delta shows, ``empty`` as in Paimon, or with ``carry_forward`` the state
    before it; ``chain_read`` is ``full`` (full partitions), ``incremental`` (only the rows of the delta branch) or
    ``hybrid`` (both).

    Raises:
        NotFoundError: no such table, branch, snapshot or tag. InvalidInputError: an unknown column, a naive timestamp,
            ``chain_read`` other than ``full`` for a view that is not the main view of a chain table.
        UnsupportedFeatureError: the table has a feature with which the result would be wrong.
        FormatError: a file of the table is missing or corrupt. ConflictError: the branch was deleted or made anew
            while its files were planned.
    """
    schema, batches = _planned(table, version, timestamp, columns, where, gap_policy, chain_read)
    return pa.Table.from_batches(batches, schema)


def read_batches(
    table: Table,
    version: int | str | None = None,
    timestamp: int | str | datetime | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    gap_policy: str = "empty",
    chain_read: str = "full",
    limit: int | None = None,
) -> pa.RecordBatchReader:
    """Like ``read_arrow``, as a stream of batches: what they take in memory doesn't grow with the table.

    The snapshot and its files are chosen now; their rows are read as the batches are. ``limit``: so many rows at most,
    and no further file is opened.

    Raises:
        PaimonError: as ``read_arrow``; a missing or corrupt file when its batch is asked for, and where a read has more
            than 50,000 files, what is wrong with the entry of one.
    """
    schema, batches = _planned(table, version, timestamp, columns, where, gap_policy, chain_read)
    return pa.RecordBatchReader.from_batches(schema, batches if limit is None else _first(batches, limit))


def count_rows(
    table: Table,
    version: int | str | None = None,
    timestamp: int | str | datetime | None = None,
    where: pc.Expression | None = None,
    gap_policy: str = "empty",
    chain_read: str = "full",
) -> int:
    """Count the rows that ``read_arrow`` would return. Files whose stored rows are the table's rows are not opened.

    Raises:
        PaimonError: as ``read_arrow``.
    """
    check_table(table)
    moment = timestamp_argument(timestamp)
    if chain_read_mode(table, version, chain_read) is not None:
        keys = table.schema().primary_keys if version is None and moment is None else None
        _, batches = _planned(table, version, moment, keys, where, gap_policy, chain_read)
        return sum(batch.num_rows for batch in batches)
    parse_gap_policy(gap_policy)
    planned = plan_by_groups(table, version=version, timestamp=moment, where=where)
    return sum(_rows_of(read, part) for read, splits in planned.layers for split in splits for part in split.divided())


def _rows_of(read: TableRead, split: ReadSplit) -> int:
    if split.is_raw and read.rows.where is None:
        return sum(f.row_count for f in split.files)
    key = (*read.schema.primary_keys, *read.schema.field_names)[0]
    return sum(batch.num_rows for batch in read_split(replace(read, columns=(key,)), split))


def _first(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """The rows of a view in one state, which may be read any number of times: made by ``pin_rows``."""

    state: PinnedLayers | PinnedChain

    @property
    def schema(self) -> pa.Schema:
        """The columns. Raises as ``batches``."""
        if isinstance(self.state, PinnedChain):
            return plan_chain_columns(self.state).output_schema
        return pinned_schema(self.state)

    def batches(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.RecordBatchReader:
        """Read as ``read_batches`` does.

        Raises:
            PaimonError: as ``read_arrow``.
        """
        if isinstance(self.state, PinnedChain):
            chain = plan_pinned_chain_by_groups(self.state, columns=columns, where=where)
            return pa.RecordBatchReader.from_batches(chain.main.output_schema, _chain_batches(chain))
        planned = plan_pinned_by_groups(self.state, columns=columns, where=where)
        return pa.RecordBatchReader.from_batches(planned.read.output_schema, _batches(planned.layers))


def pin_rows(table: Table, version: int | str | None = None) -> PinnedRows:
    """Choose the state of a view, the latest or that of a version, for any number of reads.

    Raises:
        PaimonError: as ``read_arrow``.
    """
    check_table(table)
    if is_chain_read(table, version):
        return PinnedRows(pin_chain(table, version))
    return PinnedRows(pin_layers(table, version))


def _batches(layers: Iterable[Layer]) -> Iterator[pa.RecordBatch]:
    for read, splits in layers:
        filled = replace(read, fills_chars=True)
        for split in splits:
            yield from read_split(filled, split)


def _chain_batches(chain: PlannedChain) -> Iterator[pa.RecordBatch]:
    for read in chain.reads:
        yield from read_chain(filled_chain(read))


def _planned(
    table: Table,
    version: int | str | None,
    timestamp: int | str | datetime | None,
    columns: Sequence[str] | None,
    where: pc.Expression | None,
    gap_policy: str,
    chain_read: str,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Check the arguments and plan; the batches are read one by one."""
    check_table(table)
    check_columns(table, columns)
    moment = timestamp_argument(timestamp)
    policy = parse_gap_policy(gap_policy)
    mode = chain_read_mode(table, version, chain_read)
    if mode is not None:
        chain = plan_chain_by_groups(
            table,
            version=version,
            timestamp=moment,
            columns=columns,
            where=where,
            mode=mode,
            gap_policy=policy,
        )
        return chain.main.output_schema, _chain_batches(chain)
    planned = plan_by_groups(table, version=version, timestamp=moment, columns=columns, where=where)
    return planned.read.output_schema, _batches(planned.layers)
