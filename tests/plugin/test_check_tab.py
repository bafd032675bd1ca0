"""The tab Check reads storage: a manifest that is missing is seen."""

import time
from dataclasses import replace
from pathlib import Path

from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.read_cache import CachingStore, FileCache
from airflow_paimon.plugin.panel import PageContext, PageQuery
from airflow_paimon.plugin.reading import Reader
from airflow_paimon.plugin.tabs.lists import check as show
from tests.core.tables import append, make_table


def test_a_missing_manifest_is_seen_although_the_page_keeps_what_it_reads(tmp_path: Path) -> None:
    table = make_table(tmp_path, primary=False, **{"row-tracking.enabled": "true"})
    append(table, "a")
    append(table, "b")
    kept = replace(table, store=CachingStore(table.store, FileCache(1 << 20), "scope"))

    def look() -> list[str]:
        schema, head = table.schema(), table.latest_snapshot()
        assert head is not None
        live_columns(kept, head)
        context = PageContext(
            conn_id="c", main=table, cached=kept, view=table, schema=schema,
            main_schema=schema, head=head, view_head=head, branches=[], query=PageQuery(tab="check"), reader=Reader(),
            now_ms=int(time.time() * 1000), deadline=time.monotonic() + 60,
        )  # fmt: skip
        return [row[1].text for row in show(context).sheets[0].rows]

    assert look() == []
    head = table.latest_snapshot()
    assert head is not None
    table.store.delete(manifest_path(all_manifests(table, head)[0].file_name))
    assert look()
