"""Several statements in the file of ``correct_branch --sql``: one commit with the rows that one by one gives."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.errors import ConflictError, InvalidInputError, PaimonError, UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.sql_text.tokens import split_statements
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import arrow_write, read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark.jobs import correct_statements
from airflow_paimon.spark.jobs.correct_statements import correct_by_statements
from airflow_paimon.spark.statements.parse import parse_plan
from airflow_paimon.spark.statements.statement_plan import Fragment, Statement, Target
from tests.data.test_open_buckets import pretend
from tests.spark.jobs.operations import correct, in_tasks, run
from tests.stores import Crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (("k", "INT NOT NULL"), ("v", "STRING"), ("n", "INT"), ("dt", "STRING NOT NULL"))
KINDS = {
    "keyed": {"bucket": "2"},
    "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": "5"},
    "vectors": {"bucket": "2", "deletion-vectors.enabled": "true"},
    "append": {"bucket": "-1"},
    "tracked": {"bucket": "-1", "row-tracking.enabled": "true"},
    "marked": {"bucket": "-1", "row-tracking.enabled": "true", "deletion-vectors.enabled": "true"},
}
TWO = "UPDATE branch SET v = 'x' WHERE k = 1; DELETE FROM branch WHERE k = 2"
STATEMENTS = (
    "UPDATE branch SET v = 'a;b', n = 1 WHERE k < 6",
    "DELETE FROM branch WHERE v = 'a;b' AND k IN (1, 2) -- what the first one has made; both days",
    "INSERT INTO branch VALUES (70, 'new', 7, 'c'), (71, 'new', 8, 'a')",
    "MERGE INTO branch t USING (SELECT k, max(n) AS n FROM branch WHERE v = 'new' GROUP BY k) s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET n = s.n * 10",
    "UPDATE branch SET v = concat(v, '!') WHERE k IN (5, 71)",
)


def make(warehouse: Path, kind: str) -> Table:
    keyed = kind in ("keyed", "dynamic", "vectors")
    table = create_table(
        str(warehouse),
        "d.t",
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=["dt", "k"] if keyed else [],
        options=KINDS[kind],
    )
    for dt in "ab":
        rows = [{"k": k, "v": f"{dt}{k}", "n": k, "dt": dt} for k in range(10)]
        write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    for branch in ("fix", "single"):
        run(warehouse, "create_branch", branch=branch, snapshot=table.latest_snapshot_id())
    return table


def rows_of(table: Table, *more: str) -> list[tuple[Any, ...]]:
    columns = [*(name for name, _ in COLUMNS), *more]
    return sorted((tuple(r.values()) for r in read_arrow(table, columns=columns).to_pylist()), key=repr)


def data_files(table: Table) -> set[str]:
    return {path.rpartition("/")[2] for path in table.store.walk("") if "/data-" in path}


def live(table: Table) -> set[str]:
    return {e.file.file_name for e in live_entries(table, table.latest_snapshot()).values()}


@pytest.mark.every(6, first=5)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_together_is_one_commit_with_the_rows_of_one_after_another(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = make(tmp_path, kind)
    fix, single = table.branch("fix"), table.branch("single")
    before = data_files(table)
    with in_tasks() if kind in ("keyed", "tracked", "marked") else nullcontext():
        done = correct(spark, tmp_path, "\n;".join(STATEMENTS) + ";", operation_id="x")
    for statement in STATEMENTS:
        correct(spark, tmp_path, statement, branch="single")
    head = table.latest_snapshot_id() or 0
    assert (fix.latest_snapshot_id(), single.latest_snapshot_id()) == (head + 1, head + len(STATEMENTS))
    tracked = ("_ROW_ID",) if kind in ("tracked", "marked") else ()
    assert rows_of(fix, *tracked) == rows_of(single, *tracked)
    assert len(rows_of(fix)) == 18
    assert live(fix) | before == before | (data_files(table) - live(single) - _made_by(single)), "no file is left over"
    with_index = [s for b in (fix, single) for s in b.snapshots()] if kind in ("dynamic", "marked") else []
    assert set(table.store.names("index")) == {i.file_name for s in with_index for i in read_index_entries(table, s)}
    each = done.details["statements"]
    assert [one["statement"] for one in each] == ["UPDATE", "DELETE", "INSERT", "MERGE", "UPDATE"]
    assert [one["rows"] for one in each] == [12, 4, 2, 2, 3]
    assert (done.details["rows"], done.details["rows_deleted"]) == (23, 4)
    assert (done.snapshot_before, done.snapshot_after) == (head, head + 1)
    assert "a;b" in str(fix.snapshot(head + 1).properties)
    again = correct(spark, tmp_path, "\n;".join(STATEMENTS), operation_id="x")
    assert (again.snapshot_after, again.details["replayed"], again.details["statements"]) == (head + 1, True, each)
    if kind in ("tracked", "marked"):
        versions = {row[0]: row[-1] for row in rows_of(fix, "_SEQUENCE_NUMBER") if row[-2] == "a"}
        assert {k for k, version in versions.items() if version == 3} == {0, 3, 4, 5, 71}, "all changed by one commit"
        assert max(versions.values()) == 3
    findings = run(tmp_path, "check_table", verify_keys=True).details["findings"]
    assert not [f for f in findings if "orphan" not in f["id"]]
    assert run(tmp_path, "merge_branch", branch="fix", writers_stopped=kind == "dynamic").changed
    assert rows_of(table) == rows_of(single)


def _made_by(branch: Table) -> set[str]:
    """The files that earlier commits of a branch made, and later ones replaced."""
    return {
        e.file.file_name for at in branch.snapshots() for e in live_entries(branch, at).values()
    }  # fmt: skip


def test_an_overwrite_may_be_among_them(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path, "keyed")
    text = "UPDATE branch SET v = 'x' WHERE dt = 'a'; INSERT OVERWRITE branch PARTITION (dt = 'b') SELECT k, v, n FROM branch WHERE dt = 'a' AND k < 3"  # noqa: E501
    done = correct(spark, tmp_path, text)
    assert [one["statement"] for one in done.details["statements"]] == ["UPDATE", "INSERT OVERWRITE"]
    fix = Table(*_opened(tmp_path), branch_name="fix")
    assert [row for row in rows_of(fix) if row[3] == "b"] == [(k, "x", k, "b") for k in range(3)]
    assert fix.latest_snapshot_id() == 3


def _opened(warehouse: Path) -> tuple[Any, str]:
    from airflow_paimon import open_table

    table = open_table(str(warehouse), "d.t")
    return table.store, table.name


@pytest.mark.parametrize(
    ("sql", "more"),
    [
        (TWO.partition(";")[0], {}),
        (TWO, {}),
        ("SELECT k, 'x' AS v, n, dt FROM branch WHERE k = 1 AND dt = 'a'", {"partitions": ["dt=a"]}),
    ],
)
def test_files_that_a_job_on_the_branch_has_open_are_not_replaced(
    spark: SparkSession, tmp_path: Path, sql: str, more: dict[str, Any]
) -> None:
    table = make(tmp_path, "vectors")
    pretend(table)  # the branch begins with a commit of the job on main, which is none on the branch
    fix = table.branch("fix")
    correct(spark, tmp_path, sql, **more)
    write_arrow(fix, pa.table({"k": [1], "v": ["late"], "n": [1], "dt": ["a"]}))
    pretend(fix)
    before = rows_of(fix)
    with pytest.raises(UnsafeOperationError, match=r"fix: a running job may have dt=a/bucket-0.* open") as refused:
        correct(spark, tmp_path, sql, **more)
    assert refused.value.code == "open-writer" and rows_of(fix) == before


@pytest.mark.parametrize(
    ("sql", "message", "more"),
    [
        ("UPDATE branch SET v = 'x' WHERE k = 1; SELECT * FROM branch", "statement 2 of 2 is a SELECT", {}),
        ("UPDATE branch SET v = 'x' WHERE k = 1; DROP TABLE branch", "statement 2 of 2: SQL starts with 'DROP'", {}),
        ("UPDATE branch SET n = 1; UPDATE main SET v = 'y' WHERE k = 1", "statement 2 of 2: the target", {}),
        ("UPDATE branch SET v = 'x' WHERE k = 1; DELETE FROM branch", "statement 2 of 2: .*all-rows", {}),
        ("UPDATE branch SET v = 'x' WHERE k = 1; UPDATE branch SET v = CAST('x' AS INT) WHERE k = 2", "2 of 2", {}),
        ("UPDATE branch SET v = 'x' WHERE k = 1; UPDATE branch SET nope = 1 WHERE k = 2", "2 of 2: .*nope", {}),
        ("UPDATE branch SET n = 1; UPDATE branch SET v = WHERE k = 2", "2 of 2: Spark can't parse", {}),
        (TWO, "a dry run takes one", {"dry_run": True}),
        (TWO, "engine=connector takes one",
         {"engine": "connector"}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_changes_nothing(
    spark: SparkSession, tmp_path: Path, sql: str, message: str, more: dict[str, Any]
) -> None:
    table = make(tmp_path, "append")
    before = data_files(table)
    with pytest.raises(InvalidInputError, match=message):
        correct(spark, tmp_path, sql, **more)
    assert data_files(table) == before
    assert table.branch("fix").latest_snapshot_id() == 2


def test_statements_that_change_nothing_together_commit_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "append")
    done = correct(spark, tmp_path, "DELETE FROM branch WHERE k > 99; UPDATE branch SET v = 'x' WHERE k > 99")
    assert (done.changed, done.snapshot_after, table.branch("fix").latest_snapshot_id()) == (False, 2, 2)


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("when", [1, 2])
def test_a_commit_of_another_writer_in_between_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    """Before the first statement's own commit, which lands behind it, and after it: all statements run again."""
    table = make(tmp_path, "append")
    fix, seen = table.branch("fix"), []
    real = correct_statements._Together._run_statements

    def beside(self: Any) -> Any:
        if not seen and when == 1:
            seen.append(_insert(fix))
        found = real(self)
        if not seen:
            seen.append(_insert(fix))
        return found

    monkeypatch.setattr(correct_statements._Together, "_run_statements", beside)
    done = correct(
        spark, tmp_path, "UPDATE branch SET v = 'x' WHERE k >= 9; DELETE FROM branch WHERE v = 'x' AND dt = 'a'"
    )
    assert seen and done.snapshot_after == 4
    assert [row for row in rows_of(fix) if row[0] >= 9] == [(9, "x", 9, "b"), (99, "x", 0, "c")]
    assert live(fix) <= data_files(table)

    monkeypatch.setattr(correct_statements._Together, "_run_statements", lambda self: (_insert(fix), real(self))[1])
    monkeypatch.setattr(arrow_write, "ATTEMPTS", 2)
    files = data_files(table)
    with pytest.raises(ConflictError):
        correct(spark, tmp_path, "UPDATE branch SET v = 'y' WHERE k = 1; UPDATE branch SET v = 'z' WHERE k = 2")
    assert len(data_files(table) - files) == 2, "only the other writer's files are there"
    assert len([row for row in rows_of(fix) if row[0] == 99]) == 3


def test_index_files_of_another_writer_are_kept_when_all_run_again(tmp_path: Path) -> None:
    """It commits before the first statement's own commit, which therefore inherits its hash index."""
    table = make(tmp_path, "dynamic")
    fix, schema = table.branch("fix"), read_arrow(table).schema
    values = {"warehouse": str(tmp_path), "table": "d.t", "branch": "fix", "sql": "s.sql", "mode": "upsert"}
    request = build_request("correct_branch", values)
    assert isinstance(request, CorrectBranch)
    context, seen = open_context(request), []

    def put(view: Table, k: int, dt: str) -> None:
        write_arrow(view, pa.Table.from_pylist([{"k": k, "v": "new", "n": 0, "dt": dt}], schema))

    def change(inside: Context, working: Table, statement: Statement) -> OperationResult:
        if not seen:
            put(fix, 1, "c")
        seen.append(statement)
        put(working, 100 + len(seen), "a")
        return context.result(None, branch="fix", changed=True, details={"rows": 1})

    def said(text: str) -> Statement:
        return Statement(kind="INSERT", text=text, target=Target(name=("branch",), alias=None, at=Fragment()))

    done = correct_by_statements(context, request, fix, [said("one"), said("two")], change, CommitIdentity())
    assert (len(seen), done.snapshot_before, done.snapshot_after) == (4, 3, 4)
    assert {row[0] for row in rows_of(fix) if row[1] == "new"} == {1, 103, 104}
    named = {i.file_name for s in fix.snapshots() for i in read_index_entries(fix, s)}
    assert set(table.store.names("index")) == named
    put(fix, 1, "c")
    assert len([row for row in rows_of(fix) if row[3] == "c"]) == 1


def _insert(branch: Table) -> bool:
    write_arrow(branch, pa.Table.from_pylist([{"k": 99, "v": "", "n": 0, "dt": "c"}], read_arrow(branch).schema))
    return True


def test_a_killed_run_leaves_nothing_and_a_retry_does_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, "tracked")
    fix = table.branch("fix")
    metadata = [path for path in table.store.walk("") if "/data-" not in path]
    text = "\n;".join(STATEMENTS)

    def killed(*_: Any, **__: Any) -> Any:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(correct_statements, "take_over", killed)
        patch.setattr(correct_statements._Together, "_discard", lambda *_: None)  # so dies a process
        with pytest.raises(Crash):
            correct(spark, tmp_path, text, operation_id="x")
    left = [path for path in table.store.walk("") if "/data-" not in path]
    assert [path for path in left if path not in metadata and "/operations/" not in path] == []
    assert correct(spark, tmp_path, text, operation_id="x").snapshot_after == 3
    with pytest.raises(InvalidInputError, match="another request"):
        correct(spark, tmp_path, text + "; DELETE FROM branch WHERE k = 0", operation_id="x")
    assert fix.latest_snapshot_id() == 3


def test_restricted_sql_looks_at_each_statement(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path, "append")
    reaching = "UPDATE branch SET v = 'x' WHERE k = 1; INSERT INTO branch SELECT * FROM csv.`/etc/passwd`"
    with pytest.raises(PaimonError) as refused:
        correct(spark, tmp_path, reaching, restricted_sql=True)
    assert refused.value.kind == "unsafe"


def test_pieces_are_what_sparks_parser_takes(spark: SparkSession) -> None:
    pieces = [
        "UPDATE branch SET v = ';' WHERE k = 1", "-- a; b\nDELETE FROM branch WHERE v = 'it''s;'",
        "/* ; /* nested; */ ; */ DELETE FROM branch WHERE v = \"a\\\";\"", "DELETE FROM `a;``b` WHERE v = r'\\'",
        "DELETE FROM branch WHERE v = 'x\\';'",
    ]  # fmt: skip
    assert split_statements(" ;; " + " ;\n".join(pieces) + "; -- the end; ") == pieces
    for piece in pieces:
        parse_plan(spark, piece)
