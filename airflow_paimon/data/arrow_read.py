"""``read_arrow``: a table as one Arrow table, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_columns, check_table, timestamp_argument
from airflow_paimon.data.chain.read import read_chain
from airflow_paimon.data.chain.scan import chain_read_mode, parse_gap_policy, plan_chain
from airflow_paimon.data.layers import plan_table_read
from airflow_paimon.data.read import read_split


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

    TIMESTAMP columns have no zone, TIMESTAMP_LTZ columns are UTC, CHAR and VARCHAR are strings. ``where`` keeps the
    rows for which an expression over the table's columns is true. With row tracking, ``columns`` and ``where`` may also
    name ``_ROW_ID`` and ``_SEQUENCE_NUMBER``, which are not read unless they are named. Only for chain tables:
    ``gap_policy`` chooses what a day without a delta shows, ``empty`` as in Paimon, or with ``carry_forward`` the state
    before it; ``chain_read`` is ``full`` (full partitions), ``incremental`` (only the rows of the delta branch) or
    ``hybrid`` (both).

    Raises:
        NotFoundError: no such table, branch, snapshot or tag. InvalidInputError: an unknown column, a naive timestamp,
            ``chain_read`` other than ``full`` for a view that is not the main view of a chain table.
        UnsupportedFeatureError: the table has a feature with which the result would be wrong.
        FormatError: a file of the table is missing or corrupt.
    """
    check_table(table)
    check_columns(table, columns)
    moment = timestamp_argument(timestamp)
    policy = parse_gap_policy(gap_policy)
    mode = chain_read_mode(table, version, chain_read)
    if mode is not None:
        chain = plan_chain(
            table,
            version=version,
            timestamp=moment,
            columns=columns,
            where=where,
            mode=mode,
            gap_policy=policy,
        )
        return pa.Table.from_batches(read_chain(chain), chain.inputs.main.output_schema)
    layers = plan_table_read(table, version=version, timestamp=moment, columns=columns, where=where)
    batches = [batch for read, splits in layers for split in splits for batch in read_split(read, split)]
    return pa.Table.from_batches(batches, layers[0][0].output_schema)
