"""Tables with one row of a key in all partitions: what upserts, overwrites and meeting writers leave of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_append, commit_overwrite
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import key_locations, read_arrow, write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.key_locations import KeyLocations, read_key_locations
from airflow_paimon.data.moving_keys import check_corrected, complete_messages
from airflow_paimon.data.task_messages import merged_messages
from airflow_paimon.data.write import WriteMode, plan_write, write_rows
from tests.core.tables import run
from tests.data.hash_indexes import SAME_HASH
from tests.data.tables import make_table, rows_of
from tests.randomness import chance, lives
from tests.stores import FaultStore

COLUMNS = {"k": "BIGINT NOT NULL", "v": "STRING", "p": "STRING NOT NULL"}


def make(folder: Path, **options: str) -> Table:
    given = {"bucket": "-1", "dynamic_bucket__target_row_num": "3", **options}
    return make_table(folder, COLUMNS, primary_keys=["k"], partition_keys=["p"], **given)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make(tmp_path)


def rows(text: str) -> pa.Table:
    """``"x1=a y2-"``: partition x, key 1, value a; a delete of key 2 that says partition y."""
    found: list[dict[str, Any]] = []
    for word in text.split():
        key, _, value = word.partition("=")
        found.append({"p": key[0], "k": int(key[1:].rstrip("-")), "v": value or None})
    kinds = ["-D" if "=" not in word else "+I" for word in text.split()]
    return rows_of(COLUMNS, found).append_column("_row_kind", pa.array(kinds, pa.string()))


def shown(table: Table) -> str:
    """All rows; every key is there once, in one bucket."""
    found = read_arrow(table).to_pylist()
    assert len({r["k"] for r in found}) == len(found), "a key was read twice"
    places = read_key_locations(table, table.schema(), table.latest_snapshot())
    assert len(places) == len(found) and not places.duplicates(1)
    return " ".join(f"{r['p']}{r['k']}={r['v']}" for r in sorted(found, key=lambda r: r["k"]))


def test_an_upsert_moves_a_key_to_another_partition(table: Table) -> None:
    write_arrow(table, rows("x1=a x2=a y3=a y4=a"))
    write_arrow(table, rows("y1=b y3=b z4=b z5=b"))
    assert shown(table) == "y1=b x2=a y3=b z4=b z5=b"
    write_arrow(table, rows("x1=c x3=c x4=c x5=c"))
    assert shown(table) == "x1=c x2=a x3=c x4=c x5=c"
    assert not [s for s in plan_scan(table).splits if s.total_buckets != -1]


def test_deletes_find_a_key_wherever_it_lives(table: Table) -> None:
    write_arrow(table, rows("x1=a x2=a y3=a"))
    write_arrow(table, rows("y1- x2- z9-"))
    assert shown(table) == "y3=a"
    write_arrow(table, rows("y3- z3=moved"))
    assert shown(table) == "z3=moved", "a delete beside the insert of the same key elsewhere is its move"
    write_arrow(table, rows("z3=b x3-"))
    assert shown(table) == "z3=b"


def test_the_rows_of_one_write_hold_a_key_in_one_partition(table: Table) -> None:
    write_arrow(table, rows("x1=a"))
    before = set(table.store.names("p=x/bucket-0"))
    with pytest.raises(InvalidInputError, match=r"the rows hold the key k=7 in p=x and p=y; .*one row of each key"):
        write_arrow(table, rows("x7=a y7=b"))
    with pytest.raises(InvalidInputError, match="key k=7"):
        write_arrow(table, rows("x7=a y7=b"), mode="overwrite")
    assert shown(table) == "x1=a" and set(table.store.names("p=x/bucket-0")) == before


def test_an_overwrite_takes_no_key_from_a_partition_that_stays(table: Table) -> None:
    write_arrow(table, rows("x1=a x2=a y3=a"))
    for mode, partition in (("overwrite", {"p": "x"}), ("dynamic_overwrite", None)):
        with pytest.raises(InvalidInputError, match=r"the key k=3 in p=x, and p=y, which stays, has it as well"):
            write_arrow(table, rows("x2=b x3=b"), mode=mode, partition=partition)
    assert shown(table) == "x1=a x2=a y3=a"
    write_arrow(table, rows("x2=b x4=b"), mode="overwrite", partition={"p": "x"})
    assert shown(table) == "x2=b y3=a x4=b"
    write_arrow(table, rows("x3=c y2=c"), mode="dynamic_overwrite")
    assert shown(table) == "y2=c x3=c"
    write_arrow(table, rows("z3=d x2=d"), mode="overwrite")
    assert shown(table) == "x2=d z3=d"


@pytest.mark.parametrize("meeting", ["append", "move", "overwrite"])
def test_a_commit_to_any_partition_plans_the_write_again(table: Table, meeting: str) -> None:
    """Key 7 gets its first row from both writers, in two partitions."""
    write_arrow(table, rows("x1=a y2=a"))

    def other(method: str, path: str) -> None:
        if method == "create" and path.startswith("snapshot/") and not done:
            done.append(path)
            if meeting == "append":
                write_arrow(table, rows("y7=other"))
            elif meeting == "move":
                write_arrow(table, rows("y1=other y7=other"))
            else:
                write_arrow(table, rows("y7=other y8=other"), mode="overwrite", partition={"p": "y"})

    done: list[str] = []
    write_arrow(Table(FaultStore(table.store, on_mutation=other), table.name), rows("x7=ours x1=ours"))
    assert done
    assert shown(table) == {"append": "x1=ours y2=a x7=ours", "move": "x1=ours y2=a x7=ours",
                            "overwrite": "x1=ours x7=ours y8=other"}[meeting]  # fmt: skip
    found = table.snapshots(list(range(1, (table.latest_snapshot_id() or 0) + 1)))
    named = {e.file.file_name for s in found for e in live_entries(table, s).values()}
    stored = {path.name for path in Path(table.store.uri.removeprefix("file://")).glob("p=*/bucket-*/*.parquet")}
    assert stored == named, "the first try's files, deletes of moved keys among them, are gone"


def test_a_plan_of_before_another_commit_is_refused(table: Table) -> None:
    write_arrow(table, rows("x1=a"))
    write = plan_write(table)
    messages = complete_messages(
        table, write, write_rows(write, [conform_rows(rows("x7=b"), write.schema, "t")]), WriteMode()
    )
    write_arrow(table, rows("y9=other"))
    with pytest.raises(ConflictError, match="partition p=y after the dynamic buckets"):
        commit_append(table, messages, planned_on=write.planned_on)


def test_tasks_that_get_rows_as_they_come(table: Table) -> None:
    """As the data source writes: no task sees the others' rows."""
    write_arrow(table, rows("x1=a x2=a y3=a"))
    write = plan_write(table, tasks_share_buckets=True)
    tasks = [rows("y1=b x2=b"), rows("z3=b x9=b"), rows("y1=c z8=c")]
    written = [write_rows(write, [conform_rows(t, write.schema, "t")]) for t in tasks]
    messages = complete_messages(table, write, merged_messages(write, written), WriteMode())
    commit_append(table, messages, planned_on=write.planned_on)
    assert shown(table) == "y1=c x2=b z3=b z8=c x9=b"


@pytest.mark.parametrize("engine", ["partial-update", "aggregation", "first-row"])
def test_a_row_that_would_be_merged_elsewhere_is_refused(tmp_path: Path, engine: str) -> None:
    table = make(tmp_path, merge_engine=engine)
    write_arrow(table, rows("x1=a"))
    write_arrow(table, rows("x1=b y2=b"))
    with pytest.raises(
        InvalidInputError, match=rf"k=1 in p=y, and it lives in p=x.*merge-engine={engine}; .*values of p=x"
    ):
        write_arrow(table, rows("y1=c"))
    assert shown(table) == ("x1=a y2=b" if engine == "first-row" else "x1=b y2=b")


def test_ignored_deletes_keep_a_key_where_it_is(tmp_path: Path) -> None:
    table = make(tmp_path, ignore_delete="true")
    write_arrow(table, rows("x1=a"))
    with pytest.raises(InvalidInputError, match="which it can't leave with ignore-delete"):
        write_arrow(table, rows("y1=c"))


@pytest.mark.parametrize("options", [{"deletion_vectors__enabled": "true"}, {"changelog_producer": "lookup"}])
def test_the_old_partition_is_compacted_as_well(tmp_path: Path, options: dict[str, str]) -> None:
    """Readers get the delete of a moved key from a compaction, like its new row."""
    table = make(tmp_path, **options)
    write_arrow(table, rows("x1=a x2=a"))
    write_arrow(table, rows("y1=b"))
    assert shown(table) == "y1=b x2=a"
    assert {f.level for s in plan_scan(table).splits for f in s.files} == {5}


def test_a_changelog_of_moves_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="connector"):
        write_arrow(make(tmp_path, changelog_producer="input"), rows("x1=a"))


def test_more_keys_than_fit_into_memory(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrow(table, rows("x1=a x2=a"))
    monkeypatch.setattr(key_locations, "MOST_KEYS", 1)
    with pytest.raises(UnsupportedFeatureError, match="2 rows are more than the 1"):
        write_arrow(table, rows("x3=a"))
    write_arrow(table, rows("x1=b x2=b"), mode="overwrite")  # which has to know no key


def test_a_key_in_two_partitions_is_found_and_can_be_taken_away(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine has written without a look at the other partitions."""
    write_arrow(table, rows("x1=a x2=a"))
    write = plan_write(table)
    files = write_rows(write, [conform_rows(rows("y1=b y3=b"), write.schema, "t")])
    commit_append(table, files, planned_on=write.planned_on)
    [finding] = run(table, "check_table").details["findings"]
    assert finding["id"] == "key-in-two-partitions:main" and "k=1 in p=x and p=y" in finding["message"]
    for p in "xyz":
        with pytest.raises(FormatError, match=r"the key k=1 is in p=x and in p=y: overwrite one"):
            write_arrow(table, rows(f"{p}1=c"))
    write_arrow(table, rows("y3=b"), mode="overwrite", partition={"p": "y"})
    assert run(table, "check_table").details["findings"] == []
    assert shown(table) == "x1=a x2=a y3=b"
    monkeypatch.setattr(key_locations, "MOST_KEYS", 1)
    assert [f["id"] for f in run(table, "check_table").details["findings"]] == ["keys-not-compared:main"]


def test_fixed_buckets_keep_a_key_in_each_partition(tmp_path: Path) -> None:
    """With a fixed number of buckets Paimon looks at one partition only."""
    table = make(tmp_path, bucket="2")
    write_arrow(table, rows("x1=a y1=a x2=a"))
    write_arrow(table, rows("x1=b z1=b x2-"))
    found = sorted((r["p"], r["k"], r["v"]) for r in read_arrow(table).to_pylist())
    assert found == [("x", 1, "b"), ("y", 1, "a"), ("z", 1, "b")]


def test_a_publish_and_its_undo_ask_for_stopped_writers(table: Table) -> None:
    """A writer that stays open remembers the partition of each key."""
    write_arrow(table, rows("x1=a y2=a"))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows("y1=b"))
    with pytest.raises(UnsafeOperationError, match=r"may have keys that were in other partitions.*--writers-stopped"):
        run(table, "merge_branch", branch="fix")
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    assert shown(table) == "y1=b y2=a"
    with pytest.raises(UnsafeOperationError, match=r"of snapshot 1 may have keys.*--writers-stopped"):
        run(table, "rollback_to", snapshot=1)
    run(table, "rollback_to", snapshot=1, writers_stopped=True)
    assert shown(table) == "x1=a y2=a"


def test_a_correction_in_place_is_published_beside_open_writers(table: Table) -> None:
    """Its commits say that the keys stay; one that doesn't, or a change of main, asks for stopped writers."""
    write_arrow(table, rows("x1=a x2=a y3=a"))
    write = plan_write(table, by_buckets=True)

    def corrected(text: str) -> bool:
        return check_corrected(table, write, write_rows(write, [conform_rows(rows(text), write.schema, "t")]))

    assert corrected("x1=b y3=b") and corrected("x2-")
    assert not corrected("x1=b x9=b")
    with pytest.raises(InvalidInputError, match="and p=x, which stays, has it as well"):
        corrected("y1=b")
    run(table, "create_branch", branch="fix", snapshot=1)
    run(table, "create_branch", branch="late", snapshot=1)
    commit_overwrite(table.branch("fix"), [], CommitOptions(properties=KEYS_STAY), partitions=[{"p": "x"}])
    commit_overwrite(table.branch("late"), [], CommitOptions(properties=KEYS_STAY), partitions=[{"p": "x"}])
    run(table, "merge_branch", branch="fix")
    assert shown(table) == "y3=a"
    write_arrow(table, rows("z2=b"))
    with pytest.raises(UnsafeOperationError, match=r"may have keys that were in other partitions"):
        run(table, "fast_forward", branch="late", discard_main=True)
    commit_overwrite(table.branch("fix"), [], partitions=[{"p": "y"}])
    with pytest.raises(ConflictError):
        run(table, "merge_branch", branch="fix")


def test_both_sides_of_a_publish_may_not_change_different_partitions(table: Table) -> None:
    write_arrow(table, rows("x1=a y2=a"))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows("y1=b"))
    write_arrow(table, rows("z1=main"))
    with pytest.raises(ConflictError, match="both changed"):
        run(table, "merge_branch", branch="fix", writers_stopped=True)


def test_keys_of_one_hash_are_told_apart(table: Table) -> None:
    one, other = SAME_HASH[0]
    key = table.schema().field("k")
    assert len(set(hash_rows([pa.array([one, other])], [key.type]).tolist())) == 1
    write_arrow(table, rows(f"x{one}=a y{other}=a"))
    write_arrow(table, rows(f"y{one}=b z{other}=b"))
    assert shown(table) == " ".join(sorted((f"y{one}=b", f"z{other}=b"), key=lambda t: int(t[1:-2])))


@pytest.mark.parametrize(
    "kind", ["DOUBLE NOT NULL", "STRING NOT NULL", "DECIMAL(30, 2) NOT NULL", "TIMESTAMP(6) NOT NULL"]
)
def test_keys_of_other_types_are_found(tmp_path: Path, kind: str) -> None:
    columns = {**COLUMNS, "k": kind}
    table = make_table(tmp_path, columns, primary_keys=["k"], partition_keys=["p"], bucket="-1")
    type_ = rows_of(columns, []).schema.field("k").type
    values = [0.0, float("nan"), 5.5] if kind.startswith("DOUBLE") else ["1", "20", "300"]
    keys = pa.array(values).cast(pa.int64()).cast(type_) if kind.startswith("TIME") else pa.array(values).cast(type_)
    for p in "xy":
        write_arrow(table, pa.table({"k": keys, "v": [p] * len(keys), "p": [p] * len(keys)}))
    assert read_arrow(table).column("p").to_pylist() == ["y"] * len(keys)


@pytest.mark.random
@pytest.mark.parametrize("case", range(lives(2, 4)))
def test_random_lives(tmp_path: Path, case: int) -> None:
    random = chance(f"moving keys {case}")
    table = make(tmp_path, **({"write_only": "true"} if case % 2 else {}))
    model: dict[int, tuple[str, str]] = {}
    for step in range(25):
        chosen = random.sample(range(20), random.randint(1, 8))
        given = {k: random.choice("xyz") for k in chosen}
        gone = {k for k in chosen if random.random() < 0.25}
        text = " ".join(f"{p}{k}-" if k in gone else f"{p}{k}=s{step}" for k, p in given.items())
        mode = random.choice(["append", "append", "append", "overwrite", "x", "dynamic_overwrite"])
        if mode in ("append", "overwrite"):
            write_arrow(table, rows(text), mode=mode)
            model = {} if mode == "overwrite" else {k: v for k, v in model.items() if k not in gone}
        else:
            text = " ".join(w for w in text.split() if mode != "x" or w[0] == "x") or "x1-"
            replaced = {"x"} if mode == "x" else {w[0] for w in text.split()}
            given = {k: p for k, p in given.items() if p in replaced}
            stays = {k: v for k, v in model.items() if v[0] not in replaced}
            static: dict[str, Any] = {"mode": "overwrite", "partition": {"p": "x"}}
            arguments = static if mode == "x" else {"mode": mode}
            if stays.keys() & (given.keys() - gone):
                with pytest.raises(InvalidInputError, match="which stays, has it as well"):
                    write_arrow(table, rows(text), **arguments)
                continue
            write_arrow(table, rows(text), **arguments)
            model = stays
        model |= {k: (p, f"s{step}") for k, p in given.items() if k not in gone}
        assert shown(table) == " ".join(f"{p}{k}={v}" for k, (p, v) in sorted(model.items())), (case, step, mode)


def test_look_ups_agree_with_a_dictionary(table: Table) -> None:
    random = chance("key places")
    schema = table.schema()
    keys = random.sample(range(10_000), 3000)
    parts = [np.array(keys[i::7], np.int64) for i in range(7)]
    batches = [pa.record_batch({"k": pa.array(part)}) for part in parts]
    buckets = [key_locations.BucketKey(bytes([i]), i) for i in range(7)]
    places = KeyLocations(schema, ((b, [batch]) for b, batch in zip(buckets, batches, strict=True)))
    where = {int(k): i for i, part in enumerate(parts) for k in part}
    wanted: Sequence[int] = [random.randrange(10_000) for _ in range(2000)]
    found = places.find(pa.record_batch({"k": pa.array(wanted, pa.int64())}))
    assert found.tolist() == [where.get(k, -1) for k in wanted]
