"""What becomes of the entries of global indexes where rows are written again (docs/contributing/format.md, Global
indexes).

Such an index names rows by their ids, or by their files. It only speeds up a scan: one entry less makes it slower, and
one that still names what is no longer so gives wrong rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketOf

COLUMN_UPDATE_ACTION = "global-index.column-update-action"


def without_global_indexes(
    index: Sequence[IndexEntry], partitions: Collection[bytes], bucket_of: BucketOf
) -> list[IndexEntry]:
    """Leave out the entries of partitions in which rows were written again, as Paimon's ``DROP_PARTITION_INDEX`` does.

    ``partitions``: in canonical form.
    """
    return [i for i in index if i.global_index is None or bucket_of(i).partition not in partitions]


def check_updatable(
    index: Sequence[IndexEntry],
    partitions: Collection[bytes],
    bucket_of: BucketOf,
    options: TableOptions,
    *,
    table: str,
) -> None:
    """Refuse to change rows that an index covers unless the table says what is to become of it; Paimon's default."""
    if options.text(COLUMN_UPDATE_ACTION, "THROW_ERROR").upper() != "THROW_ERROR":
        return
    hit = sorted({i.index_type for i in index if i.global_index is not None and bucket_of(i).partition in partitions})
    if hit:
        raise UnsupportedFeatureError(
            f"{table}: the rows to change are covered by a global index ({', '.join(hit)}), and option "
            f"{COLUMN_UPDATE_ACTION} is THROW_ERROR: set it to DROP_PARTITION_INDEX, and build the index again "
            f"afterwards"
        )
