"""``row_history``: the versions of a row over snapshots, tags and branches, and which files are read for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.schema.schema_plan import AddColumn, RenameColumn, SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import row_history, row_versions, write_arrow
from tests.core.tables import alter_table, run


@pytest.fixture(params=["keyed", "plain"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    keyed = request.param == "keyed"
    return create_table(
        str(tmp_path / "wh"),
        "d.t",
        [("k", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL"), ("v", "STRING")],
        partition_keys=["dt"],
        primary_keys=["dt", "k"] if keyed else [],
        options={"bucket": "2" if keyed else "-1"},
    )


def put(view: Table, *rows: tuple[int, str], dt: str = "a", **more: Any) -> None:
    values = {"k": [k for k, _ in rows], "dt": [dt] * len(rows), "v": [v for _, v in rows]}
    write_arrow(view, pa.table(values, pa.schema([("k", "int64"), ("dt", "string"), ("v", "string")])), **more)


def seen(table: Table, **key: Any) -> list[tuple[Any, ...]]:
    return [(v.branch, v.snapshot, v.change, [r["v"] for r in v.rows], v.tags) for v in row_history(table, key)]


def test_the_versions_of_a_row_on_main_on_a_branch_and_in_tags(table: Table) -> None:
    whole: dict[str, Any] = {"mode": "overwrite", "partition": {"dt": "a"}}
    put(table, (1, "one"), (2, "two"), **whole)
    run(table, "create_tag", tag="first")
    put(table, (1, "one"), (2, "changed"), **whole)
    run(table, "create_branch", branch="fix", snapshot=2)
    put(table.branch("fix"), (1, "fixed"), (2, "changed"), **whole)
    run(table, "merge_branch", branch="fix", requested_by="ann", approved_by="bob", writers_stopped=True)
    put(table, (2, "changed"), **whole)
    put(table, (9, "elsewhere"), dt="b")
    found = seen(table, k="1", dt="a")
    assert found[0][:4] == ("main", 1, "inserted", ["one"])
    assert "first" in found[0][4]
    assert [f[:4] for f in found[1:]] == [
        ("main", 3, "updated", ["fixed"]), ("main", 4, "deleted", []), ("fix", 3, "updated", ["fixed"])]  # fmt: skip
    publish = row_history(table, {"k": 1, "dt": "a"})[1]
    assert (publish.operation, publish.from_branch, publish.requested_by, publish.approved_by) == (
        "merge_branch", "fix", "ann", "bob")  # fmt: skip
    assert seen(table.branch("fix"), k=1)[-1][:4] == ("fix", 3, "updated", ["fixed"])
    table.store.delete(table.paths.snapshot(1))
    again = seen(table, k=1, dt="a")
    assert again[0][:4] == ("main", 1, "inserted", ["one"]), "its tag has it"
    assert seen(table, k=77) == []


def test_states_with_the_same_files_for_the_key_are_not_read_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(table, (1, "one"))
    for number in range(5):
        put(table, (number, "other"), dt="b")
    reads: list[Any] = []
    real = row_versions._rows
    monkeypatch.setattr(row_versions, "_rows", lambda layers: reads.append(layers) or real(layers))
    assert [f[:4] for f in seen(table, k=1, dt="a")] == [("main", 1, "inserted", ["one"])]
    assert len(reads) == 1


def test_renaming_and_adding_columns_makes_no_version_and_masked_values_are_hidden(table: Table) -> None:
    put(table, (1, "one"))
    alter_table(table, [RenameColumn(name="v", to_name="w"), AddColumn(name="x", type="INT")])
    write_arrow(
        table, pa.table({"k": pa.array([5], pa.int64()), "dt": ["b"], "w": ["y"], "x": pa.array([1], pa.int32())})
    )
    (version,) = row_history(table, {"k": 1})
    assert version.to_json()["rows"] == [{"k": 1, "dt": "a", "v": "one"}]
    alter_table(table, [SetOption(key="airflow-paimon.masked-columns", value="w")])
    (version,) = row_history(table, {"k": 1})
    assert version.rows[0]["v"] == "***"


def test_a_branch_has_columns_of_its_own(table: Table) -> None:
    """Main and the branch have given the same field id to different columns."""
    put(table, (1, "one"))
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    alter_table(fix, [AddColumn(name="b", type="STRING")])
    alter_table(table, [AddColumn(name="a", type="STRING")])
    columns = pa.schema([("k", "int64"), ("dt", "string"), ("v", "string"), ("b", "string")])
    write_arrow(fix, pa.table({"k": [5], "dt": ["a"], "v": ["five"], "b": ["x"]}, columns))
    assert not row_history(table, {"a": "x"})
    assert [v.branch for v in row_history(fix, {"b": "x"})] == ["fix"]


def test_what_can_not_be_asked_is_refused_by_name(table: Table) -> None:
    put(table, (1, "one"))
    for key, text in (({"q": 1}, "no column 'q'"), ({"k": "x"}, "'x' can't be cast to BIGINT"), ({}, "at least one")):
        with pytest.raises(InvalidInputError, match=text):
            row_history(table, key)
    run(table, "create_branch", branch="old", snapshot=1)
    alter_table(table, [SetOption(key="scan.fallback-branch", value="old")])
    with pytest.raises(UnsupportedFeatureError, match="together with those of other branches"):
        row_history(table, {"k": 1})
