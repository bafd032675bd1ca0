"""compact of primary-key tables that O3, Paimon's Java engine, writes: it reads the same rows, goes on writing,
compacting and deleting, and its stream tells every change once.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.commit.rewrites import commit_compaction
from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.scan import ScanPlan, plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.rewrite import live_bucket, rewrite_bucket
from airflow_paimon.data.write import plan_write
from tests.core.tables import run as operate
from tests.data.tables import rows_of, sorted_changes
from tests.data.test_compact import run
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle
from tests.oracles.merge_lives import a_life
from tests.oracles.processes import OracleError
from tests.oracles.test_merge_lives import rows_in_one_form, step
from tests.randomness import chance, every, lives

pytestmark = pytest.mark.oracle

KV = {"k": "INT NOT NULL", "v": "STRING"}
COLUMNS = {"p": "INT NOT NULL", "k": "INT NOT NULL", "v": "STRING"}
Rows = dict[tuple[int, int], str]

CASES: dict[str, dict[str, str]] = {
    "fixed": {"bucket": "2"},
    "dynamic-orc": {"bucket": "-1", "file.format": "orc", "dynamic-bucket.target-row-num": "7"},
    "vectors": {"bucket": "2", "deletion-vectors.enabled": "true"},
    "dynamic-vectors-avro": {"bucket": "-1", "deletion-vectors.enabled": "true", "file.format": "avro"},
    "input": {"bucket": "2", "changelog-producer": "input"},
    "sequence-parquet": {"bucket": "1", "sequence.field": "v"},
    "lookup": {"bucket": "2", "changelog-producer": "lookup"},
    "lookup-vectors": {"bucket": "1", "changelog-producer": "lookup", "deletion-vectors.enabled": "true"},
    "lookup-dynamic-equal": {
        "bucket": "-1",
        "changelog-producer": "lookup",
        "changelog-producer.row-deduplicate": "true",
    },
    "full-compaction": {"bucket": "2", "changelog-producer": "full-compaction"},
    "full-compaction-dynamic": {"bucket": "-1", "changelog-producer": "full-compaction"},
}


class Life:
    """A table, what is in it, and a stream that follows it."""

    def __init__(self, java: JavaOracle, folder: Path, options: dict[str, str]) -> None:
        self.java, self.folder, self.changelog = java, folder, options.get("changelog-producer", "none")
        java.create_table(
            folder, "d.t", COLUMNS, partition_keys=["p"], primary_keys=["p", "k"],
            options={**options, "write-only": "true"},
        )  # fmt: skip
        self.table = open_table(str(folder), "d.t")
        self.rows: Rows = {}
        self.told: Rows = {}
        self.number = 0
        self.put(self.some(range(6)))
        self.reader = str(folder)
        java.open_stream_reader(folder, "d.t", self.reader)

    def some(self, keys: Any) -> list[dict[str, Any]]:
        self.number += 1
        return [{"p": k % 2, "k": k, "v": f"{self.number:05}"} for k in keys]

    def put(self, rows: list[dict[str, Any]], kind: str = "+I", **more: Any) -> None:
        self.java.write(self.folder, "d.t", [{**r, "_row_kind": kind} for r in rows], **more)
        self.know(rows, kind)

    def know(self, rows: list[dict[str, Any]], kind: str) -> None:
        for row in rows:
            self.rows.pop((row["p"], row["k"]), None)
            if kind == "+I":
                self.rows[row["p"], row["k"]] = row["v"]

    def ours(self, **how: Any) -> None:
        run(self.table, **how)
        self.check()

    def theirs(self, *, full: bool) -> None:
        self.java.do("compact", self.folder, "d.t", full=full)
        self.check()

    def check(self) -> None:
        seen = {(r["p"], r["k"]): r["v"] for r in read_arrow(self.table).to_pylist()}
        assert seen == self.rows
        assert_same_rows(self.java.read(self.folder, "d.t"), read_arrow(self.table))
        assert operate(self.table, "check_table").details["ok"]

    def follow(self) -> None:
        """Apply what the stream tells, and check that each key is inserted once and deleted once."""
        while True:
            found, _ = self.java.stream_read(self.reader)
            if not found.num_rows:
                break
            for row in found.to_pylist():
                key, kind = (row["p"], row["k"]), row["_row_kind"]
                if self.changelog in ("lookup", "full-compaction"):  # exactly one change after the other
                    assert self.told.get(key) == (None if kind in ("+I", "+U") else row["v"]), (row, self.told.get(key))
                if kind in ("+I", "+U"):
                    self.told[key] = row["v"]
                else:
                    self.told.pop(key, None)


def random_life(life: Life, name: str, steps: int) -> None:
    random = chance(f"key-compaction-{name}")
    for _ in range(steps):
        keys = random.sample(range(40), random.randint(1, 12))
        what = random.choice(["put", "put", "put", "delete", "ours", "ours", "theirs"])
        if what == "put":
            life.put(life.some(keys))
        elif what == "delete":
            life.put(life.some(keys), "-D")
        elif what == "ours":
            life.ours()
        else:
            life.theirs(full=random.random() < 0.5)
        life.follow()
    life.ours()
    life.theirs(full=True)
    life.follow()
    assert life.told == life.rows


@pytest.mark.random
@pytest.mark.parametrize("name", every(4, CASES))
def test_random_lives(java_oracle: JavaOracle, tmp_path: Path, name: str) -> None:
    random_life(Life(java_oracle, tmp_path, CASES[name]), name, 14)


@pytest.mark.parametrize("name", ["fixed", "dynamic-orc", "vectors"])
def test_a_writer_that_stays_open_over_a_compaction(java_oracle: JavaOracle, tmp_path: Path, name: str) -> None:
    """A write-only writer goes on as if nothing had happened, also with what it had flushed before."""
    life = Life(java_oracle, tmp_path, CASES[name])
    if "bucket" in CASES[name] and CASES[name]["bucket"] == "-1":
        life.put(life.some(range(6, 12)))
        run(life.table)
        life.put(life.some(range(3, 20)))
        life.ours()
        return
    with java_oracle.open_stream_writer(tmp_path, "d.t") as writer:
        for flushed in (False, True):
            rows = life.some(range(3, 9))
            writer.write(rows)
            life.know(rows, "+I")
            if flushed:
                writer.prepare()
            run(life.table)
            writer.commit()
            gone = life.some([4, 5])
            writer.write([{**r, "_row_kind": "-D"} for r in gone])
            writer.commit()
            life.know(gone, "-D")
            life.ours()


def compacted(java: JavaOracle, folder: Path, name: str) -> list[Any] | str:
    """The rows after a full compaction of Java's own, of a copy of the table."""
    copy = f"{name}_copy"
    place = folder / "d.db"
    shutil.rmtree(place / copy[2:], ignore_errors=True)
    shutil.copytree(place / name[2:], place / copy[2:])
    try:
        java.do("compact", folder, copy, full=True, options={"write-only": "false"})
        return rows_in_one_form(java.read(folder, copy))
    except OracleError:
        return "refused"


def told_rows(java: JavaOracle, reader: str, known: dict[int, dict[str, Any]], schema: pa.Schema) -> list[Any]:
    """Apply what the stream tells next; give the table that its reader has then."""
    while (found := java.stream_read(reader)[0]).num_rows:
        for row in found.to_pylist():
            kind = row.pop("_row_kind")
            if kind in ("+I", "+U"):
                known[row["k"]] = row
            else:
                known.pop(row["k"], None)
    return rows_in_one_form(pa.Table.from_pylist(list(known.values()), schema=schema))


@pytest.mark.random
@pytest.mark.parametrize("engine", ["partial-update", "aggregation", "first-row"])
@pytest.mark.parametrize("number", range(lives(1, 2)))
@pytest.mark.every(2)
def test_lives_of_merge_engines(java_oracle: JavaOracle, tmp_path: Path, engine: str, number: int) -> None:
    """Our compaction changes no row that Java has read, shows the others as its own does, and tells streams as much.

    With lookups Java's own also empties, without telling, the columns of a sequence group that has no sequence, of keys
    with one record, and makes a row with a negative sum of a lone delete, which its reads leave out: there are none in
    such tables.
    """
    random = chance(f"key-compaction-{engine}-{number}")
    life, name = a_life(random, engine), "d.t"
    hides = engine == "first-row" or "deletion-vectors.enabled" in life.options
    looks_up = hides or life.options["changelog-producer"] == "lookup"
    life = replace(life, nulls=0.0) if looks_up else life
    life = replace(life, kinds="+") if looks_up and engine == "aggregation" else life
    java_oracle.create_table(tmp_path, name, life.columns, primary_keys=["k"], options=life.options)
    table, known, told = open_table(str(tmp_path), name), {}, life.options["changelog-producer"] != "none"
    done: list[str] = []
    reader, opened = str(tmp_path), False
    for _ in range(life.steps):
        done.append(step(java_oracle, tmp_path, name, life, random))
        if table.latest_snapshot_id() is None:
            continue
        if told and not opened:
            opened = True
            java_oracle.open_stream_reader(tmp_path, name, reader)
        expected = compacted(java_oracle, tmp_path, name)
        if not hides and expected != "refused":
            expected = rows_in_one_form(java_oracle.read(tmp_path, name))
        try:
            run(table)
        except PaimonError:
            assert expected == "refused", (life.options, done)
            return
        assert expected == rows_in_one_form(java_oracle.read(tmp_path, name)), (life.options, done)
        assert expected == rows_in_one_form(read_arrow(table)), (life.options, done)
        assert not run(table).changed
        if told:
            schema = read_arrow(table).schema
            assert expected == told_rows(java_oracle, reader, known, schema), (life.options, done)


def test_a_bucket_with_vectors_is_written_again(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Rows that wait for a compaction stay, deleted ones don't come back, and Java goes on: reads, deletes, upserts."""
    options = {"bucket": "1", "deletion-vectors.enabled": "true"}
    java_oracle.create_table(tmp_path, "d.t", KV, primary_keys=["k"], options=options)
    table = open_table(str(tmp_path), "d.t")

    def put(rows: dict[int, str], kind: str = "+I", **more: Any) -> None:
        java_oracle.write(tmp_path, "d.t", [{"k": k, "v": v, "_row_kind": kind} for k, v in rows.items()], **more)

    def seen() -> dict[int, str]:
        assert_same_rows(java_oracle.read(tmp_path, "d.t"), read_arrow(table))
        return {r["k"]: r["v"] for r in read_arrow(table).to_pylist()}

    def rewritten(rows: dict[int, str]) -> tuple[ScanPlan, CommitMessage]:
        write, plan = plan_write(table, by_buckets=True), plan_scan(table)
        batch = conform_rows(rows_of(KV, [{"k": k, "v": v} for k, v in rows.items()]), write.schema, table.label)
        (split,) = plan.splits
        highest = max(f.max_sequence_number for f in split.files)
        changes = sorted_changes(batch, write.schema)
        return plan, rewrite_bucket(write, split, live_bucket(plan, split), changes, highest)

    put(dict.fromkeys(range(6), "old"))
    put({2: "new", 3: "gone"})
    put({3: "gone"}, "-D")
    assert any(i.deletion_vector_ranges for i in read_index_entries(table, table.latest_snapshot()))
    put({4: "waits", 9: "waits"}, options={"write-only": "true"})
    assert seen() == {0: "old", 1: "old", 2: "new", 4: "old", 5: "old"}
    plan, message = rewritten({1: "corrected"})
    commit_buckets(table, [message], vectors=plan.index_entries)
    expected = {0: "old", 1: "corrected", 2: "new", 4: "waits", 5: "old", 9: "waits"}
    assert seen() == expected
    assert not any(i.deletion_vector_ranges for i in read_index_entries(table, table.latest_snapshot()))
    put({0: "x", 5: "x"}, "-D")
    put({1: "java"})
    expected = {1: "java", 2: "new", 4: "waits", 9: "waits"}
    assert seen() == expected
    plan, message = rewritten({2: "lost"})
    put({4: "x"}, "-D")
    with pytest.raises(ConflictError):
        commit_buckets(table, [message], vectors=plan.index_entries)
    java_oracle.do("compact", tmp_path, "d.t", full=True)
    assert seen() == {1: "java", 2: "new", 9: "waits"}


def test_vectors_that_another_commit_changed_are_a_conflict(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """The data files are the same, so only the name of the index file says that rows were deleted."""
    options = {"bucket": "1", "deletion-vectors.enabled": "true"}
    java_oracle.create_table(tmp_path, "d.t", KV, primary_keys=["k"], options=options)
    table = open_table(str(tmp_path), "d.t")
    java_oracle.write(tmp_path, "d.t", [{"k": k, "v": "old"} for k in range(3)])
    java_oracle.write(tmp_path, "d.t", [{"k": 1, "v": "new"}])
    (split,) = plan_scan(table).splits
    head = table.latest_snapshot()
    message = CommitMessage(partition=split.partition, bucket=0, total_buckets=1, new_files=(), replaced=split.files)
    with pytest.raises(ConflictError, match="deleted rows of a bucket"):
        commit_buckets(table, [message], vectors=())
    with pytest.raises(ConflictError, match="deleted rows of a bucket"):
        commit_compaction(table, [message], read=replace(plan_scan(table), index_entries=()))
    assert table.latest_snapshot() == head


@pytest.mark.parametrize(("producer", "changelog"), every(3, product(["input", "lookup"], ["auto", "none"])))
def test_a_published_correction_of_a_table_with_a_changelog(
    java_oracle: JavaOracle, tmp_path: Path, producer: str, changelog: str
) -> None:
    """Java reads it, its stream gets the change, and goes on with what comes later; without a changelog it is left
    out, as Java's own overwrites."""
    java, reader = java_oracle, f"{tmp_path}"
    options = {"bucket": "1", "changelog-producer": producer}
    java.create_table(tmp_path, "d.t", KV, primary_keys=["k"], options=options)
    main = open_table(str(tmp_path), "d.t")
    java.write(tmp_path, "d.t", [{"k": k, "v": "old"} for k in range(3)])
    java.open_stream_reader(tmp_path, "d.t", reader)
    assert java.stream_read(reader)[0].num_rows == 3
    operate(main, "create_branch", branch="fix", snapshot=main.latest_snapshot_id())
    fix = main.branch("fix")
    write, plan = plan_write(fix, by_buckets=True), plan_scan(fix)
    batch = conform_rows(rows_of(KV, [{"k": 1, "v": "corrected"}]), write.schema, fix.label)
    (split,) = plan.splits
    changes = sorted_changes(batch, write.schema)
    commit_buckets(fix, [rewrite_bucket(write, split, live_bucket(plan, split), changes, 2)], vectors=())
    details = operate(main, "merge_branch", branch="fix", changelog=changelog).details
    assert ("streaming readers" in " ".join(details.get("warnings", ()))) == (changelog == "none")
    assert_same_rows(java.read(tmp_path, "d.t"), read_arrow(main))
    assert java.stream_read(reader)[0].num_rows == (2 if changelog == "auto" else 0)
    java.write(tmp_path, "d.t", [{"k": 1, "v": "later"}])
    java.do("compact", tmp_path, "d.t", full=True)
    told = []
    while (found := java.stream_read(reader)[0]).num_rows:
        told += [(r["_row_kind"], r["k"], r["v"]) for r in found.to_pylist()]
    before = [("-U", 1, "corrected")] if producer == "lookup" else []
    assert told == [*before, ("+U" if producer == "lookup" else "+I", 1, "later")]
    assert {r["k"]: r["v"] for r in java.read(tmp_path, "d.t").to_pylist()} == {0: "old", 1: "later", 2: "old"}


ENGINES: dict[str, tuple[dict[str, str], dict[int, tuple[int | None, str | None]]]] = {
    "partial-update": ({}, {0: (10, "old"), 1: (7, "later"), 2: (10, "old")}),
    "aggregation": ({"fields.n.aggregate-function": "sum"}, {0: (10, "old"), 1: (107, "later"), 2: (10, "old")}),
    "first-row": ({}, {0: (10, "old"), 1: (100, None), 2: (10, "old")}),
}
"""What a correction of key 1 to (100, null) is, after a later row (7, later), beside two rows that stay."""


VECTORS, LOOKUP = {"deletion-vectors.enabled": "true"}, {"changelog-producer": "lookup"}


@pytest.mark.parametrize(
    ("engine", "more"),
    every(2, ((e, more) for e in ENGINES for more in ({}, VECTORS, LOOKUP) if (e, more) != ("first-row", VECTORS))),
    ids=str,
)
def test_a_corrected_row_is_what_later_ones_are_merged_with(
    java_oracle: JavaOracle, tmp_path: Path, engine: str, more: dict[str, str]
) -> None:
    """The bucket holds merged rows, as after a full compaction; the corrected one replaces its merged row."""
    columns = {"k": "INT NOT NULL", "n": "INT", "v": "STRING"}
    options, expected = {"bucket": "1", "merge-engine": engine, **ENGINES[engine][0], **more}, ENGINES[engine][1]
    java_oracle.create_table(tmp_path, "d.t", columns, primary_keys=["k"], options=options)
    main = open_table(str(tmp_path), "d.t")

    def put(*rows: tuple[int, int | None, str | None]) -> None:
        java_oracle.write(tmp_path, "d.t", [dict(zip(columns, r, strict=True)) for r in rows])

    put((0, 10, None), (1, 10, "x"), (2, 10, "old"))
    if engine != "first-row":
        put((0, 0 if engine == "aggregation" else None, "old"))
        java_oracle.do("compact", tmp_path, "d.t", full=True)
    else:
        expected = {**expected, 0: (10, None)}
    operate(main, "create_branch", branch="fix", snapshot=main.latest_snapshot_id())
    fix = main.branch("fix")
    write, plan = plan_write(fix, by_buckets=True), plan_scan(fix)
    batch = conform_rows(rows_of(columns, [{"k": 1, "n": 100}]), write.schema, fix.label)
    (split,) = plan.splits
    changes = sorted_changes(batch, write.schema)
    highest = max(f.max_sequence_number for f in split.files)
    message = rewrite_bucket(write, split, live_bucket(plan, split), changes, highest)
    commit_buckets(fix, [message], vectors=plan.index_entries)

    def seen(table: Table) -> dict[int, tuple[int | None, str | None]]:
        assert_same_rows(java_oracle.read(tmp_path, "d.t"), read_arrow(main))
        return {r["k"]: (r["n"], r["v"]) for r in read_arrow(table).to_pylist()}

    assert seen(fix)[1] == (100, None)
    operate(main, "merge_branch", branch="fix")
    assert seen(main) == {**expected, 1: (100, None)}
    put((1, 7, "later"))
    java_oracle.do("compact", tmp_path, "d.t", full=True)
    assert seen(main) == expected
