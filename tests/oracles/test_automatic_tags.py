"""Automatic tags, their expiry and their success files are those that Java's committer makes of the same snapshots."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_paimon.core.table.table import Table, open_table
from tests.core.metadata_expiry.test_automatic_tags import TRIGGER, snapshot_at
from tests.core.tables import make_table, run
from tests.oracles.java_driver import JavaOracle

pytestmark = pytest.mark.oracle

TIMES = (
    "2026-11-20 10:00", "2026-11-20 10:59:59.999", "2026-11-20 11:00", "2026-11-20 12:20", "2026-11-20 23:00",
    "2026-11-21 00:00", "2026-11-21 00:40", "2026-11-24 03:00", "2026-11-24 03:01", "2026-11-24 04:05",
)  # fmt: skip
CASES = {
    "daily": {},
    "daily, another zone": {"sink.process-time-zone": "America/Los_Angeles"},
    "without dashes, at most 2": {"tag.period-formatter": "without_dashes", "tag.num-retained-max": "2"},
    "hourly, late": {"tag.creation-period": "hourly", "tag.creation-delay": "10 min"},
    "hourly, complete": {
        "tag.creation-period": "hourly",
        "tag.automatic-completion": "true",
        "tag.period-formatter": "without_dashes_and_spaces",
    },
    "two hours, kept 3 d": {"tag.creation-period": "two-hours", "tag.default-time-retained": "3650 d"},
    "15 minutes, at most 3": {"tag.creation-period-duration": "15 min", "tag.num-retained-max": "3"},
    "watermark": {"tag.automatic-creation": "watermark", "sink.watermark-time-zone": "GMT+08:00"},
    "success files, at most 1": {"tag.create-success-file": "true", "tag.num-retained-max": "1"},
    "batch": {"tag.automatic-creation": "batch"},
}


def tags_of(table: Table) -> dict[str, tuple[int, str]]:
    return {t.name: (t.snapshot.id, str(t.time_retained)) for t in table.tags()}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_java_makes_the_same_tags(java_oracle: JavaOracle, tmp_path: Path, options: dict[str, str]) -> None:
    ours, java = tmp_path / "ours", tmp_path / "java"
    given = {"tag.automatic-creation": "process-time", "sink.process-time-zone": "UTC", **options}
    table = make_table(ours, **given)
    for number, at in enumerate(TIMES):
        snapshot_at(table, at, watermark=None if number == 0 else TIMES[number - 1])
        if number in (2, 6, len(TIMES) - 1):
            shutil.rmtree(java, ignore_errors=True)
            shutil.copytree(ours, java)
            java_oracle.do("automatic_tags", java, "d.t")
            result = run(table, TRIGGER)
            theirs = open_table(str(java), "d.t")
            if options.get("tag.automatic-creation") == "batch":  # set by its batch writers, which are not asked here
                assert not tags_of(theirs) and result.details["created"]
                return
            assert tags_of(table) == tags_of(theirs) != {}
            folder = "tag/tag-success-file"
            assert table.store.names(folder) == theirs.store.names(folder)
