"""Publishes where main and the branch have both changed the columns since the branch point: rows are read by name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import perform
from tests.core.tables import run
from tests.data.tables import make_table
from tests.randomness import chance, lives
from tests.stores import FaultStore

COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "v": "STRING"}
KINDS: dict[str, dict[str, Any]] = {
    "keys": {"primary_keys": ["p", "k"], "bucket": "1"},
    "no keys": {"bucket": "-1"},
    "orc": {"primary_keys": ["p", "k"], "bucket": "1", "file__format": "orc"},
    "avro": {"bucket": "-1", "file__format": "avro"},
}


def begin(tmp_path: Path, kind: str = "keys") -> tuple[Table, Table]:
    main = make_table(tmp_path, COLUMNS, partition_keys=["p"], **KINDS[kind])
    put(main, p="a", k=1, v="old")
    put(main, p="b", k=1, v="old")
    run(main, "create_branch", branch="fix", snapshot=2)
    return main, main.branch("fix")


def put(table: Table, **row: Any) -> None:
    """Write one row, over that of its partition; columns that it lacks are null."""
    types = read_arrow(table, columns=list(table.schema().field_names)).schema
    values = {name: pa.array([row.get(name)], types.field(name).type) for name in types.names}
    write_arrow(table, pa.table(values), mode="dynamic_overwrite")


def alter(table: Table, *changes: str) -> None:
    run(table, "alter_table", change=list(changes), branch=table.branch_name)


def shown(table: Table) -> list[dict[str, Any]]:
    rows = [{k: v for k, v in row.items() if v is not None} for row in read_arrow(table).to_pylist()]
    return sorted(rows, key=lambda row: str(row["p"]))


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_added_the_column_under_other_ids(tmp_path: Path, kind: str) -> None:
    main, fix = begin(tmp_path, kind)
    alter(fix, "add column y INT")
    altered = run(main, "alter_table", change=["add column x BIGINT", "add column y INT"])
    assert altered.details["publish"] == {"fix": "possible"}
    assert main.schema().field("y").id != fix.schema().field("y").id == main.schema().field("x").id
    put(main, p="b", k=1, v="main", x=7, y=8)
    put(fix, p="a", k=1, v="fixed", y=9)
    columns = main.schema().fields
    undo = run(main, "merge_branch", branch="fix").details["undo_tag"]
    assert main.schema().fields == columns
    assert shown(main) == [
        {"p": "a", "k": 1, "v": "fixed", "y": 9},
        {"p": "b", "k": 1, "v": "main", "x": 7, "y": 8},
    ]
    put(main, p="c", k=1, v="later", x=1, y=2)
    put(fix, p="a", k=1, v="fixed again", y=10)
    versions = main.schema_ids()
    run(main, "merge_branch", branch="fix")
    assert main.schema_ids() == versions, "nothing new to put"
    assert shown(main)[0] == {"p": "a", "k": 1, "v": "fixed again", "y": 10}
    run(main, "rollback_to", tag=undo)
    assert shown(main) == [{"p": "a", "k": 1, "v": "old"}, {"p": "b", "k": 1, "v": "main", "x": 7, "y": 8}]


@pytest.mark.parametrize("kind", KINDS)
def test_each_side_added_columns_of_its_own(tmp_path: Path, kind: str) -> None:
    main, fix = begin(tmp_path, kind)
    alter(main, "add column x BIGINT")
    alter(fix, "add column y STRING")
    alter(fix, "add column z ROW<a INT, b STRING>")
    put(main, p="b", k=1, v="main", x=7)
    put(fix, p="a", k=1, v="fixed", y="why", z={"a": 1, "b": "z"})
    result = run(main, "merge_branch", branch="fix")
    assert main.schema().field_names == ("p", "k", "v", "x", "y", "z")
    assert result.details["new_schemas"] == main.schema_ids()[-2:]
    assert shown(main) == [
        {"p": "a", "k": 1, "v": "fixed", "y": "why", "z": {"a": 1, "b": "z"}},
        {"p": "b", "k": 1, "v": "main", "x": 7},
    ]


def test_what_each_side_did_to_the_columns_of_the_branch_point(tmp_path: Path) -> None:
    """One side's change is taken, the same one of both as well; two different ones are a conflict."""
    main, fix = begin(tmp_path)
    alter(main, "add column n INT", "add column gone INT")
    run(main, "create_branch", branch="both", snapshot=2)
    put(main, p="b", k=1, v="main", n=1, gone=2)
    run(main, "create_branch", branch="next", snapshot=3)
    both = main.branch("next")
    alter(main, "rename column v to value")
    alter(both, "alter column n type BIGINT", "drop column gone", "add column x INT")
    put(both, p="a", k=1, v="fixed", n=2**40, x=3)
    run(main, "merge_branch", branch="next")
    assert [f"{f.name} {f.type}" for f in main.schema().fields][2:] == ["value STRING", "n BIGINT", "x INT"]
    assert shown(main) == [
        {"p": "a", "k": 1, "value": "fixed", "n": 2**40, "x": 3},
        {"p": "b", "k": 1, "value": "main", "n": 1},
    ]
    alter(fix, "rename column v to text")
    put(fix, p="c", k=1, text="late")
    with pytest.raises(ConflictError, match="changed on main to value STRING, and made text STRING on the branch"):
        run(main, "merge_branch", branch="fix")


@pytest.mark.parametrize(
    ("main_does", "branch_does", "says"),
    [
        (["add column x INT"], ["add column x BIGINT"], "alter one to the other's type"),
        (["rename column v to x"], ["add column x STRING"], "main has renamed another column to 'x'"),
        (["add column x INT", "rename column x to y"], ["add column x INT"], "main has dropped or renamed column 'x'"),
        (
            ["add column x INT"],
            ["add column x INT", "rename column x to y"],
            "the branch has renamed column 'x' to 'y'",
        ),
        (["drop column v"], ["rename column v to w"], "main has dropped column 'v'"),
        (["rename column v to w"], ["drop column v"], "changed on main to w STRING, and dropped on the branch"),
    ],
)
def test_what_cannot_be_brought_together_says_what_to_do(
    tmp_path: Path, main_does: list[str], branch_does: list[str], says: str
) -> None:
    main, fix = begin(tmp_path)
    alter(main, "add column first INT")
    for table, changes in ((main, main_does), (fix, branch_does)):
        for change in changes:
            alter(table, change)
    put(fix, p="a", k=1)
    before = shown(main), main.schema_ids()
    with pytest.raises(ConflictError, match=says):
        run(main, "merge_branch", branch="fix")
    assert (shown(main), main.schema_ids()) == before


@pytest.mark.parametrize("kind", ["INT", "STRING"])
@pytest.mark.parametrize("written", [False, True])
def test_a_column_that_main_has_dropped_is_in_the_way_only_where_files_have_its_values(
    tmp_path: Path, written: bool, kind: str
) -> None:
    main, fix = begin(tmp_path)
    alter(main, f"add column x {kind}")
    if written:
        put(main, p="b", k=1, v="main", x=7 if kind == "INT" else "7")
    alter(main, "drop column x")
    alter(fix, "add column x INT")
    put(fix, p="a", k=1, v="fixed", x=9)
    if written:
        with pytest.raises(ConflictError, match="main has dropped or renamed column 'x'"):
            run(main, "merge_branch", branch="fix")
        return
    run(main, "merge_branch", branch="fix")
    assert shown(main) == [{"p": "a", "k": 1, "v": "fixed", "x": 9}, {"p": "b", "k": 1, "v": "old"}]
    assert (main.schema().field("x").id == fix.schema().field("x").id) == (kind == "INT"), "one of another type is new"


def test_iceberg_readers_go_by_the_ids_in_the_files(tmp_path: Path) -> None:
    main, fix = begin(tmp_path)
    alter(main, "set metadata.iceberg.storage=table-location", "add column x BIGINT")
    alter(fix, "add column y INT")
    put(fix, p="a", k=1, v="fixed", y=9)
    with pytest.raises(UnsupportedFeatureError, match=r"metadata\.iceberg\.storage"):
        run(main, "merge_branch", branch="fix")
    assert main.schema().field_names == ("p", "k", "v", "x")


@pytest.mark.parametrize("refused", [False, True])
def test_another_writer_alters_main_while_the_versions_are_put(tmp_path: Path, refused: bool) -> None:
    """Its column stays, although its version comes below the latest one of the publish, or that is taken back."""
    main, fix = begin(tmp_path / "wh")
    alter(main, "add column x BIGINT")
    alter(fix, "add column y INT")
    put(fix, p="a", k=1, v="fixed", y=9)
    shutil.copytree(tmp_path / "wh", tmp_path / "elsewhere")
    seen: list[str] = []
    rivals: list[str] = []

    def alters(method: str, path: str) -> None:
        if path.startswith("schema/schema-"):
            seen.append(path)
            if len(seen) == 2:  # the latest is there, the one of the branch's files is not
                old = main.schema(1)
                field = DataField(old.highest_field_id + 1, "theirs", parse_type("INT"))
                new = replace(old, id=2, fields=(*old.fields, field), highest_field_id=field.id)
                main.store.create(main.paths.schema(2), new.to_bytes())
        elif refused and path == main.paths.snapshot(3) and not rivals:
            rivals.append(path)  # of a writer that has loaded the table before
            put(open_table(str(tmp_path / "elsewhere"), "d.t"), p="a", k=1, v="rival")
            shutil.copytree(tmp_path / "elsewhere", tmp_path / "wh", dirs_exist_ok=True)

    request = build_request("merge_branch", {"warehouse": str(tmp_path / "wh"), "table": "d.t", "branch": "fix"})
    context = replace(open_context(request), table=Table(FaultStore(main.store, on_mutation=alters), main.name))
    if refused:
        with pytest.raises(ConflictError, match="changed the rows of 1 keys"):
            perform(context, request)
        assert main.schema().field_names == ("p", "k", "v", "x", "theirs")
        assert shown(main)[0] == {"p": "a", "k": 1, "v": "rival"}
        return
    perform(context, request)
    assert [path.rpartition("-")[2] for path in seen] == ["3", "2", "4", "6", "5"]
    assert main.schema().field_names == ("p", "k", "v", "x", "theirs", "y")
    assert shown(main)[0] == {"p": "a", "k": 1, "v": "fixed", "y": 9}


@pytest.mark.random
@pytest.mark.parametrize("life", range(lives(1, 3)))
def test_any_additions_of_both_sides_keep_every_value(tmp_path: Path, life: int) -> None:
    draw = chance(f"columns {life}")
    main, fix = begin(tmp_path, draw.choice(["keys", "no keys"]))
    kinds = {"c0": "INT", "c1": "STRING", "c2": "BIGINT", "c3": "DOUBLE"}
    values = {"INT": 3, "STRING": "s", "BIGINT": 2**40, "DOUBLE": 0.5}
    rows: dict[str, dict[str, Any]] = {p: {"p": p, "k": 1, "v": "old"} for p in "ab"}
    expected = dict(rows)
    for number in range(15):
        table, partition = draw.choice([(main, "b"), (fix, "a")])
        missing = [c for c in kinds if c not in table.schema().field_names]
        step = draw.choice(["alter", "write", "publish"])
        if step == "alter" and missing:
            name = draw.choice(missing)
            alter(table, f"add column {name} {kinds[name]}")
        elif step == "write":
            known = [c for c in table.schema().field_names if c in kinds and draw.random() < 0.7]
            rows[partition] = {"p": partition, "k": 1, "v": f"{number}", **{c: values[kinds[c]] for c in known}}
            put(table, **rows[partition])
        elif step == "publish":
            run(main, "merge_branch", branch="fix")
            expected["a"] = rows["a"]
        expected["b"] = rows["b"]
        assert shown(main) == [expected["a"], expected["b"]]
