"""compact of primary-key tables: the same rows, in one sorted run on the top level of each bucket."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import ManifestListRef, read_manifest_lists
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import compact_keyed, read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from airflow_paimon.data.compaction_tasks import CompactionTask, TaskOutput, run_here
from airflow_paimon.data.read import read_versions
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.rewrite import live_bucket
from tests.core.tables import alter_table
from tests.data.chain.tables import set_options
from tests.data.tables import make_table, rows_of
from tests.data.test_compact import run
from tests.randomness import chance, lives, moments
from tests.stores import Crash, FaultStore

COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "s": "INT", "v": "STRING"}
TOP = 5


def keyed(folder: Path, **options: str) -> Table:
    columns = {"bucket": "2", "write_only": "true", **options}
    return make_table(folder, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], **columns)


def upsert(table: Table, *rows: tuple[Any, ...], kind: str = "+I") -> None:
    """Rows as ``("a", 1, "v")`` or ``("a", 1, sequence, "v")``."""
    whole = [r if len(r) == 4 else (*r[:2], None, r[2]) for r in rows]
    data = rows_of(COLUMNS, [dict(zip(COLUMNS, r, strict=True)) for r in whole])
    write_arrow(table, data.append_column("_row_kind", pa.array([kind] * len(rows))))


def rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


def stored(table: Table) -> list[tuple[Any, ...]]:
    """The newest version of each key with its sequence number."""
    plan = plan_scan(table)
    batches = [b for split in plan.splits for b in read_versions(*live_bucket(plan, split))]
    live = [r for b in batches for r in b.to_pylist() if r["_VALUE_KIND"] in (0, 2)]
    return sorted((*(r[n] for n in ("p", "k", "v")), r["_SEQUENCE_NUMBER"]) for r in live)


def files(table: Table) -> list[DataFile]:
    return [f for s in plan_scan(table).splits for f in s.files]


def assert_merged(table: Table) -> None:
    """Each bucket is one sorted run on the top level without deletes, and needs no merge."""
    schema, plan = table.schema(), plan_scan(table)
    types = [f.type for f in schema.key_fields]
    for split in plan.splits:
        ranges = sorted((decode_row(f.min_key, types), decode_row(f.max_key, types)) for f in split.files)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
        assert {(f.level, f.delete_row_count) for f in split.files} == {(TOP, 0)}
    assert all(s.is_raw for s in plan_read(plan)[1])


def test_a_bucket_becomes_one_run_with_the_newest_versions(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    upsert(table, *(("a", k, f"old{k}") for k in range(20)), ("b", 1, "x"))
    upsert(table, ("a", 3, "new"), ("a", 30, "later"))
    upsert(table, ("a", 4, "gone"), ("b", 7, "never there"), kind="-D")
    before, versions, head = rows(table), stored(table), table.latest_snapshot()
    assert head is not None
    result = run(table)
    assert rows(table) == before
    assert stored(table) == versions  # the sequence numbers of the winners
    assert_merged(table)
    committed = table.latest_snapshot()
    assert committed is not None
    assert result.details["snapshots"] == list(
        range(head.id + 1, committed.id + 1)
    )  # in this process one for each bucket
    assert (committed.commit_kind, committed.operation) == (CommitKind.COMPACT, None)
    assert committed.total_record_count == len(before) == result.details["rows"]
    assert result.details["deleted_rows"] == 25 - len(before)
    assert result.details["partition_names"] == ["p=a", "p=b"]
    assert {f.file_source for f in files(table)} == {1}
    assert not run(table).changed
    upsert(table, ("a", 3, "newer"))
    assert ("a", 3, None, "newer") in rows(table)


def test_a_bucket_of_which_nothing_is_left(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    upsert(table, ("a", 1, "x"))
    upsert(table, ("a", 1, "x"), kind="-D")
    assert run(table).details["files_after"] == 0
    assert (rows(table), files(table)) == ([], [])
    upsert(table, ("a", 1, "back"))
    assert rows(table) == [("a", 1, None, "back")]


def test_only_buckets_with_more_runs_and_only_the_chosen_partitions(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    for i in range(4):
        upsert(table, ("a", 1, f"{i}"), ("b", 1, f"{i}"))
    upsert(table, ("a", 1, "last"))
    before = rows(table)
    head = table.latest_snapshot_id()
    planned = run(table, max_sorted_runs=4, dry_run=True)
    assert (planned.details["partition_names"], planned.details["files_before"]) == (["p=a"], 5)
    assert table.latest_snapshot_id() == head
    assert run(table, max_sorted_runs=4).details["partition_names"] == ["p=a"]
    assert not run(table, max_sorted_runs=4).changed
    assert not run(table, partitions=["p=a"]).changed
    assert run(table, partitions=["p=b"]).details["files_before"] == 4
    assert rows(table) == before


def test_large_files_whose_keys_no_other_has_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_keyed, "TASK_BYTES", 1 << 16)  # rows are cut into files after groups of rows
    table = keyed(tmp_path, bucket="1", target_file_size="2 kb")
    upsert(table, *(("a", k, f"{k * 7919 % 10007}" * 9) for k in range(3000)))
    run(table)
    assert_merged(table)
    first = {f.file_name for f in files(table)}
    assert len(first) > 3
    upsert(table, ("a", 0, "changed"), ("a", 1, "changed"))
    result = run(table)
    assert_merged(table)
    left = first & {f.file_name for f in files(table)}
    assert left and result.details["files_before"] == len(first - left) + 1
    assert rows(table)[:2] == [("a", 0, None, "changed"), ("a", 1, None, "changed")]
    assert len(rows(table)) == 3000


@pytest.mark.random
@pytest.mark.parametrize("case", range(lives(2, 6)))
def test_random_lives(tmp_path: Path, case: int) -> None:
    """Upserts, deletes and compactions in any order, sometimes with commits during a compaction."""
    random = chance(f"compact-keyed-{case}")
    options: list[dict[str, str]] = [{}, {"sequence.field": "s"}, {"ignore_delete": "true"}]
    small = {"target_file_size": random.choice(["1 kb", "128 mb"])}
    table = keyed(tmp_path, bucket=random.choice("13"), **small, **options[case % 3])
    model: dict[tuple[str, int], tuple[Any, ...]] = {}

    def write() -> None:
        kind = random.choice(["+I", "+I", "-D"])
        chosen = random.sample(range(60), random.randint(1, 25))
        given = [(random.choice("ab"), k, random.choice([None, *range(9)]), f"v{random.random()}") for k in chosen]
        upsert(table, *given, kind=kind)
        if case % 3 == 0:
            for row in given:
                model.pop(row[:2], None)
                if kind == "+I":
                    model[row[:2]] = row

    def beside(works: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
        yield from run_here(works)
        if random.random() < 0.3:
            write()

    for _ in range(25):
        if random.random() < 0.7:
            write()
            continue
        if case % 3:
            before = rows(table)
            assert run(table, max_sorted_runs=random.choice([None, 1, 3])).details and rows(table) == before
        else:
            run(table, beside, max_sorted_runs=random.choice([None, 1, 3]))
            assert rows(table) == sorted(model.values())
    run(table)
    assert_merged(table)


def test_rows_that_are_written_meanwhile_stay_above(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    upsert(table, ("a", 1, "x"), ("a", 2, "x"))
    upsert(table, ("a", 1, "y"))

    def beside(works: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
        yield from run_here(works)
        if len(files(table)) == 2:
            upsert(table, ("a", 1, "meanwhile"), ("a", 3, "meanwhile"))
            upsert(table, ("a", 2, "x"), kind="-D")

    result = run(table, beside)
    assert rows(table) == [("a", 1, None, "meanwhile"), ("a", 3, None, "meanwhile")]
    assert len(result.details["snapshots"]) == 1
    assert sorted(f.level for f in files(table)) == [0, 0, TOP]
    run(table)
    assert_merged(table)
    assert rows(table) == [("a", 1, None, "meanwhile"), ("a", 3, None, "meanwhile")]


def test_a_bucket_that_another_commit_rewrote_is_planned_again(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    for i in range(3):
        upsert(table, ("a", 1, f"{i}"), ("b", 1, f"{i}"))
    raced = []

    def beside(works: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
        yield from run_here(works)
        if not raced:
            raced.append(write_arrow(table, rows_of(COLUMNS, [{"p": "a", "k": 9}]), "overwrite", {"p": "a"}))

    result = run(table, beside)
    assert rows(table) == [("a", 9, None, None), ("b", 1, None, "2")]
    assert result.details["partition_names"] == ["p=b"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 6 + 1 + 1  # the files of the try that lost are deleted


def test_a_compaction_that_never_gets_its_files_is_a_conflict(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")

    def refill() -> None:
        write_arrow(table, rows_of(COLUMNS, [{"p": "a", "k": 9}]), "overwrite", {"p": "a"})
        upsert(table, ("a", 9, "x"))

    def beside(works: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
        yield from run_here(works)
        refill()

    refill()
    with pytest.raises(ConflictError, match="in each of 5 attempts"):
        run(table, beside)
    assert rows(table) == [("a", 9, None, "x")]


def changes(table: Table, snapshot: int) -> list[str]:
    """The changelog of a snapshot, file by file."""
    found = table.snapshot(snapshot)
    if found.changelog_manifest_list is None:
        return []
    (manifests,) = read_manifest_lists(table, [ManifestListRef(found.changelog_manifest_list, None, "changelog")])
    out = []
    for entry in (e for part in read_entries(table, manifests) for e in part):
        assert (entry.file.file_name.startswith("changelog-"), entry.file.level, entry.file.file_source) == (
            True,
            TOP,
            0,
        )
        values = StoredPartitions(table.schema()).values(entry.partition)
        path = data_file_path(table.schema(), values, entry.bucket, entry.file)
        rows = pq.read_table(Path(table.store.uri.removeprefix("file://")) / path).to_pylist()
        assert entry.file.delete_row_count == sum(r["_VALUE_KIND"] in (1, 3) for r in rows)
        assert [r["_KEY_k"] for r in rows] == sorted(r["_KEY_k"] for r in rows)
        out += [("+I", "-U", "+U", "-D")[r["_VALUE_KIND"]] + f" {r['p']}{r['k']} {r['v']}" for r in rows]
    assert len(out) == found.changelog_record_count
    return out


def told(table: Table, result: OperationResult) -> list[str]:
    return [line for number in result.details["snapshots"] for line in changes(table, number)]


@pytest.mark.parametrize("producer", ["lookup", "full-compaction", "none"])
def test_changes_for_streaming_readers(tmp_path: Path, producer: str) -> None:
    """As Paimon's own compaction writes them: rows of files that no compaction has seen, against those before."""
    table = keyed(tmp_path, bucket="1", changelog_producer=producer)
    upsert(table, *(("a", k, f"v{k}") for k in range(4)))
    first = told(table, run(table))
    assert first == ([] if producer == "none" else [f"+I a{k} v{k}" for k in range(4)])
    upsert(table, ("a", 1, "new"), ("a", 2, "v2"), ("a", 7, "more"))
    upsert(table, ("a", 0, "gone"), ("a", 8, "never there"), kind="-D")
    second = told(table, run(table))
    assert second == ([] if producer == "none" else [
        "-D a0 v0", "-U a1 v1", "+U a1 new", "-U a2 v2", "+U a2 v2", "+I a7 more",
    ])  # fmt: skip
    assert not run(table).changed


def test_updates_that_change_nothing_are_left_out_if_asked_for(tmp_path: Path) -> None:
    options = {"changelog_producer": "lookup", "changelog_producer.row_deduplicate": "true"}
    table = keyed(tmp_path, bucket="1", **options)
    upsert(table, ("a", 1, "x"), ("a", 2, "x"), ("a", 3, "x"))
    run(table)
    upsert(table, ("a", 1, "x"), ("a", 2, "y"))
    assert told(table, run(table)) == ["-U a2 x", "+U a2 y"]


@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
def test_kinds_and_columns_that_readers_are_not_told(tmp_path: Path, producer: str) -> None:
    """Options of Paimon 2.1, and columns whose changes alone are no update."""
    options = {"changelog_producer": producer, "changelog_producer.row_deduplicate": "true",
               "changelog_producer.row_deduplicate_ignore_fields": "v"}  # fmt: skip
    table = keyed(tmp_path / "columns", bucket="1", **options)
    upsert(table, ("a", 1, "x"))
    run(table)
    upsert(table, ("a", 1, "y"), ("a", 2, "y"))
    assert told(table, run(table)) == ["+I a2 y"]
    for option, left in (("update_before", ["-D a1 x", "+U a2 y"]), ("delete", ["-U a2 x", "+U a2 y"])):
        untold = {f"changelog_producer.ignore_{option}": "true"}
        table = keyed(tmp_path / option, bucket="1", changelog_producer=producer, **untold)
        upsert(table, ("a", 1, "x"), ("a", 2, "x"), ("a", 3, "x"))
        run(table)
        upsert(table, ("a", 2, "y"))
        upsert(table, ("a", 1, "gone"), kind="-D")
        assert told(table, run(table)) == left
        upsert(table, ("a", 3, "gone"), kind="-D")
        assert told(table, run(table)) == (["-D a3 x"] if option == "update_before" else [])


def test_files_between_the_levels_are_told_by_the_producer(tmp_path: Path) -> None:
    """A compaction of Paimon's has merged level 0 into level 3: lookup has told that, full-compaction has not."""
    late = ["-U a2 x", "+U a2 y"]
    for producer, expected in (("lookup", late), ("full-compaction", ["-U a1 x", "+U a1 y", *late])):
        table = make_table(tmp_path / producer, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], bucket="1",
                           changelog_producer=producer, write_only="true")  # fmt: skip
        upsert(table, ("a", 1, "x"), ("a", 2, "x"))
        run(table)
        upsert(table, ("a", 1, "y"))
        replace_level(table, 3)
        upsert(table, ("a", 2, "y"))
        assert told(table, run(table)) == expected


EXPIRING = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "t": "BIGINT", "at": "TIMESTAMP(3)", "i": "INT"}


@pytest.mark.parametrize("column", ["t", "at", "i"])
def test_expired_records_go_before_the_merge(tmp_path: Path, column: str) -> None:
    """As in Paimon: an expired version doesn't hide an older one that has not expired; null never expires."""
    options = {"bucket": "1", "record-level.expire-time": "1 h", "record-level.time-field": column}
    table = make_table(tmp_path, EXPIRING, primary_keys=["p", "k"], partition_keys=["p"], **options)
    now = int(time.time())

    def put(k: int, seconds: int | None, *, millis: bool = False) -> None:
        row = {"p": "a", "k": k, "i": seconds, "t": seconds and seconds * (1000 if millis else 1)}
        data = rows_of({n: t for n, t in EXPIRING.items() if n != "at"}, [row])
        at = pa.array([seconds and seconds * 1000], pa.int64()).cast(pa.timestamp("ms"))
        write_arrow(table, data.add_column(3, "at", at))

    put(1, now - 3500)
    put(2, now - 3700)
    put(3, None)
    put(4, now - 60, millis=True)
    put(4, now - 7200, millis=True)
    put(5, now + 9000)
    assert len(rows(table)) == 5
    result = run(table)
    assert [(r[1], r[4]) for r in rows(table)] == [(1, now - 3500), (3, None), (4, now - 60), (5, now + 9000)]
    assert (result.details["expired_rows"], result.details["deleted_rows"]) == (2, 2)
    assert not run(table).changed


def test_a_merged_file_with_expired_records_is_written_again(tmp_path: Path) -> None:
    options = {"bucket": "1", "record-level.expire-time": "1 s", "record-level.time-field": "s"}
    table = keyed(tmp_path, **options)
    now = int(time.time())
    upsert(table, ("a", 1, now + 3600, "fresh"), ("a", 2, 5, "old"))
    alter_table(table, [AddColumn(name="n", type="INT")])
    old = replace_level(table)
    assert run(table).details["expired_rows"] == 1
    assert [r[1] for r in rows(table)] == [1]
    assert not {f.file_name for f in files(table)} & {f.file_name for f in old}


def replace_level(table: Table, level: int = TOP) -> list[DataFile]:
    """Move the files of level 0 to another one, as Paimon does with files that need no merge."""
    (split,) = plan_scan(table).splits
    moved = tuple(f._replace(level=f.level or level) for f in split.files)
    message = CommitMessage(
        partition=split.partition,
        bucket=split.bucket,
        total_buckets=split.total_buckets,
        new_files=moved,
        replaced=split.files,
    )
    commit_buckets(table, [message], kind=CommitKind.COMPACT)
    return list(moved)


def test_options_of_expiry_that_name_no_time_are_refused(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")  # neither can be set through us: Paimon doesn't open such a table
    set_options(table, {"record-level.expire-time": "1 s", "record-level.time-field": "x"})
    with pytest.raises(InvalidInputError, match=r"record-level\.time-field.*'x'"):
        run(table)
    text = make_table(tmp_path, COLUMNS, name="d.text", primary_keys=["k"], bucket="1")
    set_options(text, {"record-level.expire-time": "1 s", "record-level.time-field": "v"})
    with pytest.raises(UnsupportedFeatureError, match="time-field=v is STRING"):
        run(text)


@pytest.mark.parametrize("option", [
    {"pk_clustering_override": "true", "clustering__columns": "v", "deletion_vectors__enabled": "true"},
    {"sequence__snapshot_ordering": "true", "write_only": "true"}, {"data_file__external_paths": "file:///elsewhere"},
], ids=str)  # fmt: skip
def test_tables_that_would_be_merged_otherwise_are_refused(tmp_path: Path, option: dict[str, str]) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1", **option)
    with pytest.raises(UnsupportedFeatureError, match=f"{next(iter(option.values()))}"):
        run(table)
    assert table.latest_snapshot_id() is None


def test_files_with_fewer_rows_than_their_manifest_says_are_not_replaced(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    upsert(table, ("a", 1, "x"))
    upsert(table, ("a", 2, "x"))
    (split,) = plan_scan(table).splits
    wrong = replace_rows(table)
    head = table.latest_snapshot_id()
    with pytest.raises(FormatError, match=f"{wrong} among them, have 2 rows instead of the 3 in their manifest"):
        run(table)
    assert table.latest_snapshot_id() == head
    assert len(list(tmp_path.rglob("*.parquet"))) == len(split.files)


def replace_rows(table: Table) -> str:
    (split,) = plan_scan(table).splits
    new = tuple(f._replace(row_count=f.row_count + (at == 0)) for at, f in enumerate(split.files))
    message = CommitMessage(partition=split.partition, bucket=0, total_buckets=1, new_files=new, replaced=split.files)
    commit_buckets(table, [message])
    return new[0].file_name


def perform(table: Table, store: Any, **values: Any) -> Any:
    request = build_request("compact", {"warehouse": "w", "table": table.name, "operation_id": "op", **values})
    assert isinstance(request, Compact)
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    opened = open_context(build_request("compact", {"warehouse": warehouse, "table": table.name}))
    return compact(replace(opened, request=request, table=replace(table, store=store)), request)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Crash(), OSError(errno.EIO, "broken")], ids=["killed", "fails"])
def test_killed_or_failing_between_any_two_store_calls(tmp_path: Path, error: BaseException, after: bool) -> None:
    """Whatever is left, the rows are the same; the same operation again finishes it, no live file is missing, and
    readers of the changelog get each change once.
    """
    made = keyed(tmp_path / "made", bucket="1", changelog_producer="lookup")
    for i in range(2):
        upsert(made, ("a", 1, f"{i}"), ("b", 1, f"{i}"))
    for step in moments(100):
        folder = tmp_path / str(step)
        shutil.copytree(tmp_path / "made", folder)
        table = open_table(str(folder), made.name)
        before = rows(table)
        store = FaultStore(table.store, step, error=error, after=after)
        try:
            perform(table, store)
        except (Crash, PaimonError):
            assert rows(table) == before
            perform(table, table.store)
        assert rows(table) == before
        assert_merged(table)
        on_disk = {path.name for path in folder.rglob("*.parquet")}
        assert {e.file.file_name for e in live_entries(table, table.latest_snapshot()).values()} <= on_disk
        assert sorted(line for n in table.snapshot_ids() for line in changes(table, n)) == ["+I a1 1", "+I b1 1"]
        if len(store.mutations) < step:
            break
    assert step > 8
