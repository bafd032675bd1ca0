"""find_rows: the stored files with rows of a condition, compared with a read of every file in the folder."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from airflow_paimon.core.commit.files import commit_overwrite
from airflow_paimon.core.erasure.report import report_markdown
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import perform
from tests.core.tables import run
from tests.data.erasure.tables import COLUMNS, WHERE, find, found, holding, keyed, plain, upsert
from tests.data.tables import make_table, rows_of
from tests.stores import _Wrapper

UNLISTED = "data-4b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0.parquet"


def reached(details: Any, path: str) -> list[str]:
    return next(one["reached_by"] for one in details["found"] if one["path"] == path)


def test_every_stored_file_counts_with_who_reaches_it(tmp_path: Path) -> None:
    """Main has deleted the rows: tags, a branch, the trash, an orphan still have them."""
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    upsert(table, "c", range(4))
    (only,) = (path for path in holding(table) if path.startswith("dt=c/"))
    orphan = f"dt=a/bucket-0/{UNLISTED}"
    shutil.copy(next(tmp_path.rglob("dt=a/bucket-0/*.parquet")), tmp_path / "d.db/t" / orphan)
    (tmp_path / "d.db/t/dt=b/bucket-0/.data-1.7b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a.tmp").write_bytes(b"half")
    upsert(table, "d", range(20, 24))
    commit_overwrite(table, [], partitions=[{"dt": dt} for dt in "abc"])
    run(table, "expire_snapshots", older_than="0 s", retain_min=1)

    details = find(table)
    assert found(details) == holding(table) and len(details["found"]) == 4
    assert reached(details, orphan) == [] and details["files"]["unreached"] == 1
    assert reached(details, only) == ["trash 1 to 4 of main"]
    in_a = next(p for p in holding(table) if p.startswith("dt=a/") and p != orphan)
    assert {"tag month of main", "newest snapshot (2) of branch fix", "trash 1 to 4 of main"} <= set(
        reached(details, in_a)
    )
    assert details["state"] == {"fix": 2, "main": 5}
    assert details["branches"] == [{"branch": "fix", "snapshot": 2, "files": 2, "rows": 2}]
    assert [(u["path"], details["proven"]) for u in details["unchecked"]] == [
        ("dt=b/bucket-0/.data-1.7b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a.tmp", False)
    ]
    ways = {(h["kind"], h["branch"], h["name"]): h["way"] for h in details["references"]}
    assert ways["tag", "main", "month"] == "delete_tag --tag month, then remove_orphan_files"
    assert "delete_branch --branch fix" in ways["protective tag", "main", "airflow-paimon-branch-fix"]


@pytest.mark.parametrize("options", [{}, {"changelog_producer": "input"}], ids=str)
def test_rows_that_nobody_sees_any_more_are_found(tmp_path: Path, options: dict[str, str]) -> None:
    """Under deletes of level 0, as overwritten versions, in changelogs."""
    table = keyed(tmp_path, **options)
    upsert(table, "a", [3], kind="-D")
    upsert(table, "b", [3], person={3: "somebody else"})
    shown = read_arrow(table).column("person").to_pylist()
    assert "secret" not in shown and "somebody else" in shown
    details = find(table)
    assert found(details) == holding(table)
    assert {path.partition("/")[0] for path in found(details)} == {"dt=a", "dt=b"}
    assert {one["kind"] for one in details["found"]} == (
        {"data", "changelog"} if "changelog_producer" in options else {"data"}
    )
    assert [b["branch"] for b in details["branches"]] == ["main"], "the newest snapshot still has the files"


class Opened(_Wrapper):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.paths: list[str] = []

    def open_input(self, path: str) -> Any:
        self.paths.append(path)
        return super().open_input(path)


def opened(table: Table, where: str) -> tuple[list[str], Any]:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    context = open_context(build_request("find_rows", {"warehouse": warehouse, "table": table.name, "where": where}))
    store = Opened(context.table.store)
    seen = type(context)(context.request, Table(store, table.name), context.now_ms, context.started)
    return store.paths, perform(seen, seen.request).details


def test_only_files_that_can_hold_such_rows_are_read(tmp_path: Path) -> None:
    table = plain(tmp_path)
    for day in "cdef":
        upsert(table, day, range(100, 110))
    paths, details = opened(table, "k = 3")
    assert sorted(p.partition("/")[0] for p in paths) == ["dt=a", "dt=b"], "statistics rule the others out"
    assert (details["files"]["read"], details["files"]["total"], details["files"]["read_ratio"]) == (2, 6, 0.3333)
    paths, details = opened(table, "dt = 'a' AND k >= 0")
    assert [p.partition("/")[0] for p in paths] == ["dt=a"] and details["rows"] == 10
    paths, details = opened(table, "dt = 'c'")
    assert paths == [] and details["rows"] == 10, "a partition alone needs no read"
    paths, details = opened(table, "k = 12345")
    assert paths == [] and details["proven"] and details["found"] == []


def test_a_renamed_column_is_found_in_old_files_and_in_one_that_no_manifest_names(tmp_path: Path) -> None:
    table = plain(tmp_path)
    source = next(tmp_path.rglob("dt=a/bucket-0/*.parquet"))
    shutil.copy(source, source.with_name(UNLISTED))
    run(table, "alter_table", change=("rename column person to who",))
    details = find(table, "who = 'secret'")
    assert found(details) == holding(table) and len(found(details)) == 3
    run(table, "alter_table", change=("add column person STRING",))
    details = find(table, "who = 'secret'")
    assert len(found(details)) == 2, "two columns had that name"
    assert [u["path"] for u in details["unchecked"]] == [f"dt=a/bucket-0/{UNLISTED}"]


def test_what_can_not_be_searched_is_refused_or_named(tmp_path: Path) -> None:
    table = plain(tmp_path)
    with pytest.raises(InvalidInputError, match="needs where"):
        run(table, "find_rows")
    with pytest.raises(InvalidInputError, match="no column 'nobody'"):
        run(table, "find_rows", where="nobody = 1")
    file = next(tmp_path.rglob("dt=a/bucket-0/*.parquet"))
    file.write_bytes(file.read_bytes()[:-20])
    details = find(table)
    assert not details["proven"] and [u["path"].partition("/")[0] for u in details["unchecked"]] == ["dt=a"]
    tracked = make_table(tmp_path / "x", COLUMNS, row_tracking__enabled="true", data_evolution__enabled="true")
    with pytest.raises(UnsupportedFeatureError, match=r"d\.t: with data-evolution\.enabled"):
        run(tracked, "find_rows", where=WHERE)


def test_the_report_names_files_and_holders(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    result = run(table, "find_rows", where=WHERE)
    text = report_markdown(result.to_json())
    assert "**2 files hold 2 such rows; 0 could not be read.**" in text and "secret" not in text
    assert "| tag month of main (snapshot 2) | 2 |" in text
    assert all(path in text for path in holding(table))
    nothing = report_markdown(run(table, "find_rows", where="k = 77").to_json())
    assert "**No stored file has such a row.**" in nothing and "## Files" not in nothing


def test_the_list_may_be_cut(tmp_path: Path) -> None:
    table = plain(tmp_path)
    details = run(table, "find_rows", where=WHERE, limit=1).details
    assert (len(details["found"]), details["found_left_out"], details["files"]["with_rows"]) == (1, 1, 2)


def test_a_legal_hold_on_such_rows_is_named(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "create_tag", tag="case", hold="case 17", held_by="legal")
    (holder,) = (h for h in find(table)["references"] if h["kind"] == "tag")
    assert (holder["name"], holder["hold"], holder["held_by"]) == ("case", "case 17", "legal")
    assert "is under a legal hold" in holder["way"] and "--release-hold" in holder["way"]


def test_columns_that_main_and_a_branch_got_apart_are_found_by_name(tmp_path: Path) -> None:
    """Both give ids of their own to new columns: the same id is another column, the same name is the same one."""
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    run(table, "alter_table", branch="fix", change=("add column email STRING", "add column phone STRING"))
    run(table, "alter_table", change=("add column phone STRING",))
    columns = {**COLUMNS, "email": "STRING", "phone": "STRING"}
    rows = [{"k": 50, "dt": "x", "email": "secret"}, {"k": 51, "dt": "y", "phone": "secret"}]
    for row in rows:
        write_arrow(table.branch("fix"), rows_of(columns, [row]))
    assert [path.partition("/")[0] for path in found(find(table, "phone = 'secret'"))] == ["dt=y"]


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
def test_files_that_a_deleted_branch_left_are_no_proof(tmp_path: Path, file_format: str) -> None:
    """Only that branch knew that its column was the one of the condition."""
    table = plain(tmp_path, file__format=file_format)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    run(table, "alter_table", branch="fix", change=("rename column person to who",))
    upserted = rows_of(COLUMNS, [{"k": 1, "person": "other", "dt": "x"}]).rename_columns(["k", "who", "dt"])
    write_arrow(table.branch("fix"), upserted)
    assert len(find(table, "person = 'other'")["found"]) == 1
    run(table, "delete_branch", branch="fix")
    details = find(table, "person = 'other'")
    assert not details["proven"] and [u["path"].partition("/")[0] for u in details["unchecked"]] == ["dt=x"]


def test_a_dropped_column_of_the_same_name_is_no_proof(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "alter_table", change=("drop column person",))
    run(table, "alter_table", change=("add column person STRING",))
    details = find(table)
    assert not details["proven"] and len(details["unchecked"]) == len(holding(table)) == 2


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("person = 'a' AND n = 2", {"merge_engine": "partial-update"}),
        ("person IS NULL", {"merge_engine": "partial-update"}),
        ("n = 4", {"merge_engine": "aggregation", "fields__n__aggregate_function": "sum"}),
    ],
    ids=str,
)
def test_a_condition_that_no_stored_row_tells_is_refused(tmp_path: Path, where: str, options: dict[str, str]) -> None:
    """Readers see a row that no file holds: of several versions of a key."""
    columns = {"k": "INT NOT NULL", "person": "STRING", "n": "INT"}
    table = make_table(tmp_path, columns, primary_keys=["k"], bucket="1", **options)
    for row in ({"k": 1, "person": "a", "n": 2}, {"k": 1, "n": 2}):
        write_arrow(table, rows_of(columns, [row]))
    with pytest.raises(UnsupportedFeatureError, match="a row is merged from several stored ones"):
        run(table, "find_rows", where=where)
    assert find(table, "k = 1 AND person = 'a' OR k IN (1, 2) AND person >= 'a' AND person <= 'b'")["rows"] == 1


def test_a_literal_that_the_column_can_not_hold_is_refused(tmp_path: Path) -> None:
    """Cut to the column's digits it would be equal to another row's value, which an erasure would take."""
    columns = {"k": "INT NOT NULL", "t": "TIMESTAMP(3)", "d": "DECIMAL(8, 2)"}
    table = make_table(tmp_path, columns)
    times = [dt.datetime(2026, 1, 1, microsecond=ms * 1000) for ms in (123, 124)]
    write_arrow(table, rows_of(columns, [{"k": 1, "t": t} for t in times]))
    assert find(table, "t = '2026-01-01T00:00:00.123000'")["rows"] == 1
    for where in ("t = '2026-01-01T00:00:00.123456'", "k < 99999999999", "k = 99999999999999999999999", "d < 1.234"):
        with pytest.raises(InvalidInputError, match="is not a value of column"):
            run(table, "find_rows", where=where)


def test_an_index_that_nothing_refers_to_is_no_proof(tmp_path: Path) -> None:
    """Its values are not read, and nothing says of what type it is; those of hashes and vectors have other names."""
    table = plain(tmp_path)
    table.store.create("index/btree-9b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0", b"secret")
    table.store.create("index/index-9b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0", b"12345")
    details = find(table, "k = 77")
    assert not details["proven"]
    assert [u["path"] for u in details["unchecked"]] == ["index/btree-9b0f7d2c-93a1-4a0e-8a34-1f2e3d4c5b6a-0"]
    assert any("backups" in text for text in details["not_searched"])


def test_a_char_is_found_with_its_padding_and_without(tmp_path: Path) -> None:
    columns = {"k": "INT NOT NULL", "c": "CHAR(6)"}
    table = make_table(tmp_path, columns)
    for k, text in enumerate(("secret", "ab", "ab    ")):
        write_arrow(table, rows_of(columns, [{"k": k, "c": text}]))
    assert find(table, "c = 'ab'")["rows"] == find(table, "c IN ('ab    ', 'x')")["rows"] == 2
    with pytest.raises(UnsupportedFeatureError, match="use = or IN"):
        run(table, "find_rows", where="c > 'a'")


def test_an_orc_file_that_no_manifest_names_is_no_proof_by_a_time_in_a_zone(tmp_path: Path) -> None:
    """Paimon wrote such times in two ways, and the schema that tells which is not known."""
    columns = {"k": "INT NOT NULL", "t": "TIMESTAMP(3) WITH LOCAL TIME ZONE"}
    table = make_table(tmp_path, columns)
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    path = Path(table.store.uri.removeprefix("file://")) / "bucket-0" / UNLISTED.replace(".parquet", ".orc")
    path.parent.mkdir()
    orc.write_table(pa.table({"k": pa.array([1], pa.int32()), "t": pa.array([moment], pa.timestamp("ns"))}), path)
    details = find(table, "t = '2027-01-01T00:00:00Z'")
    assert not details["proven"] and "in which of two ways" in details["unchecked"][0]["reason"]
    assert find(table, "k = 2")["proven"] and find(table, "k = 1")["rows"] == 1


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("k = 'ann@x.org'", r"\*\*\* is not a value of column 'k'"),
        ("person = ann", r"a literal expected, not \*\*\*"),
        ("person = 'ann' k = 1", r"the end expected, not \*\*\*"),
        ("person = ann@x.org", r"a literal expected, not \*\*\* \(line 1, position 10\)"),
        ("'ann' = 'ann'", r"a column expected, not \*\*\*"),
        ("persn = 'ann'", r"no column 'persn' \(columns: k, person\)"),
        ("(person = 'ann'", r"ends too early: \) expected"),
    ],
)
def test_no_error_repeats_what_may_name_a_person(tmp_path: Path, where: str, says: str) -> None:
    table = make_table(tmp_path, {"k": "INT NOT NULL", "person": "STRING"})
    write_arrow(table, rows_of({"k": "INT NOT NULL", "person": "STRING"}, [{"k": 1, "person": "a"}]))
    with pytest.raises(InvalidInputError, match=says) as caught:
        run(table, "find_rows", where=where)
    assert "ann" not in str(caught.value)
