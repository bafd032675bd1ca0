"""What is written is read back, through files as Paimon lays them out, in every mode and for every type."""

from __future__ import annotations

import datetime as dt
import pickle
import resource
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.partition_values import encode_partition
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import arrow_write, read_arrow, write_arrow
from airflow_paimon.data import write as data_write
from airflow_paimon.data.dynamic_buckets import Assigners
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.write import (
    BucketWriter,
    RowsWriter,
    distribute,
    partitions_of_rows,
    plan_write,
    write_rows,
)
from tests.core.tables import alter_table
from tests.data.tables import ALL_TYPES, FINE_TYPES, any_row, make_table, rows_of
from tests.oracles.canonical import assert_same_rows
from tests.randomness import chance

KV = {"k": "INT NOT NULL", "v": "STRING"}
PARTS = {"dt": "STRING", **KV}


def files_of(table: Table) -> list[DataFile]:
    return [f for split in plan_scan(table).splits for f in split.files]


def simple(table: Table, **more: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_arrow(table, **more).to_pylist())


LAYOUTS: dict[str, dict[str, Any]] = {
    "append": {},
    "append-fixed-bucket": {"bucket": "3", "bucket_key": "k"},
    "append-orc-table": {"file__format": "orc"},
    "primary-key": {"primary_keys": ["k"], "bucket": "3"},
    "primary-key-gzip": {"primary_keys": ["k"], "bucket": "1", "file__compression": "gzip"},
}


@pytest.mark.parametrize("columns", [ALL_TYPES, FINE_TYPES], ids=["all-types", "nanoseconds"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_type_comes_back(tmp_path: Path, layout: str, columns: Mapping[str, Any]) -> None:
    table = make_table(tmp_path, columns, **LAYOUTS[layout])
    moments = {"t9": dt.datetime(2024, 1, 1, 1, 1, 1, 123456), "l9": dt.datetime(1950, 1, 1, 1, 1, 1, 7, dt.UTC)}
    more = {name: value for name, value in moments.items() if name in columns}
    rows = rows_of(columns, [{**any_row(i), **more} for i in range(60)])
    write_arrow(table, rows)
    assert_same_rows(read_arrow(table), rows)
    assert read_arrow(table).schema.equals(rows.schema)


def test_an_upsert_replaces_and_deletes_by_key(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="2")
    write_arrow(table, rows_of(KV, [{"k": k, "v": f"old{k}"} for k in range(10)]))
    change = rows_of(KV, [{"k": 2, "v": "new2"}, {"k": 3}, {"k": 4, "v": "-U"}, {"k": 4, "v": "new4"}, {"k": 99}])
    change = change.append_column("_row_kind", pa.array(["+I", "-D", "-U", "+U", "-D"]))
    result = write_arrow(table, change)
    assert (result["changed"], result["snapshot_before"], result["snapshot_after"]) == (True, 1, 2)
    expected = {k: f"old{k}" for k in range(10)} | {2: "new2", 4: "new4"}
    expected.pop(3)
    assert simple(table) == sorted(expected.items())
    assert sum(f.delete_row_count or 0 for f in files_of(table)) == 2
    assert simple(table, version=1) == [(k, f"old{k}") for k in range(10)]


def test_the_last_of_several_versions_in_one_write_wins(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="1")
    write_arrow(table, rows_of(KV, [{"k": k % 3, "v": f"{k}"} for k in range(11)]))
    assert simple(table) == [(0, "9"), (1, "10"), (2, "8")]
    (file,) = files_of(table)
    assert (file.row_count, file.min_sequence_number, file.max_sequence_number, file.level) == (3, 8, 10, 0)


SEQUENCED = {"k": "INT NOT NULL", "a": "INT", "b": "INT", "v": "STRING"}


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_sequence_fields_decide_over_arrival(tmp_path: Path, order: str) -> None:
    table = make_table(
        tmp_path, SEQUENCED, primary_keys=["k"], bucket="1", sequence__field="a,b", sequence__field__sort_order=order
    )
    versions = [(5, 1), (3, 9), (None, 9), (5, None), (5, 0)]
    for i, (a, b) in enumerate(versions):
        write_arrow(table, rows_of(SEQUENCED, [{"k": 1, "a": a, "b": b, "v": f"{i}"}, {"k": 2, "v": f"{i}"}]))
    together = make_table(
        tmp_path,
        SEQUENCED,
        name="d.u",
        primary_keys=["k"],
        bucket="1",
        sequence__field="a,b",
        sequence__field__sort_order=order,
    )
    write_arrow(
        together, rows_of(SEQUENCED, [{"k": 1, "a": a, "b": b, "v": f"{i}"} for i, (a, b) in enumerate(versions)])
    )
    winner = (1, 5, 1, "0") if order == "ascending" else (1, 3, 9, "1")
    assert simple(together) == [winner]
    assert simple(table)[0] == winner
    assert simple(table)[1] == (2, None, None, "4")  # ties in all fields: the later one


def test_a_delete_with_an_older_sequence_loses(tmp_path: Path) -> None:
    table = make_table(tmp_path, SEQUENCED, primary_keys=["k"], bucket="1", sequence__field="a")
    write_arrow(table, rows_of(SEQUENCED, [{"k": 1, "a": 5}, {"k": 2, "a": 5}]))
    late = rows_of(SEQUENCED, [{"k": 1, "a": 4}, {"k": 2, "a": 6}]).append_column("_row_kind", pa.array(["-D", "-D"]))
    write_arrow(table, late)
    assert [row[0] for row in simple(table)] == [1]


def test_ignore_delete_drops_retracts(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="1", ignore_delete="true")
    write_arrow(table, rows_of(KV, [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]))
    write_arrow(table, rows_of(KV, [{"k": 1}, {"k": 3}]).append_column("_row_kind", pa.array(["-D", "-U"])))
    assert simple(table) == [(1, "a"), (2, "b")]


def test_overwrite_of_everything_of_a_partition_and_dynamic(tmp_path: Path) -> None:
    table = make_table(tmp_path, PARTS, partition_keys=["dt"])
    start = [{"dt": d, "k": k, "v": "old"} for d in ("a", "b", None) for k in range(2)]
    write_arrow(table, rows_of(PARTS, start))
    write_arrow(table, rows_of(PARTS, [{"dt": "a", "k": 9, "v": "new"}]), mode="dynamic_overwrite")
    assert simple_parts(table) == {"a": {9}, "b": {0, 1}, None: {0, 1}}
    write_arrow(table, rows_of(PARTS, []), mode="overwrite", partition={"dt": None})
    assert simple_parts(table) == {"a": {9}, "b": {0, 1}}
    write_arrow(table, rows_of(PARTS, [{"dt": "b", "k": 7}]), mode="overwrite", partition={"dt": "b"})
    assert simple_parts(table) == {"a": {9}, "b": {7}}
    assert table.latest_snapshot().commit_kind is CommitKind.OVERWRITE  # type: ignore[union-attr]
    write_arrow(table, rows_of(PARTS, [{"dt": "c", "k": 1}]), mode="overwrite")
    assert simple_parts(table) == {"c": {1}}
    before = {str(p) for p in tmp_path.rglob("*.parquet")}
    with pytest.raises(InvalidInputError, match="dt=z"):
        write_arrow(table, rows_of(PARTS, [{"dt": "z", "k": 1}]), mode="overwrite", partition={"dt": "c"})
    assert {str(p) for p in tmp_path.rglob("*.parquet")} == before  # what it wrote is gone again


def simple_parts(table: Table) -> dict[Any, set[int]]:
    out: dict[Any, set[int]] = {}
    for row in read_arrow(table).to_pylist():
        out.setdefault(row["dt"], set()).add(row["k"])
    return out


def test_an_overwritten_primary_key_bucket_is_one_run_of_the_highest_level(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="1")
    write_arrow(table, rows_of(KV, [{"k": k} for k in range(5)]))
    rows = rows_of(KV, [{"k": 7, "v": "x"}, {"k": 8}, {"k": 8}])
    write_arrow(table, rows.append_column("_row_kind", pa.array(["+I", "+I", "-D"])), mode="overwrite")
    (file,) = files_of(table)
    assert (file.level, file.min_sequence_number, file.row_count, file.delete_row_count) == (5, 0, 1, 0)
    write_arrow(table, rows_of(KV, [{"k": 7, "v": "y"}]))
    assert simple(table) == [(7, "y")]


def test_null_empty_and_blank_partitions_share_a_folder_and_stay_apart(tmp_path: Path) -> None:
    table = make_table(tmp_path, PARTS, partition_keys=["dt"])
    rows = [{"dt": d, "k": i} for i, d in enumerate([None, "", " ", "a/b=%"])]
    write_arrow(table, rows_of(PARTS, rows))
    assert simple_parts(table) == {None: {0}, "": {1}, " ": {2}, "a/b=%": {3}}
    folders = {p.parent.parent.name for p in tmp_path.rglob("*.parquet")}
    assert folders == {"dt=__DEFAULT_PARTITION__", "dt=a%2Fb%3D%25"}
    write_arrow(table, rows_of(PARTS, []), mode="overwrite", partition={"dt": ""})
    assert simple_parts(table) == {None: {0}, " ": {2}, "a/b=%": {3}}


def test_files_are_described_as_paimon_describes_them(tmp_path: Path) -> None:
    columns = {"k": "INT NOT NULL", "j": "STRING NOT NULL", "s": "STRING", "f": "DOUBLE", "n": "INT"}
    table = make_table(tmp_path, columns, primary_keys=["k", "j"], bucket="1")
    rows = [{"k": i, "j": "x" * 30, "s": "y" * 20 + str(i), "f": float("nan") if i else 1.0} for i in range(3)]
    write_arrow(table, rows_of(columns, rows))
    (file,) = files_of(table)
    types = [f.type for f in table.schema().fields]
    assert decode_row(file.min_key, types[:2]) == (0, "x" * 30)
    assert decode_row(file.key_stats.max_values, types[:2]) == (2, "x" * 30)
    assert decode_row(file.value_stats.min_values, types) == (0, "x" * 16, "y" * 16, None, None)
    assert decode_row(file.value_stats.max_values, types) == (2, "x" * 15 + "y", "y" * 15 + "z", None, None)
    assert file.value_stats.null_counts == (0, 0, 0, 0, 3)
    assert (file.delete_row_count, file.file_source, file.value_stats_cols, file.schema_id) == (0, 0, None, 0)
    path = next(tmp_path.rglob("*.parquet"))
    assert path.stat().st_size == file.file_size
    now = dt.datetime.now().timestamp() * 1000
    assert file.creation_time_ms is not None and abs(file.creation_time_ms - now) < 24 * 3600 * 1000
    parquet = pq.ParquetFile(path)
    ids = [f.metadata[b"PARQUET:field_id"] for f in parquet.schema_arrow]
    assert ids == [b"1073741823", b"1073741824", b"2147483646", b"2147483645", b"0", b"1", b"2", b"3", b"4"]
    assert [f.name for f in parquet.schema_arrow if not f.nullable] == [
        *("_KEY_k", "_KEY_j", "_SEQUENCE_NUMBER", "_VALUE_KIND", "k", "j")
    ]
    assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"


def test_files_roll_at_the_target_size_and_stay_disjoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.data.files.write.ROW_GROUP_ROWS", 1000)
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="1", target_file_size="8 kb")
    rows = [{"k": k, "v": f"{k * 7919 % 10007:032d}"} for k in range(6000)]
    write_arrow(table, rows_of(KV, rows[::-1]))
    files = files_of(table)
    types = [table.schema().field("k").type]
    ranges = sorted((decode_row(f.min_key, types), decode_row(f.max_key, types)) for f in files)
    assert len(files) >= 3
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert len({f.file_name.rsplit("-", 1)[0] for f in files}) == 1
    assert sorted(simple(table)) == [(r["k"], r["v"]) for r in rows]


@pytest.mark.parametrize("buffer_bytes", [1, 3000], ids=["each-batch-on-disk", "some-in-memory"])
def test_a_bucket_larger_than_the_buffer_is_one_sorted_run(
    tmp_path: Path, buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_write, "SORT_BYTES", 500)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    table = make_table(tmp_path / "table", KV, primary_keys=["k"], bucket="2")
    write = replace(plan_write(table), buffer_bytes=buffer_bytes)
    batch = conform_rows(rows_of(KV, [{"k": k * 7 % 500, "v": f"{k}"} for k in range(4000)]), write.schema, table.label)
    writer = RowsWriter(write)
    for start in range(0, 4000, 40):  # more runs than are merged at once
        writer.add(batch.slice(start, 40))
    assert list((tmp_path / "temporary").rglob("*.arrow"))
    messages = writer.finish()
    assert not list((tmp_path / "temporary").iterdir())
    assert [len(m.new_files) for m in messages] == [1, 1]
    assert sum(m.new_files[0].row_count for m in messages) == 500
    commit_append(table, messages, planned_on=write.planned_on)
    assert simple(table) == sorted((k * 7 % 500, f"{k}") for k in range(3500, 4000))


def test_a_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path, PARTS, primary_keys=["dt", "k"], partition_keys=["dt"], bucket="1")
    write = replace(plan_write(table), buffer_bytes=10)
    good = conform_rows(rows_of(PARTS, [{"dt": "a", "k": 1, "v": "x"}]), write.schema, table.label)

    def batches() -> Any:
        yield good
        assert list(tmp_path.rglob("airflow-paimon-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        write_rows(write, batches())
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("airflow-paimon-*"))


def test_a_full_local_disk_is_named_and_nothing_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(
        arrow_write, "plan_write", lambda *given, **how: replace(plan_write(*given, **how), buffer_bytes=1)
    )
    table = make_table(tmp_path / "table", KV, primary_keys=["k"], bucket="1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
    try:
        with pytest.raises(StorageError, match=f"temporary folder {tempfile.gettempdir()}: .*TMPDIR"):
            write_arrow(table, rows_of(KV, [{"k": k, "v": "x" * 1000} for k in range(300)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("airflow-paimon-s*"))
    assert table.latest_snapshot() is None


def test_the_bucket_of_a_row_is_the_partitions_own(tmp_path: Path) -> None:
    """The option may say another number since: what counts is what the partition's files have."""
    table = make_table(tmp_path, PARTS, primary_keys=["dt", "k"], partition_keys=["dt"], bucket="2")
    write_arrow(table, rows_of(PARTS, [{"dt": "a", "k": k} for k in range(20)]))
    alter_table(table, [SetOption(key="bucket", value="5")])
    write_arrow(table, rows_of(PARTS, [{"dt": d, "k": k, "v": "n"} for d in ("a", "b") for k in range(20)]))
    totals = {s.values[0]: {p.total_buckets for p in plan_scan(table).splits if p.values == s.values}
              for s in plan_scan(table).splits}  # fmt: skip
    assert totals == {"a": {2}, "b": {5}}
    assert len(simple(table)) == 40
    assert {row[2] for row in simple(table)} == {"n"}


def test_distributing_puts_every_row_where_it_belongs(tmp_path: Path) -> None:
    columns = {"p": "DOUBLE", "q": "STRING", **KV}
    table = make_table(tmp_path, columns, primary_keys=["p", "q", "k"], partition_keys=["p", "q"], bucket="4")
    write = plan_write(table)
    values = [0.0, -0.0, float("nan"), 1.5]
    rows = [{"p": values[i % 4], "q": "xyz"[i % 3], "k": i, "v": str(i)} for i in range(200)]
    batch = conform_rows(rows_of(columns, rows), write.schema, table.label)
    parts = list(distribute(write, batch, Assigners(None)))
    assert sorted(v for p in parts for v in p.rows.column("k").to_pylist()) == list(range(200))
    for part in parts:
        for row in part.rows.to_pylist():
            assert [repr(row["p"]), row["q"]] == [repr(part.values[0]), part.values[1]]
    assert len({(p.partition, p.bucket) for p in parts}) == len(parts)
    assert len({p.partition for p in parts}) == 12
    for part in parts:
        writer = BucketWriter(write, part.partition, part.values, part.bucket)
        writer.add(part.batch, part.indices)
        message = writer.finish()
        assert sum(f.row_count for f in message.new_files) == part.rows.num_rows


@pytest.mark.parametrize("case", range(6))
def test_random_rows_are_distributed_as_one_by_one(tmp_path: Path, case: int) -> None:
    """Partition columns that are constant, null or vary, one bucket or more groups than 16 bits count."""
    random = chance(case)
    keys = ["p", "q", "r"][: random.randint(0, 3)]
    buckets = random.choice((1, 3, 3000))
    columns = {"p": "DOUBLE", "q": "STRING", "r": "INT", "k": "BIGINT"}
    table = make_table(tmp_path, columns, partition_keys=keys, bucket=str(buckets), bucket_key="k")
    write = plan_write(table)
    drawn = {
        "p": random.choice(([None], [0.5], [0.0, -0.0, None, 1.5])),
        "q": random.choice((["x"], [None, "x", "y"], [str(n) for n in range(30)])),
        "r": random.choice(([7], [1, 2, None])),
        "k": random.choice(([1], list(range(5000)))),
    }
    rows = [{**{name: random.choice(of) for name, of in drawn.items()}} for _ in range(300)]
    batch = conform_rows(rows_of(columns, rows), write.schema, table.label)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for part in distribute(write, batch, Assigners(None)):
        assert part.partition == encode_partition(part.values, [f.type for f in write.schema.partition_fields])
        assert (repr(part.values), part.bucket) not in found
        found[repr(part.values), part.bucket] = part.rows.drop_columns(["_VALUE_KIND"]).to_pylist()
    expected: dict[tuple[str, int], list[dict[str, Any]]] = {}
    bucket_of = bucket_of_rows([batch.column("k")], [write.schema.field("k").type], buckets)
    for row, bucket in zip(rows, bucket_of.tolist(), strict=True):
        expected.setdefault((repr(tuple(row[k] for k in keys)), bucket), []).append(row)
    assert repr(sorted(found.items())) == repr(sorted(expected.items()))


def test_an_operation_id_makes_a_retry_return_the_first_result(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV)
    rows = rows_of(KV, [{"k": 1, "v": "a"}])
    first = write_arrow(table, rows, operation_id="run-1")
    write_arrow(table, rows_of(KV, [{"k": 2, "v": "b"}]))
    again = write_arrow(table, rows, operation_id="run-1")
    assert (first["snapshot_after"], again["snapshot_after"], again["changed"]) == (1, 1, True)
    assert simple(table) == [(1, "a"), (2, "b")]
    with pytest.raises(InvalidInputError, match="another request"):
        write_arrow(table, rows, mode="overwrite", operation_id="run-1")


def test_a_refused_write_leaves_its_operation_id_free(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV)
    with pytest.raises(InvalidInputError):
        write_arrow(table, pa.table({"b": [1]}), operation_id="run-1")
    assert write_arrow(table, rows_of(KV, [{"k": 1, "v": "a"}]), operation_id="run-1")["changed"]


def test_nothing_to_write_changes_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV)
    result = write_arrow(table, rows_of(KV, []))
    assert (result["changed"], result["snapshot_after"]) == (False, None)
    assert table.latest_snapshot() is None
    assert read_arrow(table).num_rows == 0


def test_projection_filter_and_time_travel(tmp_path: Path) -> None:
    table = make_table(tmp_path, PARTS, primary_keys=["dt", "k"], partition_keys=["dt"], bucket="2")
    write_arrow(table, rows_of(PARTS, [{"dt": d, "k": k, "v": f"{d}{k}"} for d in "abc" for k in range(5)]))
    write_arrow(table, rows_of(PARTS, [{"dt": "a", "k": 0, "v": "new"}]))
    assert simple(table, columns=["v"], where=pc.field("dt") == "a", version=1) == [(f"a{k}",) for k in range(5)]
    assert simple(table, columns=["v", "dt"], where=(pc.field("k") == 0) & (pc.field("v") != "new")) == [
        ("b0", "b"),
        ("c0", "c"),
    ]
    assert simple(table, columns=["dt"], where=pc.field("v") == "new") == [("a",)]
    assert read_arrow(table, columns=["dt"]).num_rows == 15
    with pytest.raises(InvalidInputError, match="no column 'nope'"):
        read_arrow(table, columns=["nope"])
    with pytest.raises(InvalidInputError, match="where must be an Arrow expression"):
        read_arrow(table, where="dt = 'a'")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="where names column 'nope'"):
        read_arrow(table, where=pc.field("nope") == 1)
    with pytest.raises(InvalidInputError, match="gap_policy"):
        read_arrow(table, gap_policy="guess")
    with pytest.raises(NotFoundError):
        read_arrow(table, version=77)
    with pytest.raises(NotFoundError):
        read_arrow(open_table(str(tmp_path), "d.missing"))


def test_two_writers_of_one_bucket_conflict_instead_of_tying(tmp_path: Path) -> None:
    """The second one goes by a head that is gone: the commit says so, and write_arrow numbers its rows again."""
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="1")
    write = plan_write(table)
    batch = conform_rows(rows_of(KV, [{"k": 1, "v": "slow"}]), write.schema, table.label)
    messages = write_rows(write, [batch])
    write_arrow(table, rows_of(KV, [{"k": 1, "v": "fast"}]))
    with pytest.raises(ConflictError):
        commit_append(table, messages, planned_on=write.planned_on)
    write_arrow(table, rows_of(KV, [{"k": 1, "v": "again"}]))
    assert simple(table) == [(1, "again")]


def test_what_the_embedded_engine_does_not_write_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="-2")
    with pytest.raises(UnsupportedFeatureError, match=r"d\.t.*postponed buckets.*INSERT INTO of Paimon's own"):
        write_arrow(table, rows_of(KV, [{"k": 1}]))
    assert not list(tmp_path.rglob("*.parquet"))


def test_reads_and_writes_travel_to_other_processes(tmp_path: Path) -> None:
    table = make_table(tmp_path, PARTS, primary_keys=["dt", "k"], partition_keys=["dt"], bucket="2")
    rows = rows_of(PARTS, [{"dt": d, "k": k, "v": "x"} for d in "ab" for k in range(6)])
    write = pickle.loads(pickle.dumps(plan_write(table)))
    batch = conform_rows(rows, write.schema, table.label)
    messages = pickle.loads(pickle.dumps(write_rows(write, [batch])))
    commit_append(table, messages, planned_on=write.planned_on)
    read, splits = pickle.loads(pickle.dumps(plan_read(plan_scan(table), where=pc.field("k") < 3)))
    found = pa.Table.from_batches([b for s in splits for b in read_split(read, s)])
    assert_same_rows(found, rows.filter(pc.field("k") < 3))


@pytest.mark.parametrize("bucket", ["3", "-1"])
def test_a_write_of_few_rows_looks_at_the_files_of_their_partitions_only(tmp_path: Path, bucket: str) -> None:
    columns = {"p": "DOUBLE", "q": "STRING", **KV}
    table = make_table(tmp_path, columns, primary_keys=["p", "q", "k"], partition_keys=["p", "q"], bucket=bucket)
    values = [(p, q) for p in (0.5, -0.0, 0.0, 7.0) for q in ("a", "b")]
    rows = [{"p": p, "q": q, "k": k, "v": f"{p}"} for p, q in values for k in range(20)]
    for _ in range(2):
        write_arrow(table, rows_of(columns, rows))
    few = rows_of(columns, [{"p": p, "q": q, "k": 1, "v": "new"} for p, q in [(0.0, "a"), (9.0, "z"), (7.0, "b")]])
    partly = plan_write(table, partitions=partitions_of_rows(few, table.store, table.label))
    whole = plan_write(table)
    assert partly.only is not None
    assert len(partly.only) == 3
    of = {b: n for b, n in partly.next_sequence.items() if b.partition in partly.only}
    assert of == {b: n for b, n in whole.next_sequence.items() if b.partition in partly.only}
    assert len(of) == len([b for b in whole.next_sequence if b.partition in partly.only]) > 0
    known = {p: n for p, n in whole.total_buckets.items() if p in partly.only}
    assert {p: n for p, n in partly.total_buckets.items() if p in partly.only} == known
    with pytest.raises(AssertionError, match="not planned for"):
        write_rows(partly, [conform_rows(rows_of(columns, rows[:1]), table.schema(), table.label)])
    twice = pa.Table.from_arrays([few["q"], *few.columns], names=["q", *few.schema.names])
    with pytest.raises(InvalidInputError, match="two columns of the same name"):
        write_arrow(table, twice)
    write_arrow(table, few)
    assert [r[:3] for r in simple(table) if r[3] == "new"] == [(0.0, "a", 1), (7.0, "b", 1), (9.0, "z", 1)]


@pytest.mark.parametrize("days", [4_000_000, -800_000])
def test_dates_beyond_the_years_of_python_are_stored_but_not_in_keys_and_partitions(tmp_path: Path, days: int) -> None:
    """Paimon's DATE is a number of days; statistics and names of partitions here are Python's dates."""
    columns = {"k": "INT NOT NULL", "d": "DATE NOT NULL"}
    dates = pa.array([days, 10], pa.int32()).cast(pa.date32())
    data = pa.table({"k": pa.array([1, 2], pa.int32()), "d": dates})
    plain = make_table(tmp_path / "plain", columns)
    write_arrow(plain, data)
    assert read_arrow(plain).column("d").cast(pa.int32()).to_pylist() == [days, 10]
    assert read_arrow(plain, where=pc.field("d") == dates[0]).column("k").to_pylist() == [1]
    for name, keys in {"key": {"primary_keys": ["d"]}, "partition": {"partition_keys": ["d"]}}.items():
        table = make_table(tmp_path / name, columns, **keys)
        with pytest.raises(InvalidInputError, match=r"d.t.*column 'd' .* date beyond the years 1 to 9999"):
            write_arrow(table, data)
        assert table.latest_snapshot_id() is None
