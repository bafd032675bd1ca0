"""expire_partitions on real chain tables by the rules of docs/howto/chain-maintenance.md, and reads afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from tests.core.tables import run
from tests.data.chain.compactions import compact
from tests.data.chain.expiries import NOW, OLD, add_row, both, held, made, rows_of
from tests.data.chain.test_read import chain_table, seen, set_options
from tests.stores import delete_tree

CASES = [
    # snapshot, delta, days, segments per group, left of both branches, segments that go
    ("0101 0201 0301", "0110 0115 0210 0215 0315", 20, 100, ("0301", "0315"), 2),
    ("0201 0315", "0205", 30, 100, ("0201 0315", "0205"), 0),
    ("0101 0115 0201 0315", "0105 0120 0210", 30, 100, ("0201 0315", "0210"), 2),
    ("0315 0320", "0316", 30, 100, ("0315 0320", "0316"), 0),
    ("0101 0115 0201 0315", "0105 0120 0210", 30, 1, ("0115 0201 0315", "0120 0210"), 1),
    (
        *("US/0101 US/0201 US/0301 EU/0215 EU/0320", "US/0110 US/0210 EU/0220", 30, 100),
        *(("EU/0215 EU/0320 US/0201 US/0301", "EU/0220 US/0210"), 1),
    ),
    ("0101 0201 0301", "0110 0210 0315", 30, 100, ("0201 0301", "0210 0315"), 1),  # the documentation's
    ("0101 0201", "0101 0110 0201", 30, 100, ("0201", "0201"), 1),
    ("0110 0201", "0101 0105 0111", 30, 100, ("0201", ""), 1),
    ("US/0101 US/0201", "EU/0101 EU/0102", 30, 100, ("US/0201", "EU/0101 EU/0102"), 1),
]


@pytest.mark.parametrize(("snapshot", "delta", "age", "limit", "left", "segments"), CASES)
def test_whole_segments_go_and_what_stays_reads_as_before(
    snapshot: str, delta: str, age: int, limit: int, left: tuple[str, str], segments: int
) -> None:
    table = made(snapshot, delta)
    staying = {day for text in left for day in text.split()}
    before = rows_of(table, staying)
    result = run(table, "expire_partitions", expiration_time=f"{age} d", now=NOW, limit=limit)
    assert both(table) == left
    assert rows_of(table, staying) == before
    assert {r[-1][4:] for r in seen(table)} == {day.split("/")[-1] for day in staying}
    assert (result.changed, result.details["segments"]) == (segments > 0, segments)
    gone = len((snapshot + " " + delta).split()) - len(" ".join(left).split())
    assert result.details["partitions"] == gone
    assert not run(table, "expire_partitions", expiration_time=f"{age} d", now=NOW).changed or limit == 1


def test_the_report_tells_of_every_segment() -> None:
    table = made("0110 0201 0301", "0101 0115 0116 0205")
    result = run(table, "expire_partitions", expiration_time="1 d", now="2025-03-03T00:00:00Z")
    assert result.details["expired"] == {
        "delta": ["dt=20250101", "dt=20250115", "dt=20250116", "dt=20250205"],
        "snapshot": ["dt=20250110", "dt=20250201"],
    }
    (group,) = result.details["groups"]
    assert group["anchor"] == "dt=20250301"
    assert "3 snapshot partitions before 2025-03-02" in group["reason"]
    assert [(s["snapshot"], s["deltas"], s["rows"]) for s in group["segments"]] == [
        (None, ["dt=20250101"], 2),
        ("dt=20250110", ["dt=20250115", "dt=20250116"], 5),
        ("dt=20250201", ["dt=20250205"], 3),
    ]
    first, second = result.details["commits"]
    assert (first["branch"], first["partitions"], second["branch"], second["partitions"]) == ("delta", 4, "snapshot", 2)
    assert table.branch("delta").snapshot(first["snapshot"]).commit_kind == "OVERWRITE"
    assert (result.branch, result.snapshot_before, result.snapshot_after) == ("main", None, None)
    assert table.latest_snapshot_id() is None, "main is never touched"
    assert result.details["rows"] == 10


def test_a_dry_run_prints_the_plan_with_reasons_and_changes_nothing() -> None:
    table = made("US/0101 US/0201 US/0301", "US/0110 US/0101 EU/0101")
    before = both(table)
    result = run(table, "expire_partitions", **OLD, dry_run=True)
    assert (result.changed, result.dry_run, both(table)) == (True, True, before)
    plan = result.details["plan"]
    assert [(a["path"], a["reason"]) for a in plan["actions"]] == [
        ("delta: region=US/dt=20250101", "in the expired segment of region=US/dt=20250101"),
        ("delta: region=US/dt=20250110", "in the expired segment of region=US/dt=20250101"),
        ("snapshot: region=US/dt=20250101", "its segment expired; the group's anchor is region=US/dt=20250201 now"),
    ]
    assert [(g["group"], g["reason"][:11]) for g in plan["groups"]] == [
        ("region=US", "2 snapshot "),
        ("region=EU", "only deltas"),
    ]
    assert {p["branch"] for p in plan["preconditions"]} == {"snapshot", "delta"}
    assert run(table, "expire_partitions", **OLD).plan_id == result.plan_id


def test_a_minimum_of_anchors_stays_and_the_limit_is_an_option_too() -> None:
    table = made("0101 0115 0201", "0102 0116")
    run(table, "expire_partitions", **OLD, min_full_partitions=2)
    assert both(table) == ("0115 0201", "0116")
    table = made("0101 0115 0201", "0102 0116", partition__expiration_max_num="1", partition__expiration_time="30 d")
    run(table, "expire_partitions", now=NOW)
    assert both(table) == ("0115 0201", "0116")


def test_what_has_no_place_in_time_stays_with_a_warning() -> None:
    table = made("0101 0201", "0110")
    for branch, day in (("snapshot", "someday"), ("delta", "2025-01-01")):
        add_row(table.branch(branch), {"k": 1, "s": 1, "v": "x", "dt": day})
    result = run(table, "expire_partitions", **OLD)
    assert result.details["unreadable"] == ["dt=2025-01-01", "dt=someday"]
    assert "2 partitions are without a partition time and stay" in result.details["warnings"][0]
    assert len(held(table, "snapshot").split()) == len(held(table, "delta").split()) + 1 == 2


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"branch": "delta"}, "expires as a whole"),
        ({"strategy": "update-time"}, "values-time only"),
        ({"timestamp_pattern": "$dt"}, "that of its options"),
        ({"min_full_partitions": 0}, "at least 1"),
        ({"expiration_time": None}, "partition.expiration-time"),
    ],
)
def test_what_does_not_fit_a_chain_table_is_refused(asked: dict[str, Any], says: str) -> None:
    table = made("0101 0201", "")
    with pytest.raises(InvalidInputError, match=says):
        run(table, "expire_partitions", **{**OLD, **asked})


def test_a_missing_branch_is_named() -> None:
    table = made("0101 0201", "")
    delete_tree(table.store, "branch/branch-delta")
    with pytest.raises(NotFoundError, match="delta"):
        run(table, "expire_partitions", **OLD)


def test_time_options_of_hours_and_months(tmp_path: Path) -> None:
    hourly = chain_table(
        tmp_path / "h",
        [(b, f"20250330/{h}", [(1, 1, "x")]) for b, hours in (("snapshot", "00 06 12"), ("delta", "03 06 09 13"))
         for h in hours.split()],
        partitions={"dt": "STRING", "hour": "STRING"},
        form=("$dt $hour:00:00", "yyyyMMdd HH:mm:ss"),
    )  # fmt: skip
    result = run(hourly, "expire_partitions", expiration_time="11 h", now=NOW)
    assert result.details["expired"] == {
        "delta": ["dt=20250330/hour=03", "dt=20250330/hour=06", "dt=20250330/hour=09"],
        "snapshot": ["dt=20250330/hour=00", "dt=20250330/hour=06"],
    }


def test_options_of_the_table_are_enough(tmp_path: Path) -> None:
    table = made("0101 0201 0301", "0110 0210", tmp_path)
    set_options(table, {"partition.expiration-time": "30 d"})
    assert run(table, "expire_partitions", now=NOW).changed
    assert both(table) == ("0201 0301", "0210")


def test_expiry_after_compaction_leaves_nothing_stale_behind() -> None:
    """What the kept anchor was built from is gone; it is as good as before, and stays when the night comes again."""
    table = made("0101", "0110 0115 0210 0215 0305")
    compact(table, "dt=20250115", "dt=20250215")
    before = rows_of(table, ["0215", "0305"])
    assert run(table, "expire_partitions", expiration_time="20 d", now=NOW).details["segments"] == 2
    assert both(table) == ("0215", "0215 0305")
    assert rows_of(table, ["0215", "0305"]) == before
    found = run(table, "check_chain_table").details["findings"]
    assert [f["kind"] for f in found if f["severity"] != "info"] == []
    assert compact(table, pending=True, max_chain_length=0).details["counts"] == {"compacted": 1}
