"""export_audit: documents of several tables, and a table that holds each record once."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.audit.rows import COLUMNS
from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.schema.schema_plan import DropColumn
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.execution import run_operation
from tests.clock import next_millisecond
from tests.core.audit.test_audit import correction
from tests.core.tables import alter_table, append, make_table, run
from tests.strict_metadata import findings


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    """Three tables: one with a publish, one with a correction that waits, one with neither."""
    made = [make_table(tmp_path / "wh", name, primary=False) for name in ("d.one", "d.two", "e.three")]
    for table in made:
        append(table, "a")
        append(table, "b")
    for table in made[:2]:
        run(table, "create_branch", branch="fix", snapshot=2, owner="ann", reason="wrong rate")
        correction(table.branch("fix"), "a")
    next_millisecond()
    publish(made[0])
    return made


def publish(table: Table) -> None:
    run(table, "merge_branch", branch="fix", writers_stopped=True, requested_by="ann", approved_by="bob")


def export(warehouse: Path, table: str = "*", **more: Any) -> OperationResult:
    return run_operation(build_request("export_audit", {"warehouse": str(warehouse), "table": table, **more}))


def stored(warehouse: Path) -> list[dict[str, Any]]:
    rows = read_arrow(open_table(str(warehouse), "audit.log")).to_pylist()
    return sorted(rows, key=lambda r: (r["table_name"], r["snapshot"]))


def test_a_document_of_the_warehouse_of_several_tables_and_of_one(tables: list[Table], tmp_path: Path) -> None:
    warehouse = tmp_path / "wh"
    done = export(warehouse, uri=str(tmp_path / "all.csv"))
    assert (done.changed, done.details["tables"], done.details["records"]) == (True, 3, 2)
    assert done.details["kinds"] == {"correction": 1, "publish": 1}
    lines = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text())))
    assert [(r["table"], r["kind"]) for r in lines] == [("d.two", "correction"), ("d.one", "publish")]
    export(warehouse, "e.*, d.one", uri=(tmp_path / "some.json").as_uri())
    assert [r["approved_by"] for r in json.loads((tmp_path / "some.json").read_text())] == ["bob"]
    export(warehouse, "d.two", uri=str(tmp_path / "two"), format="markdown")
    assert "correction of d.two, snapshot 3 of fix" in (tmp_path / "two").read_text()
    export(warehouse, uri=str(tmp_path / "none.md"), to="2020-01-01")
    assert (tmp_path / "none.md").read_text() == "No publish, undo or correction.\n"
    assert not export(warehouse, uri=str(tmp_path / "no"), dry_run=True).details.get("to_table")
    assert not (tmp_path / "no").exists()


def test_a_table_holds_each_record_once_as_it_is_now(tables: list[Table], tmp_path: Path) -> None:
    warehouse, to = tmp_path / "wh", {"to_table": "audit.log"}
    planned = export(warehouse, **to, dry_run=True)
    assert (planned.changed, planned.details["rows_written"]) == (True, 2)
    assert not open_table(str(warehouse), "audit.log").exists()
    first = export(warehouse, **to)
    assert (first.changed, first.details["rows_written"], first.details["to_snapshot"]) == (True, 2, 1)
    one, two = stored(warehouse)
    assert (one["table_name"], one["kind"], one["approved_by"], one["undone_by"]) == ("d.one", "publish", "bob", None)
    assert json.loads(one["changes"])[0]["sql"].startswith("UPDATE branch")
    assert one["committed"].timestamp() * 1000 == pytest.approx(read_audit(tables[0])[0].time_ms)
    assert (two["kind"], two["reason"], two["files_added"]) == ("correction", "wrong rate", None)

    again = export(warehouse, **to)
    assert (again.changed, again.details["rows_written"], again.details["to_snapshot"]) == (False, 0, 1)

    run(tables[0], "rollback_to", snapshot=2, keep_later=True, requested_by="eve")
    publish(tables[1])
    done = export(warehouse, **to)
    assert (done.details["rows_written"], done.details["rows_deleted"], done.details["to_snapshot"]) == (3, 1, 2)
    assert [(r["table_name"], r["kind"], r["undone_by"]) for r in stored(warehouse)] == [
        ("d.one", "publish", 4), ("d.one", "undo", None), ("d.two", "publish", None)]  # fmt: skip
    comments = {f.name: f.description for f in open_table(str(warehouse), "audit.log").schema().fields}
    assert all(comments[name] == text for name, _, text in COLUMNS)
    assert list(findings(warehouse)) == []


def test_what_is_outside_of_the_range_or_of_other_tables_stays(tables: list[Table], tmp_path: Path) -> None:
    warehouse, to = tmp_path / "wh", {"to_table": "audit.log"}
    export(warehouse, **to)
    run(tables[1], "delete_branch", branch="fix")
    assert export(warehouse, "d.one", **to).details["rows_deleted"] == 0
    assert export(warehouse, **to, to="2020-01-01").details["rows_deleted"] == 0
    table = tables[0]
    table.store.delete(table.paths.snapshot(3))  # as after an expiry
    append(table, "z")
    done = export(warehouse, "d.o*", **to)
    assert (done.details["rows_written"], done.details["rows_deleted"]) == (1, 0)
    assert [(r["table_name"], r["is_there"]) for r in stored(warehouse)] == [("d.one", False), ("d.two", True)]
    assert export(warehouse, **to, from_="2020-01-01").details["rows_deleted"] == 1


def test_a_table_that_can_not_be_read_stops_all_unless_it_is_to_be_left_out(
    tables: list[Table], tmp_path: Path
) -> None:
    warehouse, table = tmp_path / "wh", tables[0]
    export(warehouse, to_table="audit.log")
    before = stored(warehouse)
    (record,) = table.store.names("_airflow_paimon/audit/main")
    table.store.replace(f"_airflow_paimon/audit/main/{record}", b"{")
    run(tables[1], "delete_branch", branch="fix")
    for to in ({"uri": str(tmp_path / "all.json")}, {"to_table": "audit.log"}):
        with pytest.raises(FormatError, match=record):
            export(warehouse, **to)
    assert stored(warehouse) == before
    assert not (tmp_path / "all.json").exists()
    done = export(warehouse, to_table="audit.log", skip_unreadable=True)
    assert list(done.details["unreadable"]) == ["d.one"]
    assert record in done.details["unreadable"]["d.one"]
    assert [r["table_name"] for r in stored(warehouse)] == ["d.one"], "what is known of it stays"


@pytest.mark.parametrize(
    ("table", "more", "error", "match"),
    [
        ("*", {}, InvalidInputError, "--uri.*--to-table"),
        ("*", {"uri": "x/"}, InvalidInputError, "--uri 'x/' names a folder"),
        ("*", {"uri": "x", "from_": "soon"}, InvalidInputError, "--from takes a date"),
        ("*", {"uri": "x", "from_": "2026-01-02", "to": "2026-01-01"}, InvalidInputError, "is not before"),
        (
            "*",
            {"to_table": "d.one"},
            InvalidInputError,
            "d.one is not a table of export_audit: missing columns: table_name",
        ),
        ("*", {"to_table": "d.one$branch_fix"}, InvalidInputError, "not a branch"),
        ("d.one, d.four", {"uri": "x"}, NotFoundError, "has no table 'd.four'"),
        ("f.*", {"uri": "x"}, NotFoundError, "has no table"),
        ("d.four", {"uri": "x"}, NotFoundError, "d.four"),
    ],
)
def test_what_can_not_be_done_is_refused_before_anything_is_written(
    tables: list[Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, more: dict[str, Any],
    error: type[Exception], match: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=match):
        export(tmp_path / "wh", table, **more)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_table_of_an_older_version_says_which_column_to_add(tables: list[Table], tmp_path: Path) -> None:
    export(tmp_path / "wh", to_table="audit.log")
    log = open_table(str(tmp_path / "wh"), "audit.log")
    alter_table(log, [DropColumn(name="diff")])
    with pytest.raises(
        InvalidInputError, match=r"missing columns: diff; other columns: none.*--change 'add column diff STRING'"
    ):
        export(tmp_path / "wh", to_table="audit.log")
