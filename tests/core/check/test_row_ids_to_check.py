"""Which files a check of row ids looks at: whatever a finding can be about."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from airflow_paimon.core.check.check_row_ids import files_to_check, sharing
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.row_tracking.row_ids_plan import beyond, has_row_ids, overlapping, ranged, torn_groups
from airflow_paimon.core.table.live_entries import live_entries
from tests.core.tables import make_table


def file(name: str, first: int | None, rows: int) -> DataFile:
    return DataFile(
        name, 10, rows, EMPTY_ROW_BYTES, EMPTY_ROW_BYTES, EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0, first_row_id=first
    )


def test_ranges_that_share_ids() -> None:
    draw = random.Random(1)
    for _ in range(300):
        files = [file(f"f{n}", draw.randint(0, 30), draw.randint(1, 4)) for n in range(draw.randint(0, 8))]
        known = ranged(files, 40)
        first, last = (np.array([r.ids[at] for r in known], np.int64) for at in (0, 1))
        order = np.array(draw.sample(range(len(known)), len(known)), int)
        found = sharing(first[order], last[order])
        expected = {r.file.file_name for group in overlapping(known) for r in group}
        assert {known[at].file.file_name for at in order[found]} == expected


def test_the_same_findings_as_of_all_files(tmp_path: Path) -> None:
    draw = random.Random(2)
    table = make_table(tmp_path, primary=False, **{"row-tracking.enabled": "true"})
    live: dict[str, ManifestEntry] = {}
    looked_at = 0
    for turn in range(12):
        new = [
            ManifestEntry(0, b"\0\0\0\1" + bytes(16), 0, -1,
                          file(f"f{turn}-{n}", draw.choice([None, *range(0, 400, 4)]), draw.choice([0, 3, 4, 4, 4])))
            for n in range(2)
        ]  # fmt: skip
        gone = [live.pop(draw.choice(list(live)))] if len(live) > 4 and draw.random() < 0.7 else []
        live |= {e.file.file_name: e for e in new}
        entries = [e.deleted() for e in gone] + new
        commit(table, lambda _, some=entries: Draft(kind=CommitKind.OVERWRITE, entries=some, schema=table.schema()))
        head = table.latest_snapshot()
        assert head is not None
        files = [e.file for e in live_entries(table, head).values()]
        found = files_to_check(table, head)
        looked_at += len(files) - len(found)
        next_row_id = head.next_row_id or 0
        everything, some = ranged(files, next_row_id), ranged(found, next_row_id)
        names, expected = (sorted(f.file_name for f in some if not has_row_ids(f)) for some in (found, files))
        assert names == expected
        assert beyond(some, next_row_id) == beyond(everything, next_row_id)
        assert list(overlapping(some)) == list(overlapping(everything))
        assert torn_groups(some) == torn_groups(everything)
    assert looked_at > 0
