"""Events with partition keys, one for each partition that was written, for DAGs that run once for each (Airflow 3.3).

They belong to an asset of their own: a DAG with an ordinary schedule isn't started by an event that has a key, and one
that takes keys can't use an event without. While no DAG names that asset, this costs one look into Airflow's database.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_paimon._compat import PARTITION_KEYS, AirflowRuntimeError, Asset
from airflow_paimon.assets import paimon_asset_uri
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.table.new_snapshots import partitions_written
from airflow_paimon.hooks.paimon import PaimonHook

MOST_KEYS = 1000
"""Of so many partitions at once: a rebuilt table would start a run for each partition that it ever had."""
MOST_CHARACTERS = 250
"""Of a key; Airflow refuses longer ones."""
log = logging.getLogger(__name__)


def announce_partitions(paimon_conn_id: str, events: Any, result: Mapping[str, Any]) -> Any:
    """Give the asset by partition an event for each partition that was written; return it as an outlet, or None.

    What was committed stands: where the partitions can't be read, the log says so.
    """
    if not PARTITION_KEYS or OPERATIONS[result["operation"]].same_rows or result.get("snapshot_after") is None:
        return None
    uri = paimon_asset_uri(paimon_conn_id, result["table"], result["branch"], by_partition=True)
    outlet = Asset.ref(uri=uri)
    try:
        accessor = events[outlet]
    except AirflowRuntimeError:  # no DAG names it
        return None
    keys = _keys(paimon_conn_id, result)
    if not keys:
        return None
    accessor.extra = dict(result)
    accessor.add_partitions(keys)
    return outlet


def _keys(paimon_conn_id: str, result: Mapping[str, Any]) -> list[str]:
    after, before = int(result["snapshot_after"]), result.get("snapshot_before")
    try:
        view = PaimonHook(paimon_conn_id).get_table(result["table"], result["branch"])
        keys = partitions_written(view, after - 1 if before is None else int(before), after)
    except PaimonError as error:
        log.warning("No events by partition of %s: %s", result["table"], error)
        return []
    if len(keys) > MOST_KEYS:
        log.warning("No events by partition of %s: %d partitions, more than %d", result["table"], len(keys), MOST_KEYS)
        return []
    if long := [key for key in keys if len(key) > MOST_CHARACTERS]:
        log.warning("No events of %d partitions of %s whose keys have more than %d characters, such as %.80s...",
                    len(long), result["table"], MOST_CHARACTERS, long[0])  # fmt: skip
    return [key for key in keys if len(key) <= MOST_CHARACTERS]
