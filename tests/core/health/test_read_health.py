"""What is read of real tables, how much is read for it, and several tables side by side."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.health.gather import HealthRules, read_health
from airflow_paimon.core.health.health_plan import TableHealth
from airflow_paimon.core.health.table_health import read_healths
from airflow_paimon.core.metadata_expiry.metadata_expiry_plan import SnapshotRule, count_due
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import run_operation
from tests.core.chain.tables import add, build, make_chain
from tests.core.tables import append, commit_time, copied, make_table, overwrite, rewrite, run
from tests.stores import CountingStore

DAY_MS = 86_400_000


def now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


def health_of(table: Table, days: int = 0, **rules: Any) -> TableHealth:
    """Look at it from some days in the future."""
    return read_health(table, now_ms() + days * DAY_MS, HealthRules(**rules))


def in_memory(*, primary: bool = True, **options: str) -> Table:
    return make_table(f"memory://{uuid.uuid4()}/wh", primary=primary, **options)


def test_a_table_with_small_files_and_one_without() -> None:
    table = in_memory(primary=False)
    assert health_of(table).score == 100 and health_of(table).snapshot is None
    for _ in range(3):
        append(table, "a", rows=2)
    assert health_of(table).score == 100
    for _ in range(7):
        append(table, "a", rows=2)
    found = health_of(table)
    assert [r.id for r in found.reasons] == ["small-files"] and found.score < 80
    assert (found.files.files, found.files.rows, found.files.waiting_rows) == (10, 20, 20)
    assert found.snapshot == 10 and found.committed_ms == table.snapshot(10).time_millis
    assert health_of(table, min_files=11).score == 100, "by what the caller compacts with"


def test_the_result_of_the_job_has_reasons_and_figures() -> None:
    table = in_memory()
    for seq in range(8):
        append(table, "a", seq=seq)
    result = run(table, "table_health")
    assert not result.changed and result.snapshot_before == result.snapshot_after == 8
    (reason,) = result.details["reasons"]
    assert (reason["id"], reason["value"], reason["cost_bytes"]) == ("sorted-runs", 8, 88)
    assert result.details["score"] == 100 - reason["points"]
    assert result.details["files"]["most_runs"] == 8 and result.details["storage"] is None


def test_the_job_lists_the_tables_of_a_warehouse_the_worst_first() -> None:
    warehouse = f"memory://{uuid.uuid4()}/wh"
    well, sick, gone = (make_table(warehouse, name) for name in ("d.well", "d.sick", "e.gone"))
    append(well, "a")
    append(gone, "a")
    for seq in range(8):
        append(sick, "a", seq=seq)
    gone.store.replace(gone.paths.snapshot(1), b"{")
    asked = {"warehouse": warehouse, "table": "*"}
    found = run_operation(build_request("table_health", asked)).details
    assert [one["table"] for one in found["tables"]] == ["e.gone", "d.sick", "d.well"]
    assert (found["unreadable"], found["left_out"], found["score"]) == (1, 0, found["tables"][1]["score"])
    assert found["tables"][0]["error"]["kind"] == "corrupt"
    assert found["tables"][1]["reasons"][0]["id"] == "sorted-runs"
    few = run_operation(build_request("table_health", {**asked, "table": "d.well, d.s*", "limit": 1})).details
    assert ([one["table"] for one in few["tables"]], few["left_out"]) == (["d.sick"], 1)
    with pytest.raises(NotFoundError, match=r"has no table 'd\.x'"):
        run_operation(build_request("table_health", {**asked, "table": "d.x,d.*"}))
    with pytest.raises(NotFoundError, match=r"There is no table d\.\*"):
        run_operation(build_request("check_table", {**asked, "table": "d.*"}))


def test_due_snapshots_are_those_that_the_expiry_takes() -> None:
    """With an undo, a tag and a branch whose retentions are over, a stream's consumer, a branch that shares files."""
    table = in_memory(**{"snapshot.num-retained.min": "2", "snapshot.time-retained": "1 h"})
    for number in range(12):
        (append if number % 3 else overwrite)(table, "abc"[number % 3])
    run(table, "create_tag", tag="short", time_retained="1 d")
    run(table, "create_tag", tag="long", time_retained="90 d")
    run(table, "create_branch", branch="fix", snapshot=12, retention="1 d")
    rewrite(table.branch("fix"), "b")
    run(table, "merge_branch", branch="fix")
    overwrite(table, "a")
    later = datetime.fromtimestamp((now_ms() + 3 * DAY_MS) / 1000, UTC).isoformat()

    def expiring(operation: str, **values: Any) -> Any:
        return run(table, operation, dry_run=True, now=later, **values).details["expired"]

    found = health_of(table, days=3).retained
    expected = expiring("expire_snapshots", all_branches=True)
    assert found.due_snapshots == sum(e["snapshots"] for e in expected.values()) > 5
    assert found.due_tags == len(expiring("expire_tags")["main"]) == 1
    assert (found.due_branches, found.branches) == (1, 1)
    assert health_of(table).retained.due_snapshots == health_of(table).retained.due_tags == 0
    assert found.blocked_snapshots == 0
    table.store.create("consumer/consumer-slow", b'{"nextSnapshot": 4}')
    found = health_of(table, days=3).retained
    left = expiring("expire_snapshots", all_branches=True)["main"]["snapshots"]
    assert found.due_snapshots == left == 3
    assert (found.blocked_by, found.consumers) == ("slow", 1) and found.blocked_snapshots > 5
    run(table, "expire_snapshots", now=later)
    assert health_of(table).retained.trash == 3, "its files wait for the grace time"


def test_counting_due_snapshots_looks_at_few_of_them() -> None:
    chance = random.Random(5)
    for _ in range(300):
        ids = sorted(chance.sample(range(1, 300), chance.randint(1, 120)))
        times = dict(zip(ids, sorted(chance.choices(range(100), k=len(ids))), strict=True))
        least = chance.randint(1, 12)
        rule = SnapshotRule(
            retain_min=least, retain_max=least + chance.randint(0, 100), cutoff_ms=chance.randint(0, 100)
        )
        pins = chance.sample(range(1, 300), chance.randint(0, 2))
        allowed = max(0, min([len(ids) - rule.retain_min, *(sum(i < p for i in ids) for p in pins)]))
        expected = min(max(len(ids) - rule.retain_max, 0), allowed)
        while expected < allowed and times[ids[expected + 1]] < rule.cutoff_ms:
            expected += 1
        looked: list[int] = []

        def time_of(number: int, times: dict[int, int] = times, looked: list[int] = looked) -> int:
            looked.append(number)
            return times[number]

        assert count_due(ids, rule, pins, time_of) == expected
        assert len(looked) <= 9


def test_the_oldest_thing_that_holds_files() -> None:
    table = in_memory()
    for _ in range(3):
        overwrite(table, "a")
    assert health_of(table).retained.oldest == replace(health_of(table).retained.oldest, kind="snapshot", name="1")
    assert health_of(table).retained.replaced_bytes == 11, "the first file; the second was never of the oldest snapshot"
    assert health_of(table).retained.unlimited is None
    run(table, "create_tag", tag="kept", snapshot=2)
    run(table, "create_tag", tag="gone", snapshot=1, time_retained="900 d")
    run(table, "create_branch", branch="fix", snapshot=3)
    old = health_of(table, days=200)
    assert old.retained.unlimited is not None and old.retained.unlimited.name == "kept"
    assert {r.id: r.operation for r in old.reasons}["old-state"] == "delete_tag"
    run(table, "delete_tag", tag="kept")
    assert {r.id: (r.operation, r.branch) for r in health_of(table, days=200).reasons}["old-state"][
        0
    ] == "delete_branch"


def test_of_several_states_of_one_millisecond_the_first_is_the_oldest() -> None:
    """A fast writer commits them; the names of what holds them are in another order."""
    table = in_memory()
    for number in (1, 2, 3):
        overwrite(table, "a")
        commit_time(table, number, DAY_MS)
    for tag, snapshot in (("0-day", 1), ("b", 2), ("a", 3)):
        run(table, "create_tag", tag=tag, snapshot=snapshot, **({"time_retained": "9 d"} if tag == "0-day" else {}))
    retained = health_of(table).retained
    assert retained.unlimited is not None and retained.unlimited.name == "b"
    assert retained.oldest is not None and (retained.oldest.kind, retained.oldest.name) == ("snapshot", "1")


def test_each_file_is_read_once_and_more_snapshots_cost_no_more() -> None:
    table = in_memory(**{"snapshot.num-retained.min": "500", "snapshot.num-retained.max": "500"})
    costs = []
    for total in (20, 80):
        while (table.latest_snapshot_id() or 0) < total:
            append(table, "a", bucket=total % 2)
        store = CountingStore(table.store)
        health_of(replace(table, store=store))
        read = [p for method, paths in store.tally.log if method in ("read", "read_many") for p in paths.split(", ")]
        snapshots = [p for p in read if "/snapshot-" in p]
        manifests = [p.rpartition("/")[2] for p in read if "manifest-" in p]
        assert len(snapshots) <= 3 and len(manifests) == len(set(manifests))
        costs.append(store.tally.requests - len(manifests))
    assert costs[0] == costs[1] < 30


def test_what_nothing_refers_to_is_counted_when_asked_for() -> None:
    table = in_memory(primary=False)
    append(table, "a")
    table.store.create(f"dt=a/bucket-0/data-{uuid.uuid4()}-0.parquet", bytes(5000))
    found = health_of(table, days=9, storage=True)
    assert found.storage is not None and (found.storage.orphan_files, found.storage.orphan_bytes) == (1, 5000)
    assert "orphan-files" in [r.id for r in found.reasons]
    assert health_of(table, days=9).storage is None


def test_a_chain_table_is_judged_by_its_three_branches(tmp_path: Path) -> None:
    table = make_chain(tmp_path / "wh")
    add(table.branch("snapshot"), "20250101")
    for day in ("20250102", "20250103", "20250104"):
        add(table.branch("delta"), day)
    build(table, "20250103", "20250101", ["20250102", "20250103"])
    found = health_of(table)
    assert found.score == 100 and found.chain is not None
    assert (found.files.files, found.files.partitions, found.chain.longest) == (5, 5, 1)
    add(table.branch("delta"), "20250102", bucket=1)
    found = health_of(table)
    assert [(r.id, r.operation) for r in found.reasons] == [("stale-partitions", "compact_chain_table")]
    assert found.chain is not None and found.chain.stale_bytes == 11


@pytest.mark.damages_metadata
def test_an_unreadable_table_is_an_entry_and_the_worst_comes_first(tmp_path: Path) -> None:
    made = {
        name: make_table(tmp_path / "wh", f"d.{name}", primary=False) for name in ("fine", "sick", "broken", "gone")
    }
    for name in ("fine", "broken"):
        append(made[name], "a")
    for _ in range(9):
        append(made["sick"], "a")
    head = made["broken"].latest_snapshot()
    assert head is not None
    made["broken"].store.delete(f"manifest/{head.delta_manifest_list}")
    made["gone"].store.delete("schema/schema-0")
    reports = read_healths(made.values(), now_ms())
    assert [r.table for r in reports] == ["d.broken", "d.gone", "d.sick", "d.fine"]
    found = [r.to_json() for r in reports]
    assert [one["score"] for one in found][:2] == [None, None]
    assert [found[0]["error"]["kind"], found[1]["error"]["kind"]] == ["corrupt", "not-found"]
    assert found[2]["reasons"][0]["id"] == "small-files" and found[3]["score"] == 100
    with pytest.raises(FormatError, match="is missing"):
        health_of(made["broken"])


@pytest.mark.parametrize("manifests_first", [False, True])
def test_an_expiry_beside_it_is_no_error(manifests_first: bool) -> None:
    """The oldest snapshots are taken away right before they are read; by Paimon their manifests long before."""
    table = copied(in_memory())
    for _ in range(5):
        overwrite(table, "a")
    expiring = [table.snapshot(number) for number in (1, 2)]

    class Expiring(CountingStore):
        def read(self, path: str) -> bytes:
            if path in [table.paths.snapshot(s.id) for s in expiring]:
                for path_gone in [f"manifest/{s.base_manifest_list}" for s in expiring] if manifests_first else [path]:
                    self.inner.delete(path_gone)
            return super().read(path)

    found = health_of(replace(table, store=Expiring(table.store)))
    assert found.retained.oldest is not None and found.retained.oldest.name == "3"
