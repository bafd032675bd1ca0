"""Reads through a fallback or a primary branch: partition by partition, never half of the rows in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import EMPTY_STATS
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.schema.schema_plan import AddColumn, RenameColumn, SetOption, WidenColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.planner import plan_rows, read_schema
from airflow_paimon.data.read_request import ReadRequest
from tests.clock import next_millisecond
from tests.core.tables import alter_table
from tests.data.tables import make_table, rows_of
from tests.data.test_changes import Follower
from tests.oracles.canonical import assert_same_rows
from tests.stores import delete_tree

COLUMNS = {"dt": "STRING", "k": "INT", "v": "STRING"}


def rows(**partitions: list[int]) -> list[dict[str, Any]]:
    return [{"dt": None if d == "null" else d, "k": k, "v": ""} for d, keys in partitions.items() for k in keys]


def put(table: Table, tag: str, **partitions: list[int]) -> None:
    next_millisecond()  # one branch is read at the time of the other's snapshot
    write_arrow(table, rows_of(COLUMNS, [r | {"v": tag} for r in rows(**partitions)]))


def seen(table: Table, **more: Any) -> list[tuple[Any, int, str]]:
    found = read_arrow(table, **more).to_pylist()
    return sorted(((r["dt"], r["k"], r["v"]) for r in found), key=repr)


def tag(table: Table, name: str, snapshot: int) -> None:
    table.store.create(table.paths.tag(name), Tag(name=name, snapshot=table.snapshot(snapshot)).to_bytes())


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Table, Table]:
    """Main, and a branch with a history of its own, made by hand: only its schema is needed."""
    main = make_table(tmp_path, COLUMNS, partition_keys=["dt"])
    other = main.branch("other")
    other.store.create(other.paths.schema(0), main.store.read(main.paths.schema(0)))
    put(other, "other", a=[1, 2], b=[3], null=[4])
    return main, other


def test_the_first_branch_hides_whole_partitions(pair: tuple[Table, Table]) -> None:
    main, _ = pair
    put(main, "main", a=[9])
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    assert seen(main) == [("a", 9, "main"), ("b", 3, "other"), (None, 4, "other")]
    # a partition none of whose rows match still hides the other's, as in Paimon
    assert seen(main, where=pc.field("k") == 1) == []
    assert seen(main, where=pc.field("k") == 3) == [("b", 3, "other")]
    write_arrow(main, rows_of(COLUMNS, []), mode="overwrite", partition={"dt": "a"})
    assert [r[1] for r in seen(main)] == [1, 2, 3, 4]


def test_statistics_are_kept_only_for_a_filter(pair: tuple[Table, Table]) -> None:
    main, _ = pair
    put(main, "main", a=[9])
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    for where, is_kept in ((None, False), (pc.field("k") > 0, True)):
        layers = [
            [f for s in splits for f in s.files] for _, splits in plan_rows(main, ReadRequest(where=where)).layers
        ]
        assert [{f.value_stats != EMPTY_STATS for f in files} for files in layers] == [{is_kept}, {is_kept}]


def test_the_primary_branch_comes_first(pair: tuple[Table, Table]) -> None:
    main, _ = pair
    put(main, "main", a=[9], c=[8])
    alter_table(main, [SetOption(key="scan.primary-branch", value="other")])
    assert seen(main) == [("a", 1, "other"), ("a", 2, "other"), ("b", 3, "other"), ("c", 8, "main"), (None, 4, "other")]


def test_a_missing_branch_is_an_error_not_half_of_the_rows(pair: tuple[Table, Table]) -> None:
    main, _ = pair
    put(main, "main", a=[9])
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    delete_tree(main.store, "branch/branch-other")
    with pytest.raises(NotFoundError, match=r"d\.t is read together with branch 'other'.*does not exist"):
        seen(main)


def test_a_branch_that_names_itself_reads_itself(pair: tuple[Table, Table]) -> None:
    _, other = pair
    alter_table(other, [SetOption(key="scan.fallback-branch", value="other")])
    assert [r[1] for r in seen(other)] == [1, 2, 3, 4]


def test_time_travel_takes_the_other_branch_as_it_was_then(pair: tuple[Table, Table]) -> None:
    main, other = pair
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    put(main, "main", a=[9])
    put(other, "later", b=[5], z=[7])
    put(main, "main", c=[8])
    assert seen(main, version=1) == [("a", 9, "main"), ("b", 3, "other"), (None, 4, "other")]
    assert ("z", 7, "later") in seen(main, version=2)
    moment = main.snapshot(1).time_millis
    assert seen(main, timestamp=moment) == seen(main, version=1)
    with pytest.raises(NotFoundError, match="no tag"):
        seen(main, version="nope")


def test_a_tag_that_only_main_has_is_a_moment_of_the_other_branch(pair: tuple[Table, Table]) -> None:
    main, other = pair
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    put(main, "main", a=[9])
    tag(main, "good", 1)
    put(other, "later", z=[7])
    assert (
        seen(main, version="good") == seen(main, version=1) == [("a", 9, "main"), ("b", 3, "other"), (None, 4, "other")]
    )
    tag(other, "good", 2)
    assert ("z", 7, "later") in seen(main, version="good")  # as in Paimon


@pytest.mark.parametrize("option", ["scan.fallback-branch", "scan.primary-branch"])
def test_a_moment_at_which_one_branch_had_nothing(tmp_path: Path, option: str) -> None:
    main = make_table(tmp_path, COLUMNS, partition_keys=["dt"])
    other = main.branch("other")
    other.store.create(other.paths.schema(0), main.store.read(main.paths.schema(0)))
    alter_table(main, [SetOption(key=option, value="other")])
    first, second = (main, other) if option == "scan.fallback-branch" else (other, main)
    put(first, "first", a=[1])
    moment = first.snapshot(1).time_millis
    tag(first, "good", 1)
    put(second, "second", b=[2])
    assert seen(main, timestamp=moment) == [("a", 1, "first")]
    assert read_schema(main, timestamp=moment).field_names == ("dt", "k", "v")
    assert seen(main, timestamp=second.snapshot(1).time_millis) == [("a", 1, "first"), ("b", 2, "second")]
    if first is main:
        assert seen(main, version="good") == [("a", 1, "first")]
    for reads in (seen, read_schema):
        with pytest.raises(NotFoundError, match="as early as"):
            reads(main, timestamp=moment - 1)
    put(second, "second", b=[3])
    second.store.delete(second.paths.snapshot(1))  # expired: what it held at that moment isn't known
    with pytest.raises(NotFoundError, match="has no snapshot as early"):
        seen(main, timestamp=moment)


def test_a_branch_to_read_with_has_to_exist(pair: tuple[Table, Table], tmp_path: Path) -> None:
    main, _ = pair
    for key in ("scan.fallback-branch", "scan.primary-branch"):
        with pytest.raises(InvalidInputError, match=rf"{key}=nope names no branch .*its branches: main, other"):
            alter_table(main, [SetOption(key=key, value="nope")])
        with pytest.raises(InvalidInputError, match="then the branch, then set the option"):
            create_table(str(tmp_path), "d.new", [("k", "INT")], options={key: "other"})
    assert not open_table(str(tmp_path), "d.new").exists()
    assert len(main.schemas()) == 1


def test_a_stream_follows_the_own_branch_as_in_paimon(pair: tuple[Table, Table]) -> None:
    main, _ = pair
    put(main, "main", a=[9])
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    follower = Follower(main)
    put(main, "main", c=[8])
    assert sorted(follower.all()) == [("a", 9, "main"), ("c", 8, "main")]


@pytest.mark.parametrize("option", ["scan.fallback-branch", "scan.primary-branch"])
def test_time_travel_across_an_alter_of_both(pair: tuple[Table, Table], option: str) -> None:
    """Only one of them was written to since: the other's snapshot is older than the columns of that moment."""
    main, other = pair
    alter_table(main, [SetOption(key=option, value="other")])
    put(main, "main", c=[9])
    before = read_arrow(main)
    for table in pair:
        alter_table(table, [RenameColumn(name="v", to_name="w"), AddColumn(name="x", type="INT")])
    assert_same_rows(read_arrow(main, version=1), before)
    altered = {"dt": "STRING", "k": "INT", "w": "STRING", "x": "INT"}
    write_arrow(main, rows_of(altered, [{"dt": "d", "k": 8, "x": 1}]))
    now = read_arrow(main)
    assert now.column_names == list(altered)
    assert_same_rows(read_arrow(main, version=2), now)
    assert_same_rows(read_arrow(main, timestamp=main.snapshot(2).time_millis), now)
    assert read_schema(main, 1).field_names == tuple(before.column_names)
    for table in pair:
        alter_table(table, [AddColumn(name="y", type="INT")])
    write_arrow(other, rows_of({**altered, "y": "INT"}, [{"dt": "e", "k": 7, "y": 2}]))
    latest = read_arrow(main)
    assert latest.column("y").to_pylist().count(2) == 1
    late = "2100-01-01T00:00:00Z"
    assert_same_rows(read_arrow(main, timestamp=late), latest)
    assert read_schema(main, timestamp=late).field_names == tuple(latest.column_names)
    assert "y" not in read_arrow(main, version=2).column_names


def test_columns_must_agree(pair: tuple[Table, Table]) -> None:
    main, other = pair
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    put(main, "main", a=[9])
    alter_table(other, [WidenColumn(name="k", type="BIGINT")])
    with pytest.raises(InvalidInputError, match="column types differ"):
        seen(main)
    alter_table(main, [WidenColumn(name="k", type="BIGINT")])
    assert len(seen(main)) == 3
    alter_table(other, [RenameColumn(name="v", to_name="w")])
    with pytest.raises(UnsupportedFeatureError, match="name their columns"):
        seen(main)
    alter_table(main, [RenameColumn(name="v", to_name="w"), AddColumn(name="x", type="INT")])
    with pytest.raises(InvalidInputError, match="column types differ"):
        seen(main)


def test_an_unpartitioned_table_falls_back_as_a_whole(tmp_path: Path) -> None:
    main = make_table(tmp_path, COLUMNS)
    other = main.branch("other")
    other.store.create(other.paths.schema(0), main.store.read(main.paths.schema(0)))
    put(other, "other", a=[1])
    alter_table(main, [SetOption(key="scan.fallback-branch", value="other")])
    assert seen(main) == [("a", 1, "other")]
    put(main, "main", b=[2])
    assert seen(main) == [("b", 2, "main")]
