"""Assets of Paimon tables: ``paimon://<connection id>/<database>/<table>[/<branch>]``, without the branch for main."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

from airflow_paimon.core.table.paths import MAIN, parse_identifier

if TYPE_CHECKING:
    from airflow.sdk import Asset

SCHEME = "paimon"


def paimon_asset_uri(paimon_conn_id: str, table: str, branch: str = MAIN) -> str:
    """Return the asset URI of a table's branch. ``InvalidInputError`` if ``table`` is not ``db.table``."""
    identifier = parse_identifier(table)
    name = branch if branch != MAIN else identifier.branch
    suffix = "" if name == MAIN else f"/{name}"
    return f"{SCHEME}://{paimon_conn_id}/{identifier.database}/{identifier.table}{suffix}"


def paimon_asset(paimon_conn_id: str, table: str, branch: str = MAIN) -> Asset:
    """Return the asset of a table's branch, for ``outlets`` and ``schedule``."""
    from airflow.sdk import Asset

    return Asset(uri=paimon_asset_uri(paimon_conn_id, table, branch))


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Normalise an asset URI, so that two spellings are one asset. Never rejects one: that would break the DAG."""
    parts = [part for part in uri.path.split("/") if part]
    if len(parts) == 3 and parts[2] == MAIN:
        parts.pop()
    return uri._replace(path="/" + "/".join(parts))


def convert_to_openlineage(asset: Asset, lineage_context: Any) -> Any:
    """Return the OpenLineage dataset of an asset's branch; None when its URI names none."""
    from airflow_paimon.lineage import convert_asset

    return convert_asset(asset, lineage_context)
