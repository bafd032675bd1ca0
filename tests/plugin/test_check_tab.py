"""The tab Check: what it reads again, and what of it this process keeps."""

import time
from pathlib import Path

from airflow_paimon.core.table.manifest_cache import ManifestCache
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.scan import all_manifests
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.panel import Asked, PageContext
from airflow_paimon.plugin.reading import Reader
from airflow_paimon.plugin.tabs.check import show
from tests.core.tables import append, make_table
from tests.stores import CountingStore


def test_manifests_are_read_once_for_row_ids_and_missing_ones_are_seen(tmp_path: Path) -> None:
    table = make_table(tmp_path, primary=False, **{"row-tracking.enabled": "true"})
    append(table, "a")
    append(table, "b")
    store, cache = CountingStore(table.store), ManifestCache(1 << 20)
    main = Table(store, table.name)

    def look() -> tuple[int, list[str]]:
        """Return how many manifests were read, and what was found."""
        schema, head = table.schema(), table.latest_snapshot()
        assert head is not None
        context = PageContext(
            conn_id="c", main=main, cached=main.keeping_manifests(cache, "scope"), view=main, schema=schema,
            main_schema=schema, head=head, view_head=head, branches=[], asked=Asked(tab="check"), reader=Reader(),
            now_ms=int(time.time() * 1000), until=time.monotonic() + 60,
        )  # fmt: skip
        store.tally.log.clear()
        rows = show(context).sheets[0].rows
        names = {m.file_name for m in all_manifests(table, head)}
        return sum(uri.count(n) for _, uri in store.tally.log for n in names), [row[1].text for row in rows]

    first, found = look()
    assert first == 4 and not found, "for the row ids, and for the schemas"
    assert look() == (0, [])
    append(table, "c")
    assert look() == (2, [])
    head = table.latest_snapshot()
    assert head is not None
    table.store.delete(manifest_path(all_manifests(table, head)[0].file_name))
    assert look()[1]
