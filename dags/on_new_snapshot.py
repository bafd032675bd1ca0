"""Start when anybody commits to a Paimon table, Flink and Spark included; each new snapshot is one asset event.

Name the table in a copy of this file: as it stands the DAG watches nothing. What is committed while no triggerer runs
comes when it runs again (Airflow 3.3 and later). Airflow may list an event only in the next run: take it as a reason to
read up to the table's newest snapshot. docs/howto/events.md has the filters and what happens after an expiry.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_paimon.runbooks.form import report_lines
from airflow_paimon.runbooks.pages import with_links
from airflow_paimon.triggers.snapshot import PaimonSnapshotTrigger

TABLE: str | None = None
"""Such as "sales.orders"."""
CONNECTION = "paimon_default"


def commits_to(table: str, paimon_conn_id: str) -> Asset:
    """Make an asset of the commits to a table.

    Its name is no ``paimon://`` URI: operators announce their own commits there, and each would count twice.
    """
    trigger = PaimonSnapshotTrigger(
        table=table,
        paimon_conn_id=paimon_conn_id,
        kinds=["APPEND", "OVERWRITE"],  # what changes rows
        # partitions=["region=eu"],     only commits that wrote there
        # watermark_step="1 h",         only when the watermark has passed another hour
    )
    return Asset(name=f"commits to {table}", watchers=[AssetWatcher(name=f"commits to {table}", trigger=trigger)])


@task
def look(**context: Any) -> list[dict[str, Any]]:
    """List the snapshots that started this run."""
    events = [event for found in context["triggering_asset_events"].values() for event in found]
    snapshots = [event.extra["payload"] for event in events if "payload" in event.extra]
    for one in snapshots:
        report_lines("{table}: snapshot {snapshot_id} ({commit_kind}) by {commit_user}, {rows} rows".format(**one))
    return snapshots


with DAG(
    "on_new_snapshot",
    schedule=[commits_to(TABLE, CONNECTION)] if TABLE else None,
    catchup=False,
    tags=["paimon"],
    description="Start when anybody commits to a Paimon table",
    doc_md=with_links(__doc__),
) as dag:
    look()
