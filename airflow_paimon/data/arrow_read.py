"""A table's rows in this process: as one Arrow table, as a stream of batches, or only their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_columns, check_table, timestamp_argument
from airflow_paimon.data.chain.branch_states import chain_read_mode, parse_gap_policy
from airflow_paimon.data.chain.read import read_chain_split
from airflow_paimon.data.fallback_branches import PinnedState
from airflow_paimon.data.planner import pin, pinned_schema, plan_pinned, plan_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_groups import GroupPlan, ReadPlan
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import ReadSplit, TableRead
from airflow_paimon.data.system_tables import check_system_table


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
    planned = plan_rows(table, _read_request(table, version, timestamp, columns, where, gap_policy, chain_read))
    return pa.Table.from_batches(_batches(planned), planned.read.output_schema)


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
    planned = plan_rows(table, _read_request(table, version, timestamp, columns, where, gap_policy, chain_read))
    batches = _batches(planned) if limit is None else _first(_batches(planned), limit)
    return pa.RecordBatchReader.from_batches(planned.read.output_schema, batches)


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
    read_request = _read_request(table, version, timestamp, None, where, gap_policy, chain_read)
    if read_request.mode is not None:
        keys = None if read_request.travels else table.schema().primary_keys
        return sum(batch.num_rows for batch in _batches(plan_rows(table, replace(read_request, columns=keys))))
    layers = (layer for group in plan_rows(table, read_request).groups for layer in group.layers)
    return sum(_rows_of(read, part) for read, splits in layers for split in splits for part in split.divided())


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

    state: PinnedState

    @property
    def schema(self) -> pa.Schema:
        """The columns. Raises as ``batches``."""
        return pinned_schema(self.state)

    def batches(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.RecordBatchReader:
        """Read as ``read_batches`` does.

        Raises:
            PaimonError: as ``read_arrow``.
        """
        planned = plan_pinned(self.state, ReadRequest(columns=columns, where=where))
        return pa.RecordBatchReader.from_batches(planned.read.output_schema, _batches(planned))


def pin_rows(table: Table, version: int | str | None = None) -> PinnedRows:
    """Choose the state of a view, the latest or that of a version, for any number of reads.

    Raises:
        PaimonError: as ``read_arrow``.
    """
    check_table(table)
    return PinnedRows(pin(table, version))


def read_system_table(
    table: Table,
    name: str,
    version: int | str | None = None,
    timestamp: int | str | datetime | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> pa.Table:
    """Read ``$audit_log``, ``$ro`` or ``$row_tracking`` of a branch as one Arrow table; ``version``, ``timestamp``,
    ``columns`` and ``where`` are those of ``read_arrow``. ``where`` names columns of the table. ``$audit_log`` also has
    ``_SEQUENCE_NUMBER`` if the option ``table-read.sequence-number.enabled`` of the table is true.

    The other system tables (``$snapshots``, ``$consumers``, ...) hold no rows: see ``inspect``.

    Raises:
        InvalidInputError: another system table, an unknown column, or a view that merges branches of a chain table.
    """
    check_table(table)
    check_columns(table, columns)
    read_request = ReadRequest(
        version=version,
        timestamp=timestamp_argument(timestamp),
        columns=columns,
        where=where,
        system=check_system_table(table, name),
    )
    planned = plan_rows(table, read_request)
    return pa.Table.from_batches(_batches(planned), planned.read.output_schema)


def read_group(group: GroupPlan, *, fills_chars: bool = False) -> Iterator[pa.RecordBatch]:
    """Read the rows of a group of files in this process, streamed. ``fills_chars``: see ``TableRead``.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: partial updates with deletes.
    """
    for read, splits in group.layers:
        filled = replace(read, fills_chars=fills_chars)
        for split in splits:
            yield from read_split(filled, split)
    if group.inputs is not None:
        inputs = group.inputs._replace(main=replace(group.inputs.main, fills_chars=fills_chars))
        for chain in group.chains:
            yield from read_chain_split(inputs, chain)


def _batches(planned: ReadPlan) -> Iterator[pa.RecordBatch]:
    return (batch for group in planned.groups for batch in read_group(group, fills_chars=True))


def _read_request(
    table: Table,
    version: int | str | None,
    timestamp: int | str | datetime | None,
    columns: Sequence[str] | None,
    where: pc.Expression | None,
    gap_policy: str,
    chain_read: str,
) -> ReadRequest:
    """Check the arguments."""
    check_table(table)
    check_columns(table, columns)
    return ReadRequest(
        version=version,
        timestamp=timestamp_argument(timestamp),
        columns=columns,
        where=where,
        mode=chain_read_mode(table, version, chain_read),
        gap_policy=parse_gap_policy(gap_policy),
    )
