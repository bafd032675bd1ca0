"""What operators that look after metadata say in the log of their task."""

from __future__ import annotations

import uuid

from airflow_paimon.core.table.table import Table
from airflow_paimon.operators._log_lines import log_lines
from airflow_paimon.operators.maintenance import (
    ChangelogExpireOperator,
    CompactManifestOperator,
    SnapshotExpireOperator,
)
from tests.core.tables import append, make_table, overwrite, run


def old_table() -> Table:
    options = {"changelog.time-retained": "9 d", "snapshot.time-retained": "1 ms", "changelog.num-retained.min": "1"}
    table = make_table(f"memory://{uuid.uuid4()}/wh", **options)
    for i in range(4):
        (append, overwrite)[i % 2](table, "a", seq=i)
    return table


def test_compact_manifest() -> None:
    operator, table = CompactManifestOperator(task_id="t", table="d.t"), old_table()
    dry, done, again = (run(table, "compact_manifest", dry_run=dry).to_json() for dry in (True, False, False))
    assert log_lines(operator.operation, dry) == ["4 manifests with 7 entries would become 1 with 1"]
    assert log_lines(operator.operation, done) == ["4 manifests with 7 entries became 1 with 1"]
    assert log_lines(operator.operation, again) == ["Nothing to merge; manifests: 1"]


def test_expire_changelogs_beside_expire_snapshots() -> None:
    table = old_table()
    at_once = {"grace": "0 s", "writers_stopped": True}
    done = run(table, "expire_snapshots", retain_min=1, retain_max=1, **at_once).to_json()
    assert log_lines(SnapshotExpireOperator.operation, done)[0] == "main: snapshots 1 to 3 expired"
    operator = ChangelogExpireOperator(task_id="c", table="d.t")
    done = run(table, "expire_changelogs", retain_min=1, retain_max=2, dry_run=True, **at_once).to_json()
    assert log_lines(operator.operation, done)[:2] == [
        "main: changelogs 1 to 2 would expire",
        "main: changelog 3 stays: it is the newest changelog",
    ]
    done = run(table, "expire_changelogs", delete_all=True, **at_once).to_json()
    assert log_lines(operator.operation, done)[0] == "main: changelogs 1 to 3 expired"
