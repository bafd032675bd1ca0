"""Appends to tables whose readers get rows only from a compaction: deletion vectors, first-row, changelogs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.format.snapshot import CommitKind, Operation
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import arrow_write, compact_keyed, read_arrow, write_arrow
from airflow_paimon.data import write as data_write
from airflow_paimon.data.compact_keyed import plan_buckets
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import plan_write, write_rows
from tests.core.tables import run as operate
from tests.data.chain.tables import set_options
from tests.data.tables import make_table, rows_of
from tests.data.test_changes import Follower
from tests.randomness import chance as chance_of
from tests.randomness import moments
from tests.stores import Crash, FaultStore

COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "a": "INT", "b": "STRING"}
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "first-row": {},
    "partial-update": {"partial_update__remove_record_on_delete": "true"},
    "aggregation": {"fields__a__aggregate_function": "sum", "aggregation__remove_record_on_delete": "true"},
}
VECTORS = {"deletion_vectors__enabled": "true"}
Row = tuple[Any, ...]


def keyed(folder: Path, engine: str = "deduplicate", **options: str) -> Table:
    options = {"bucket": "1", "merge_engine": engine, **ENGINES[engine], **options}
    return make_table(folder, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], **options)


def arrow(rows: Sequence[Row]) -> pa.Table:
    """Rows ``(p, k, a, b)``, with the kind at the end if it isn't +I."""
    data = rows_of(COLUMNS, [dict(zip(COLUMNS, r, strict=False)) for r in rows])
    return data.append_column("_row_kind", pa.array([r[4] if len(r) > 4 else "+I" for r in rows]))


def put(table: Table, *rows: Row, **more: Any) -> dict[str, Any]:
    return write_arrow(table, arrow(rows), **more)


def shown(table: Table) -> list[Row]:
    return sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


def levels(table: Table) -> list[int]:
    return sorted(e.file.level for e in live_entries(table, table.latest_snapshot()).values())


def kinds(table: Table) -> list[CommitKind]:
    return [table.snapshot(i).commit_kind for i in table.snapshot_ids()]


@pytest.mark.parametrize(("engine", "options"), [("deduplicate", VECTORS), ("first-row", {}), ("aggregation", VECTORS)])
def test_appended_rows_are_seen_at_once(tmp_path: Path, engine: str, options: dict[str, str]) -> None:
    table = keyed(tmp_path, engine, **options)
    put(table, ("x", 1, 1, "old"), ("y", 1, 5, "old"))
    result = put(table, ("x", 1, 2, "new"), ("x", 2, 2, "new"))
    first = {"deduplicate": (2, "new"), "first-row": (1, "old"), "aggregation": (3, "new")}[engine]
    assert shown(table) == [("x", 1, *first), ("x", 2, 2, "new"), ("y", 1, 5, "old")]
    assert (levels(table), kinds(table)) == ([5, 5], [CommitKind.APPEND, CommitKind.COMPACT] * 2)
    assert {s.operation for s in table.snapshots()} == {Operation.WRITE}  # of both, as Paimon's writers name it
    assert (result["snapshot_before"], result["snapshot_after"]) == (2, 4)


@pytest.mark.parametrize(("engine", "options"), [("deduplicate", VECTORS), ("first-row", {}),
                                                 ("deduplicate", {"changelog_producer": "lookup"})])  # fmt: skip
def test_with_write_only_somebody_else_compacts(tmp_path: Path, engine: str, options: dict[str, str]) -> None:
    table = keyed(tmp_path, engine, write_only="true", **options)
    put(table, ("x", 1, 1, "a"))
    assert (levels(table), kinds(table)) == ([0], [CommitKind.APPEND])


def test_a_branch_shows_what_is_written_to_it(tmp_path: Path) -> None:
    """A branch is write-only, so that its writers leave main's files alone; that is not the table's own choice."""
    for engine, options in (("deduplicate", VECTORS), ("first-row", {}), ("first-row", {"write_only": "true"})):
        table = keyed(tmp_path / f"{engine}{len(options)}", engine, **options)
        put(table, ("x", 1, 1, "old"))
        operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
        put(table.branch("fix"), ("x", 2, 2, "new"))
        assert ("x", 2, 2, "new") in shown(table.branch("fix"))
        assert ("x", 2, 2, "new") not in shown(table)


def test_only_the_buckets_of_the_write_are_compacted(tmp_path: Path) -> None:
    table = keyed(tmp_path, **VECTORS, write_only="true")
    put(table, ("x", 1, 1, "waits"))
    set_options(table, {"write-only": "false"})
    put(table, ("y", 1, 1, "new"))
    assert shown(table) == [("y", 1, 1, "new")]
    put(table, ("x", 2, 2, "new"))
    assert shown(table) == [("x", 1, 1, "waits"), ("x", 2, 2, "new"), ("y", 1, 1, "new")]


def test_a_retry_gives_the_first_tries_result(tmp_path: Path) -> None:
    table = keyed(tmp_path, **VECTORS)
    put(table, ("x", 1, 1, "a"))
    first = put(table, ("x", 1, 2, "b"), operation_id="op")
    put(table, ("x", 1, 3, "c"))
    again = put(table, ("x", 1, 2, "b"), operation_id="op")
    assert [r["snapshot_after"] for r in (first, again)] == [4, 4]
    assert (shown(table), table.latest_snapshot_id()) == ([("x", 1, 3, "c")], 6)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_write_that_is_killed_between_any_two_store_calls_is_done_once(tmp_path: Path, after: bool) -> None:
    """The retry compacts what an earlier try has committed; a sum shows each row once."""
    made = keyed(tmp_path / "made", "aggregation", **VECTORS, changelog_producer="lookup")
    put(made, ("x", 1, 1, "a"))
    for step in moments(100):
        shutil.copytree(tmp_path / "made", tmp_path / str(step))
        table = open_table(str(tmp_path / str(step)), made.name)
        store = FaultStore(table.store, step, after=after)
        try:
            put(Table(store, table.name), ("x", 1, 10, "b"), operation_id="op")
        except Crash:
            assert shown(table) in ([("x", 1, 1, "a")], [("x", 1, 11, "b")])
        put(table, ("x", 1, 10, "b"), operation_id="op")
        assert shown(table) == [("x", 1, 11, "b")]
        assert kinds(table) == [CommitKind.APPEND, CommitKind.COMPACT] * 2
        if len(store.mutations) < step:
            break
    assert step > 10


def test_rows_that_can_not_be_compacted_are_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is altered after each plan. The result says so, and a retry compacts."""
    table = keyed(tmp_path, **VECTORS)

    def late(*args: Any, **more: Any) -> Any:
        planned = plan_buckets(*args, **more)
        set_options(table, {"comment": f"{planned.write.schema.id}"})
        return planned

    with monkeypatch.context() as patched:
        patched.setattr(compact_keyed, "plan_buckets", late)
        (warning,) = put(table, ("x", 2, 2, "ours"), operation_id="op")["details"]["warnings"]
    assert warning.startswith("the rows are committed (snapshot 1), but other commits")
    assert (shown(table), levels(table)) == ([], [0])
    assert len(list(tmp_path.rglob("data-*"))) == 1
    assert put(table, ("x", 2, 2, "ours"), operation_id="op")["snapshot_after"] == 2
    assert shown(table) == [("x", 2, 2, "ours")]


def test_a_bucket_that_moved_is_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(tmp_path, "aggregation", **VECTORS, changelog_producer="lookup")
    others = iter([("x", 1, 10, "other"), ("x", 3, 1, "other")])

    def late(*args: Any, **more: Any) -> Any:
        planned = plan_buckets(*args, **more)
        if (row := next(others, None)) is not None:
            put(table, row)
        return planned

    monkeypatch.setattr(compact_keyed, "plan_buckets", late)
    reader = Follower(table, row_kind=True)
    put(table, ("x", 1, 1, "ours"))
    assert (shown(table), levels(table)) == ([("x", 1, 11, "other"), ("x", 3, 1, "other")], [5])
    assert sorted(reader.all()) == [("x", 1, 11, "other", "+I"), ("x", 3, 1, "other", "+I")]


def test_the_refusal_of_a_compaction_says_that_the_rows_are_in(tmp_path: Path) -> None:
    table = keyed(tmp_path, "first-row", ignore_delete="true")
    put(table, ("x", 1, 1, "a"))
    (entry,) = live_entries(table, table.latest_snapshot()).values()
    (path,) = tmp_path.rglob(entry.file.file_name)
    path.write_bytes(b"damaged")
    with pytest.raises(PaimonError) as failed:
        put(table, ("x", 1, 2, "b"))
    assert failed.value.details["done"] == [3]
    assert (table.latest_snapshot_id(), levels(table)) == (3, [0, 5])


def test_options_that_the_compaction_would_refuse_are_refused_before_the_commit(tmp_path: Path) -> None:
    expiry = {"record-level.expire-time": "1 s", "record-level.time-field": "nothing"}
    table = keyed(tmp_path, **VECTORS)
    set_options(table, expiry)
    with pytest.raises(InvalidInputError, match=r"record-level\.time-field.*'nothing'"):
        put(table, ("x", 1, 1, "a"))
    assert (table.latest_snapshot(), list(tmp_path.rglob("*.parquet"))) == (None, [])


class Model:
    """The rows of a table, by its merge engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.rows: dict[Any, tuple[Any, Any]] = {}

    def take(self, p: str, k: int, a: int | None, b: str | None, kind: str = "+I") -> None:
        old = self.rows.get((p, k))
        if kind == "-D":
            self.rows.pop((p, k), None)
        elif old is None or self.engine == "deduplicate":
            self.rows[p, k] = a, b
        elif self.engine == "partial-update":
            self.rows[p, k] = old[0] if a is None else a, old[1] if b is None else b
        elif self.engine == "aggregation":
            total = a if old[0] is None else old[0] + (a or 0)
            self.rows[p, k] = total, old[1] if b is None else b

    def listed(self) -> list[Row]:
        return sorted((*key, *values) for key, values in self.rows.items())


def lives() -> Iterator[tuple[str, dict[str, str]]]:
    for engine in ENGINES:
        for vectors in ({}, VECTORS) if engine != "first-row" else ({},):
            for producer in ("none", "lookup") if engine == "first-row" else ("none", "lookup", "full-compaction"):
                if vectors and producer == "full-compaction":
                    continue  # Paimon doesn't open such a table
                if vectors or producer != "none" or engine == "first-row":
                    yield engine, {**vectors, "changelog_producer": producer}


@pytest.mark.random
@pytest.mark.parametrize(("engine", "options"), list(lives()), ids=str)
@pytest.mark.every(3)
def test_random_lives(tmp_path: Path, engine: str, options: dict[str, str]) -> None:
    """After each write a batch reader sees the model's rows, and so does whoever applies the changes of a stream."""
    chance = chance_of(f"written/{engine}/{options}")
    table = keyed(tmp_path, engine, **{**options, "bucket": chance.choice(["1", "3", "-1"])})
    model, told = Model(engine), options["changelog_producer"] != "none"
    reader, known = Follower(table, row_kind=True), {}
    for _ in range(8):
        deletes = engine != "first-row" and chance.random() < 0.3
        keys = chance.sample([(p, k) for p in "xy" for k in range(6)], chance.randrange(1, 8))
        rows = [(*key, chance.choice([None, 1, 2, 5]), chance.choice([None, "u", "v"]),
                 "-D" if deletes and chance.random() < 0.5 else "+I") for key in keys]  # fmt: skip
        put(table, *rows)
        for row in rows:
            model.take(*row)
        assert shown(table) == model.listed()
        assert set(levels(table)) <= {5}
        if told:
            while (batch := reader.batch()) is not None:
                for p, k, a, b, kind in batch:
                    if kind in ("+I", "+U"):
                        known[p, k] = a, b
                    else:
                        assert known.pop((p, k)) == (a, b)
            assert known == model.rows


def several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer make a run of each batch, as several tasks do that get rows of one bucket."""
    monkeypatch.setattr(
        arrow_write, "plan_write", lambda *given, **how: replace(plan_write(*given, **how), buffer_bytes=1)
    )
    monkeypatch.setattr(data_write, "merges_in_parts", lambda schema: False)


@pytest.mark.parametrize("mode", ["overwrite", "dynamic_overwrite"])
def test_an_overwrite_of_several_runs_is_seen_and_told_to_nobody(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Paimon's own, streaming readers don't get an overwrite."""
    several_runs(monkeypatch)
    table = keyed(tmp_path, **VECTORS, changelog_producer="lookup")
    put(table, ("x", 1, 1, "old"), ("x", 2, 1, "old"))
    reader = Follower(table, row_kind=True, **{"streaming-read-overwrite": "false"})
    assert len(reader.all()) == 2
    put(table, ("x", 1, 2, "new"), mode=mode)
    assert (shown(table), levels(table)) == ([("x", 1, 2, "new")], [5])
    assert kinds(table)[2:] == [CommitKind.OVERWRITE, CommitKind.COMPACT]
    assert reader.all() == []
    put(table, ("x", 1, 3, "newer"))
    assert reader.all() == [("x", 1, 2, "new", "-U"), ("x", 1, 3, "newer", "+U")]


def test_what_another_writer_adds_to_an_overwrite_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows may be told twice then, but the other writer's would else never be."""
    several_runs(monkeypatch)
    table = keyed(tmp_path, changelog_producer="lookup")
    put(table, ("x", 1, 1, "old"))

    def late(*args: Any, **more: Any) -> Any:
        write = plan_write(table)
        if levels(table) == [0]:
            ready = conform_rows(arrow([("x", 2, 2, "other")]), write.schema, table.label)
            commit_append(table, write_rows(write, [ready]), planned_on=write.planned_on)
        return plan_buckets(*args)

    reader = Follower(table, row_kind=True, **{"streaming-read-overwrite": "false"})
    assert len(reader.all()) == 1
    monkeypatch.setattr(compact_keyed, "plan_buckets", late)
    put(table, ("x", 1, 2, "new"), mode="overwrite")
    assert reader.all() == [("x", 1, 2, "new", "+I"), ("x", 2, 2, "other", "+I")]
