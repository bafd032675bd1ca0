"""expire_partitions on real chain tables: chain-tables 5, what reads give afterwards, crashes, company."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit_files import drop_partitions
from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError
from airflow_paimon.core.operations.context import Context, open_context
from airflow_paimon.core.operations.registry import _dispatch
from airflow_paimon.core.operations.request import build_request
from airflow_paimon.core.operations.result import OperationResult
from airflow_paimon.core.partition_drop import held_partitions
from airflow_paimon.core.scan import plan_scan
from airflow_paimon.core.store import open_store
from airflow_paimon.core.store.testing import Crash, FaultStore
from airflow_paimon.core.table import Table, open_table
from airflow_paimon.data import write_arrow
from tests.core.chain_tables import as_another_engine
from tests.core.tables import run
from tests.data.compactions import compact
from tests.data.test_chain_read import Row, Writes, chain_table, seen, set_options

NOW = "2025-03-31T00:00:00+00:00"
OLD = {"expiration_time": "30 d", "now": NOW}
GROUPED = {"region": "STRING", "dt": "STRING"}


def writes(snapshot: str, delta: str) -> Writes:
    """A row for each partition (``0101`` or ``US/0101``): key = the day, in deltas also a version of key 1."""
    out: list[tuple[str, str, Sequence[Row]]] = []
    for branch, text in (("delta", delta), ("snapshot", snapshot)):
        for name in text.split():
            *group, day = name.split("/")
            own = (int(day), int(day), f"{branch}-{day}")
            rows = [own, (1, int(day), day)] if branch == "delta" else [own]
            out.append((branch, "/".join((*group, f"2025{day}")), rows))
    return out


def made(snapshot: str, delta: str, folder: Any = None, **options: str) -> Table:
    grouped = "/" in snapshot + delta
    return chain_table(
        folder or f"memory://{uuid.uuid4()}/wh",
        writes(snapshot, delta),
        partitions=GROUPED if grouped else {"dt": "STRING"},
        chain_keys="dt" if grouped else "",
        buckets=1,
        **options,
    )


def held(table: Table, branch: str) -> str:
    """What a branch holds, as ``writes`` takes it."""
    found = held_partitions(plan_scan(table.branch(branch)))
    return " ".join("/".join((*h.values[:-1], str(h.values[-1])[4:])) for h in found)


def both(table: Table) -> tuple[str, str]:
    return held(table, "snapshot"), held(table, "delta")


def add_row(view: Table, row: dict[str, Any]) -> None:
    """Append as another engine does, without what our writes look after: the branch is no chain's for a moment."""
    set_options(view, {"chain-table.enabled": "false"})
    write_arrow(view, pa.Table.from_pylist([row], schema=_types(row)))
    set_options(view, {"chain-table.enabled": "true"})


def _types(row: dict[str, Any]) -> pa.Schema:
    return pa.schema([(n, pa.int32() if isinstance(v, int) else pa.string()) for n, v in row.items()])


def rows_of(table: Table, days: Iterable[str]) -> list[Row]:
    wanted = set(days)
    return [r for r in seen(table) if r[-1][4:] in wanted or f"{r[-2]}/{r[-1][4:]}" in wanted]


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
    run(table, "expire_partitions", **OLD, min_anchors=2)
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
    assert "2 partitions have no place in time and stay" in result.details["warnings"][0]
    assert len(held(table, "snapshot").split()) == len(held(table, "delta").split()) + 1 == 2


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"branch": "delta"}, "expires as a whole"),
        ({"strategy": "update-time"}, "values-time only"),
        ({"timestamp_pattern": "$dt"}, "that of its options"),
        ({"min_anchors": 0}, "at least 1"),
        ({"expiration_time": None}, "partition.expiration-time"),
    ],
)
def test_what_does_not_fit_a_chain_table_is_refused(asked: dict[str, Any], says: str) -> None:
    table = made("0101 0201", "")
    with pytest.raises(InvalidInputError, match=says):
        run(table, "expire_partitions", **{**OLD, **asked})


def test_a_missing_branch_is_named() -> None:
    table = made("0101 0201", "")
    table.store.delete_tree("branch/branch-delta")
    with pytest.raises(NotFoundError, match="delta"):
        run(table, "expire_partitions", **OLD)


# -- crashes ------------------------------------------------------------------------------------------------------


def copied(table: Table) -> Table:
    """The same table elsewhere in memory."""
    uri = f"memory://{uuid.uuid4()}/wh"
    store = open_store(f"{uri}/d.db/t")
    for path in table.store.walk(""):
        store.create(path, table.store.read(path))
    return open_table(uri, "d.t")


def faulty(table: Table, fault: FaultStore, **values: Any) -> OperationResult:
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request("expire_partitions", {"warehouse": warehouse, "table": table.name, **OLD, **values})
    context = open_context(request)
    return _dispatch(Context(request, Table(fault, table.name), context.now_ms, context.started), request, None)


@pytest.fixture(scope="module")
def plain() -> Table:
    return made("US/0101 US/0201 US/0301 EU/0110 EU/0120", "US/0105 US/0101 EU/0115 US/0205 US/0315")


LEFT = ("EU/0120 US/0201 US/0301", "US/0205 US/0315")
STAYING = {day for text in LEFT for day in text.split()}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation_id", ["op", None], ids=["same operation", "another run"])
def test_killed_at_every_store_call(plain: Table, operation_id: str | None, after: bool) -> None:
    """Whatever a killed run left, what stays reads right, and the next run hours later ends the work, once."""
    expected = rows_of(plain, STAYING)
    probe = FaultStore(copied(plain).store)
    faulty(Table(probe, "d.t"), probe, operation_id=operation_id)
    for step in range(1, len(probe.mutations) + 1):
        table = copied(plain)
        with pytest.raises(Crash):
            faulty(table, FaultStore(table.store, step, after=after), operation_id=operation_id)
        assert rows_of(table, STAYING) == expected
        run(table, "expire_partitions", **OLD, operation_id=operation_id)
        assert both(table) == LEFT
        assert rows_of(table, STAYING) == expected
        commits = [
            len(table.branch(b).snapshot_ids()) - len(plain.branch(b).snapshot_ids()) for b in ("delta", "snapshot")
        ]
        assert commits == [1, 1]


def killed_between(table: Table, **values: Any) -> None:
    """Let a run die after its commit of the delta branch, before that of the snapshot branch."""
    before = table.branch("snapshot").latest_snapshot_id()

    def die(method: str, path: str) -> None:
        if method == "create" and path.endswith(f"snapshot/snapshot-{(before or 0) + 1}") and "branch-snapshot" in path:
            raise Crash("between the branches")

    with pytest.raises(Crash):
        faulty(table, FaultStore(table.store, on_mutation=die), **values)


def test_hours_later_the_run_goes_on_with_what_was_planned(plain: Table) -> None:
    table = copied(plain)
    killed_between(table, operation_id="op", now=None, expiration_time="63 d")
    # Planned while US/0201 was the only old one but 0101; by now 0301 would be old as well.
    assert held(table, "snapshot") == held(plain, "snapshot")
    result = run(table, "expire_partitions", expiration_time="63 d", operation_id="op")
    assert result.details["replayed"]
    assert [c["branch"] for c in result.details["commits"]] == ["delta", "snapshot"]
    again = run(table, "expire_partitions", expiration_time="63 d", operation_id="op")
    assert again.details["commits"] == result.details["commits"]
    assert again.plan_id == result.plan_id


def test_the_recorded_cutoff_counts_not_the_time_of_the_retry() -> None:
    """Without --now the retry's clock is later; the plan is the first try's."""
    table = made("0101 0201 0301", "0110 0210")
    killed_between(table, operation_id="op")
    journal = next(p for p in table.store.walk("_airflow_paimon/operations") if "-expiry-0" in p)
    assert b'"cutoff": "2025-03-01T00:00:00"' in table.store.read(journal)
    run(table, "expire_partitions", **OLD, operation_id="op")
    assert both(table) == ("0201 0301", "0210")


def drop(table: Table, branch: str, *names: str) -> None:
    drop_partitions(table.branch(branch), [{"region": n.split("/")[0], "dt": f"2025{n.split('/')[1]}"} for n in names])


def add(table: Table, branch: str, name: str) -> None:
    region, day = name.split("/")
    add_row(table.branch(branch), {"k": 9, "s": 999, "v": "late", "region": region, "dt": f"2025{day}"})


@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        # A late delta behind the old anchor goes with it, in a commit of its own, not without its base.
        (lambda t: add(t, "delta", "US/0106"), LEFT),
        # So does one in a partition that was dropped already.
        (lambda t: add(t, "delta", "US/0105"), LEFT),
        # The partition to drop was written again: it is planned again, and goes.
        (lambda t: add(t, "snapshot", "US/0101"), LEFT),
        # Another engine dropped it.
        (lambda t: drop(t, "snapshot", "US/0101", "EU/0110"), LEFT),
        # A new full partition in between is planned again: it goes, too.
        (lambda t: add(t, "snapshot", "US/0115"), LEFT),
        # Elsewhere work goes on.
        (lambda t: (add(t, "delta", "US/0320"), add(t, "snapshot", "US/0325")),
         ("EU/0120 US/0201 US/0301 US/0325", "US/0205 US/0315 US/0320")),
    ],
    ids=["late delta", "late delta again", "rebuilt", "dropped", "new anchor", "elsewhere"],
)  # fmt: skip
@pytest.mark.parametrize("operation_id", ["op", None], ids=["same operation", "another run"])
def test_what_happened_between_the_two_commits(
    plain: Table, meanwhile: Callable[[Table], object], left: tuple[str, str], operation_id: str | None
) -> None:
    table = copied(plain)
    killed_between(table, operation_id=operation_id)
    meanwhile(table)
    staying = {d for text in left for d in text.split()}
    expected = rows_of(table, staying)
    run(table, "expire_partitions", **OLD, operation_id=operation_id)
    assert both(table) == left
    assert rows_of(table, staying) == expected


@pytest.mark.parametrize(
    ("operation_id", "deltas"),
    [("op", "US/0101 US/0105 US/0205 US/0315"), (None, "US/0205 US/0315")],
    ids=["same operation", "another run"],
)
def test_when_the_anchor_went_between_the_two_commits_the_older_one_stays(
    plain: Table, operation_id: str | None, deltas: str
) -> None:
    """The same operation knows what it dropped, and puts the deltas back that are needed now."""
    table = copied(plain)
    killed_between(table, operation_id=operation_id)
    as_another_engine(table, lambda: drop(table, "snapshot", "US/0201"))
    run(table, "expire_partitions", **OLD, operation_id=operation_id)
    assert both(table) == ("EU/0120 US/0101 US/0301", deltas)


# -- company ------------------------------------------------------------------------------------------------------


def competing(table: Table, branch: str, what: Callable[[], object]) -> FaultStore:
    """A store that lets somebody else act right before our commit on a branch is put."""
    done: list[object] = []

    def compete(method: str, path: str) -> None:
        if method == "create" and f"branch-{branch}/snapshot/snapshot-" in path and not done:
            done.append(None)
            what()

    return FaultStore(table.store, on_mutation=compete)


@pytest.mark.parametrize("branch", ["delta", "snapshot"])
def test_two_at_once_do_the_work_once_and_lose_nothing(plain: Table, branch: str) -> None:
    table = copied(plain)
    others: list[OperationResult] = []
    fault = competing(table, branch, lambda: others.append(run(table, "expire_partitions", **OLD)))
    result = faulty(table, fault)
    assert both(table) == LEFT
    assert others[0].changed
    made_by_both = [c["branch"] for r in (others[0], result) for c in r.details["commits"]]
    assert sorted(made_by_both) == ["delta", "snapshot"]


@pytest.mark.parametrize("late", ["US/0106", "US/0105"])
def test_late_data_right_before_a_commit(plain: Table, late: str) -> None:
    table = copied(plain)
    expected = rows_of(table, STAYING)
    faulty(table, competing(table, "delta", lambda: add(table, "delta", late)))
    assert both(table) == LEFT
    assert rows_of(table, STAYING) == expected


def test_late_data_in_the_other_branch_at_that_very_moment_stays_as_an_orphan(plain: Table) -> None:
    """Nothing locks two branches together: the late row is not lost, and goes with the next segment."""
    table = copied(plain)
    expected = rows_of(table, STAYING)
    faulty(table, competing(table, "snapshot", lambda: add(table, "delta", "US/0106")))
    assert both(table) == (LEFT[0], f"US/0106 {LEFT[1]}")
    assert rows_of(table, STAYING) == expected
    run(table, "expire_partitions", expiration_time="1 d", now=NOW)
    assert both(table) == ("EU/0120 US/0301", "US/0315")


def test_many_at_once_on_a_disk(tmp_path: Path) -> None:
    """Real threads, a real file system, and a writer of new deltas in between."""
    table = made("US/0101 US/0201 US/0301 EU/0110 EU/0120", "US/0105 US/0101 EU/0115 US/0205 US/0315", tmp_path)
    expected = rows_of(table, STAYING)
    with ThreadPoolExecutor(5) as pool:
        runs = [pool.submit(run, table, "expire_partitions", **OLD) for _ in range(4)]
        row = {"k": 9, "s": 999, "v": "new", "region": "US", "dt": "20250320"}
        new = pool.submit(write_arrow, table.branch("delta"), pa.Table.from_pylist([row], schema=_types(row)))
        results = [r.result() for r in runs]
        new.result()
    commits = [c["branch"] for r in results for c in r.details["commits"]]
    assert sorted(commits) == ["delta", "snapshot"]
    assert both(table) == (LEFT[0], f"{LEFT[1]} US/0320")
    assert rows_of(table, STAYING) == expected


def test_what_never_stands_still_is_a_conflict_that_tells_what_stands(plain: Table) -> None:
    table = copied(plain)
    days = iter(range(1, 1000))

    def compete(method: str, path: str) -> None:
        if method == "create" and "branch-snapshot/snapshot/snapshot-" in path:
            table.store.create(f"branch/branch-snapshot/late-{next(days)}", b"")
            add(table, "snapshot", "US/0101")

    with pytest.raises(ConflictError, match="kept changing") as error:
        faulty(table, FaultStore(table.store, on_mutation=compete))
    assert [(c["branch"], c["partitions"]) for c in error.value.details["done"]] == [("delta", 1)]
    assert both(table) == (held(plain, "snapshot"), "US/0101 US/0105 US/0205 US/0315"), "the other group's is gone"


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
