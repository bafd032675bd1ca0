"""Assets of Paimon tables: ``paimon://<connection id>/<database>/<table>[/<branch>]``, without the branch for main.

The asset with ``?by=partition`` has an event for each partition that was written, with the partition as its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from airflow_paimon.core.table.paths import MAIN, parse_identifier

if TYPE_CHECKING:
    from airflow.sdk import Asset

SCHEME = "paimon"


def paimon_asset_uri(paimon_conn_id: str, table: str, branch: str = MAIN, *, by_partition: bool = False) -> str:
    """Return the asset URI of a table's branch. ``InvalidInputError`` if ``table`` is not ``db.table``.

    :param by_partition: of the asset whose events have partition keys
    """
    identifier = parse_identifier(table)
    name = branch if branch != MAIN else identifier.branch
    suffix = "" if name == MAIN else f"/{name}"
    query = "?by=partition" if by_partition else ""
    return f"{SCHEME}://{paimon_conn_id}/{identifier.database}/{identifier.table}{suffix}{query}"


def paimon_asset(paimon_conn_id: str, table: str, branch: str = MAIN, *, by_partition: bool = False) -> Asset:
    """Return the asset of a table's branch, for ``outlets`` and ``schedule``.

    :param by_partition: the asset whose events have partition keys, such as ``dt=2026-11-18``, for a
        ``PartitionedAssetTimetable`` (Airflow 3.3); operators give its events by themselves
    """
    from airflow.sdk import Asset

    return Asset(uri=paimon_asset_uri(paimon_conn_id, table, branch, by_partition=by_partition))


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalise an asset URI, so that two spellings are one asset. Never rejects one: that would break the DAG."""
    parts = [part for part in uri.path.split("/") if part]
    if len(parts) == 3 and parts[2] == MAIN:
        parts.pop()
    return uri._replace(path="/" + "/".join(parts))


def convert_to_openlineage(asset: Asset, lineage_context: Any) -> Any:
    """Return the OpenLineage dataset of an asset's branch; None when its URI names none."""
    from airflow_paimon.lineage.openlineage import convert_asset

    return convert_asset(asset, lineage_context)
