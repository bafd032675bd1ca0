"""The audit of a table: what a publish records, what stays after its snapshot and branch are gone, and how it reads."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.cli.main import run as look_up
from airflow_paimon.core.audit.audit_record import AuditRecord
from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.audit.text import render
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.publish.audit_properties import MAX_CHANGES, MAX_CHANGES_BYTES, record_path
from airflow_paimon.core.publish.diff_record import MAX_BYTES
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.sql_text.recorded import sql_properties
from airflow_paimon.core.table.made_by import MAX_TEXT, digest, function_properties, stored_bytes
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, cut_off, forget_results, make_table, message, rewrite, run
from tests.strict_metadata import findings

EXPIRE: Mapping[str, Any] = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True,
                             "keep_undo": False, "retry_window": "0 s"}  # fmt: skip
SQL = "UPDATE branch SET v = 'x' WHERE k = 7"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = make_table(tmp_path / "wh", primary=False)
    append(made, "a")
    append(made, "b")
    return made


def correction(view: Table, dt: str, seq: int = 0, **more: str) -> None:
    """One commit on a branch, as ``correct_branch`` describes it."""
    said = {
        "airflow-paimon.operation": "correct_branch",
        "airflow-paimon.details": json.dumps({"rows_updated": 3, "notes": ["a text"]}),
        **(more or sql_properties(view.schemas(), SQL, ["p=d.p@1"])),
    }
    commit_append(view, [message(view, dt, seq=seq)], CommitOptions(properties=said), planned_on=view.latest_snapshot())


def branch_with_correction(table: Table, name: str = "fix", dt: str = "a", seq: int = 0) -> Table:
    run(table, "create_branch", branch=name, snapshot=table.latest_snapshot_id(), owner="ann", reason="wrong rate")
    correction(table.branch(name), dt, seq)
    return table.branch(name)


def test_a_publish_and_its_undo_are_told_after_the_branch_and_the_snapshots_are_gone(table: Table) -> None:
    fix = branch_with_correction(table)
    rewrite(fix, "b")
    run(table, "merge_branch", branch="fix", requested_by="ann", approved_by="bob", four_eyes=True,
        writers_stopped=True, operation_id="run-1")  # fmt: skip
    tag = table.snapshot(3).properties["airflow-paimon.undo-tag"]
    run(table, "rollback_to", tag=tag, keep_later=True, requested_by="eve", approved_by="bob", operation_id="run-2")
    run(table, "delete_branch", branch="fix")
    assert list(findings(Path(table.store.uri.removeprefix("file://")).parent.parent)) == []
    before = read_audit(table)
    for number in (3, 4):
        table.store.delete(table.paths.snapshot(number))
    append(table, "z")
    publish, undo = read_audit(table)
    assert [publish.is_there, undo.is_there] == [False, False]
    assert [r.to_json() | {"is_there": True} for r in (publish, undo)] == [r.to_json() for r in before]
    assert (publish.kind, publish.branch, publish.from_branch, publish.from_snapshot) == ("publish", "main", "fix", 4)
    assert (publish.owner, publish.reason, publish.requested_by, publish.approved_by) == (
        "ann", "wrong rate", "ann", "bob")  # fmt: skip
    assert (publish.four_eyes, publish.operation_id, publish.undone_by) == (True, "run-1", 4)
    assert (publish.snapshot_before, publish.snapshot, publish.base_snapshot, publish.commits) == (2, 3, 2, 2)
    rewritten, corrected = publish.changes
    assert (corrected["snapshot"], corrected["sql"], corrected["rows_updated"]) == (3, SQL, 3)
    assert corrected["views"] == '["p=d.p@1"]'
    assert (rewritten["snapshot"], "sql" in rewritten) == (4, False)
    sizes = {e: publish.statistics[f"{e}_added"] for e in ("files", "bytes")}
    assert (sizes["files"], sizes["bytes"] > 0, publish.statistics["files_deleted"]) == (2, True, 1)
    assert publish.duration_ms is not None
    assert publish.duration_ms < 60_000
    assert (undo.kind, undo.target_snapshot, undo.requested_by, undo.undone_by) == ("undo", 2, "eve", None)


def test_a_retry_completes_the_record_of_a_try_that_was_cut_off(table: Table) -> None:
    branch_with_correction(table)
    values: dict[str, Any] = {"branch": "fix", "writers_stopped": True, "operation_id": "run-1"}
    run(table, "merge_branch", **values)
    committed = table.snapshot(3)
    table.store.delete(record_path("main", committed))
    forget_results(table)
    assert [r.kind for r in read_audit(table)] == ["publish"], "the snapshot tells it as well"
    result = run(table, "merge_branch", **values)
    assert result.details["replayed"]
    assert "changes" not in result.details
    assert table.store.read(record_path("main", committed)) == committed.to_bytes()


@pytest.mark.parametrize("by", ["expiry", "repair"])
def test_what_was_cut_off_before_its_record_and_never_retried_is_recorded_before_its_snapshot_goes(
    table: Table, by: str
) -> None:
    branch_with_correction(table)
    run(table, "merge_branch", branch="fix", writers_stopped=True, requested_by="ann", undo_retention="1 ms")
    run(table, "rollback_to", snapshot=2, keep_later=True, requested_by="eve", undo_retention="1 ms")
    paths = [record_path("main", table.snapshot(number)) for number in (3, 4)]
    run(table, "delete_branch", branch="fix")
    append(table, "z")
    records = [table.store.read(path) for path in paths]
    for path in paths:
        table.store.delete(path)
    found = {f["id"]: f["severity"] for f in run(table, "check_table").details["findings"]}
    assert [found[f"unrecorded-publish:main/{number}"] for number in (3, 4)] == ["info", "info"]
    told = [r.to_json() | {"is_there": False} for r in read_audit(table)]
    if by == "repair":
        run(table, "repair_table")
        assert [table.store.read(path) for path in paths] == records
        assert "unrecorded-publish" not in str(run(table, "check_table").details["findings"])
    later = str(int(time.time() * 1000) + 1000)
    planned = run(table, "expire_snapshots", **EXPIRE, now=later, dry_run=True).details["plan"]["actions"]
    put = [a["path"] for a in planned if a["path"] in paths]
    assert put == (paths if by == "expiry" else [])
    run(table, "expire_snapshots", **EXPIRE, now=later)
    assert table.snapshot_ids() == [5]
    assert [table.store.read(path) for path in paths] == records
    assert [r.to_json() for r in read_audit(table)] == told


def test_an_expiry_that_is_killed_loses_no_record(table: Table) -> None:
    branch_with_correction(table)
    run(table, "merge_branch", branch="fix", writers_stopped=True, undo_retention="1 ms")
    run(table, "delete_branch", branch="fix")
    append(table, "z")
    table.store.delete(record_path("main", table.snapshot(3)))
    told = read_audit(table)[0].to_json() | {"is_there": False}
    later, step = str(int(time.time() * 1000) + 1000), 1
    while cut_off(table, step, "expire_snapshots", **EXPIRE, now=later):
        assert [r.to_json() | {"is_there": False} for r in read_audit(table)] == [told]
        step += 1
    assert step > 3
    assert (table.snapshot_ids(), [r.to_json() for r in read_audit(table)]) == ([4], [told])


def test_corrections_that_wait_are_listed_until_they_are_published_and_shared_publishes_once(table: Table) -> None:
    fix = branch_with_correction(table)
    assert [(r.kind, r.branch, r.snapshot, r.reason) for r in read_audit(table)] == [
        ("correction", "fix", 3, "wrong rate")]  # fmt: skip
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    run(table, "create_branch", branch="later", snapshot=3)
    assert [(r.kind, r.branch) for r in read_audit(table)] == [("publish", "main")], "its base is main's publish"
    correction(fix, "b", **function_properties("m:f", "sha256:0"))
    publish, waiting = read_audit(table)
    assert (waiting.kind, waiting.snapshot, waiting.changes[0]["function"]) == ("correction", 4, "m:f")
    assert read_audit(table, since_ms=publish.time_ms, until_ms=publish.time_ms + 1)[:1] == [publish]
    assert read_audit(table, until_ms=publish.time_ms) == []
    run(table, "delete_branch", branch="fix")
    branch_with_correction(table, "fix", "b", seq=5)
    assert [(r.kind, r.snapshot) for r in read_audit(table)] == [("publish", 3), ("correction", 4)], (
        "a branch of the same name, whose snapshot 3 is main's publish"
    )


def diff_of(branch: str = "fix", snapshot: int = 3, **more: Any) -> dict[str, Any]:
    """The result of ``diff_branches``: a changed row, and one that was added."""
    changed = {"before": {"k": 7, "v": "old", "dt": "a"}, "after": {"k": 7, "v": "new", "dt": "a"}}
    partition = {"partition": "dt=a", "added": 1, "changed": 1, "deleted": 0, "unchanged": 5, "unchanged_exact": True,
                 "samples": {"changed": [changed], "added": [{"k": 8, "v": "x", "dt": "a"}]}}  # fmt: skip
    details = {"branch": branch, "against": "base", "branch_snapshot": snapshot, "against_snapshot": 2, "key": ["k"],
               "total": {"added": 1, "changed": 1, "deleted": 0, "unchanged": 9, "unchanged_exact": True},
               "partitions": [partition], "partitions_differing": 1}  # fmt: skip
    return {"operation": "diff_branches", "table": "d.t", "details": {**details, **more}}


def as_file(folder: Path, value: Any) -> str:
    path = folder / "diff.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def publish_with(table: Table, tmp_path: Path, value: Any, **more: Any) -> Any:
    diff = as_file(tmp_path, value)
    return run(table, "merge_branch", branch="fix", writers_stopped=True, diff=diff, **more)


def test_a_publish_keeps_the_diff_that_was_looked_at_and_when_it_was_approved(table: Table, tmp_path: Path) -> None:
    branch_with_correction(table)
    said = {"approved_by": "bob", "approved_at": "2026-11-18T09:12:44+00:00"}
    first = publish_with(table, tmp_path, diff_of(), **said, operation_id="one")
    assert "warnings" not in first.details
    again = run(table, "merge_branch", branch="fix", writers_stopped=True, approved_by="bob", operation_id="one")
    assert (again.details["replayed"], "diff" in again.details) == (True, False), "the same request without it"
    run(table, "rollback_to", snapshot=2, keep_later=True, reason="wrong after all")
    publish, undo = read_audit(table)
    assert (publish.reason, publish.approved_at) == ("wrong rate", said["approved_at"])
    assert (publish.diff["total"]["changed"], publish.diff["partitions_differing"]) == (1, 1)
    assert publish.diff["partitions"] == [
        {"partition": "dt=a", "added": 1, "changed": 1, "deleted": 0, "unchanged": 5}]  # fmt: skip
    assert "samples" not in publish.diff and '"old"' not in table.snapshot(publish.snapshot).to_bytes().decode()
    assert (undo.kind, undo.reason, undo.diff) == ("undo", "wrong after all", {})
    text = render([publish, undo], "markdown")
    assert "approved by: bob at 2026-11-18T09:12:44+00:00" in text
    assert "differences: 1 rows added, 1 rows changed, 0 rows deleted in 1 partitions: dt=a" in text
    assert json.loads(next(csv.DictReader(io.StringIO(render([publish], "csv"))))["diff"]) == publish.diff


def test_a_wide_diff_is_bounded_in_bytes_and_shows_what_fits(table: Table, tmp_path: Path) -> None:
    one = {"added": 9, "changed": 0, "deleted": 0, "unchanged": 0}
    many = [{**one, "partition": f"dt={n:05}" + '"\u00e4\\' * 400} for n in range(50)]
    branch_with_correction(table)
    publish_with(table, tmp_path, diff_of(partitions=many, partitions_differing=4000))
    text = table.snapshot(3).properties["airflow-paimon.diff"]
    assert stored_bytes(text) <= MAX_BYTES
    kept = json.loads(text)
    assert (len(kept["partitions"]), kept["partitions_differing"]) == (20, 4000)


def test_a_diff_of_another_snapshot_is_left_out_with_a_warning_and_publishes_all_the_same(
    table: Table, tmp_path: Path
) -> None:
    fix = branch_with_correction(table)
    correction(fix, "b", seq=1)
    result = publish_with(table, tmp_path, diff_of())
    assert result.details["warnings"] == [
        "the audit does not contain the diff: it compared snapshot 3 of the branch, not 4"]  # fmt: skip
    assert (table.latest_snapshot_id(), read_audit(table)[0].diff) == (3, {})


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("{", r"--diff\) .* can't be read as JSON"),
        ("[]", "is not a result of diff_branches"),
        ({"operation": "merge_branch", "details": {}}, "is not a result of diff_branches"),
        (diff_of(total=3), "is not a result of diff_branches"),
        (diff_of(branch="other"), "is of branch 'other' of d.t, not of 'fix'"),
        ({**diff_of(), "table": "d.u"}, "is of branch 'fix' of d.u, not of 'fix'"),
    ],
)
def test_what_is_no_diff_of_the_branch_is_refused_before_anything(
    table: Table, tmp_path: Path, value: Any, match: str
) -> None:
    branch_with_correction(table)
    before = table.store.walk("")
    with pytest.raises(InvalidInputError, match=match):
        publish_with(table, tmp_path, value)
    with pytest.raises(InvalidInputError, match=r"--diff\) '/none.json' can't be read"):
        run(table, "merge_branch", branch="fix", diff="/none.json", dry_run=True)
    with pytest.raises(InvalidInputError, match=r"d\.t: approved_at: .*no time zone"):
        run(table, "merge_branch", branch="fix", approved_at="2026-11-18T09:12:44")
    assert table.store.walk("") == before


def test_what_another_program_wrote_as_a_diff_is_no_diff(table: Table) -> None:
    branch_with_correction(table)
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    committed = table.snapshot(3)
    for text in ("[1]", "{}", '{"total": 3}', '{"total": {}, "partitions": [3]}'):
        odd = replace(committed, properties={**committed.properties, "airflow-paimon.diff": text})
        table.store.replace(table.paths.snapshot(3), odd.to_bytes())
        assert read_audit(table)[0].diff == {}, text


def test_texts_are_bounded_by_the_bytes_that_they_take_in_the_snapshots_file(table: Table) -> None:
    fix = branch_with_correction(table)
    for number, letter in enumerate(("\u6f22", '"', "\n", "\U0001f642", "x")):
        correction(fix, "b", seq=number, **sql_properties(fix.schemas(), f"{number} {letter * 9000}"))
        assert stored_bytes(fix.snapshot(4 + number).properties["airflow-paimon.sql"]) <= MAX_TEXT
    for number in range(MAX_CHANGES):
        said = sql_properties(fix.schemas(), f"{number} " + '"' * 9000, ["\u6f22" * 9000] * 3)
        correction(fix, "b", seq=9 + number, **said)
    run(table, "merge_branch", branch="fix", writers_stopped=True, reason="\u6f22" * 9000)
    text = table.snapshot(3).properties["airflow-paimon.changes"]
    assert stored_bytes(text) <= MAX_CHANGES_BYTES
    (publish,) = read_audit(table)
    assert publish.commits == MAX_CHANGES + 6
    assert 5 < len(publish.changes) < MAX_CHANGES
    assert publish.changes[0]["snapshot"] == fix.latest_snapshot_id(), "the newest ones"
    assert len((publish.reason or "").encode()) <= 1000
    assert len(table.snapshot(3).to_bytes()) < 50_000


def test_of_a_range_only_the_records_are_read_that_may_be_in_it(table: Table) -> None:
    branch_with_correction(table)
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    (record,) = table.store.names("_airflow_paimon/audit/main")
    path = Path(table.store.uri.removeprefix("file://")) / "_airflow_paimon/audit/main" / record
    now, day = time.time(), 86_400
    path.write_bytes(b"{")
    os.utime(path, (now - 3 * day, now - 3 * day))
    assert [r.kind for r in read_audit(table, since_ms=int((now - day) * 1000))] == ["publish"], "by its snapshot"
    for since_ms in (None, int((now - 2.5 * day) * 1000)):
        with pytest.raises(FormatError, match=record):
            read_audit(table, since_ms=since_ms)


def test_a_long_branch_is_bounded(table: Table) -> None:
    fix = branch_with_correction(table)
    for number in range(MAX_CHANGES + 5):
        correction(fix, "b", seq=number, **sql_properties(fix.schemas(), f"SELECT {'x' * 5000} {number}"))
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    (publish,) = read_audit(table)
    assert (publish.commits, len(publish.changes)) == (MAX_CHANGES + 6, MAX_CHANGES)
    assert publish.changes[0]["snapshot"] == fix.latest_snapshot_id()
    assert len(table.snapshot(3).to_bytes()) < 40_000


def test_what_the_table_hides_now_is_hidden_in_old_records(table: Table) -> None:
    branch_with_correction(table)
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    alter_table(table, [SetOption(key="airflow-paimon.masked-columns", value="v")])
    assert read_audit(table)[0].changes[0]["sql"] == "UPDATE branch SET v = '***' WHERE k = ***"
    assert "sql_digest" not in read_audit(table)[0].changes[0]
    alter_table(table, [SetOption(key="airflow-paimon.record-sql", value="none")])
    assert not {"sql", "sql_digest"} & read_audit(table)[0].changes[0].keys()


def test_the_digest_of_a_statement_that_was_recorded_without_values_is_shown(table: Table) -> None:
    alter_table(table, [SetOption(key="airflow-paimon.record-sql", value="masked")])
    append(table, "c")
    branch_with_correction(table)
    assert read_audit(table)[0].changes[0]["sql_digest"] == digest("UPDATE branch SET v = '***' WHERE k = ***")


def test_what_main_hides_now_is_hidden_in_corrections_of_branches_that_are_older(table: Table) -> None:
    branch_with_correction(table)
    alter_table(table, [SetOption(key="airflow-paimon.masked-columns", value="v")])
    (waiting,) = read_audit(table)
    assert (waiting.kind, waiting.changes[0]["sql"]) == ("correction", "UPDATE branch SET v = '***' WHERE k = ***")
    alter_table(table, [SetOption(key="airflow-paimon.record-sql", value="none")])
    assert "sql" not in read_audit(table)[0].changes[0]


def test_a_broken_record_is_named(table: Table) -> None:
    branch_with_correction(table)
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    path = record_path("main", table.snapshot(3))
    table.store.replace(path, b"{")
    with pytest.raises(FormatError, match=path):
        read_audit(table)


HOSTILE = '=HYPERLINK("http://x") <b>*hi*</b>\n# up | `x`'


def hostile() -> AuditRecord:
    return AuditRecord(
        table="d.t", kind="publish", branch="main", operation="merge_branch", time_ms=0, snapshot=2, snapshot_before=1,
        identity="i", is_there=True, user=HOSTILE, reason=HOSTILE, approved_by=HOSTILE, checks={HOSTILE: "passed"},
        changes=[{"snapshot": 3, "operation": HOSTILE, "sql": HOSTILE}], statistics={"files_added": 1200},
    )  # fmt: skip


def test_no_text_becomes_a_formula_or_markup() -> None:
    (line,) = csv.DictReader(io.StringIO(render([hostile()], "csv")))
    assert line["reason"] == f"'{HOSTILE}"
    assert json.loads(line["changes"])[0]["sql"] == HOSTILE
    assert (line["committed"], line["files_added"], line["bytes_added"]) == ("1970-01-01T00:00:00.000Z", "1200", "")
    text = render([hostile()], "markdown")
    outside = [part for part in text.splitlines() if not part.startswith("    ")]
    assert not any("<b>" in part or part.startswith("# ") for part in outside)
    assert "statistics: files added 1,200" in text
    assert json.loads(render([hostile()], "json"))[0]["reason"] == HOSTILE


def test_the_command_line_shows_it(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    branch_with_correction(table)
    run(table, "merge_branch", branch="fix", writers_stopped=True, requested_by="ann", approved_by="bob")
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    asked = ["audit", "--warehouse", warehouse, "--table", "d.t"]
    assert look_up(asked) == 0
    heads, line = capsys.readouterr().out.splitlines()
    assert heads.split()[:2] == ["SNAPSHOT", "WHAT"]
    for word in ("publish", "main", "fix", "ann", "bob", "wrong rate", SQL):
        assert word in line
    assert look_up([*asked, "--format", "csv", "--from", "2020-01-01"]) == 0
    (record,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert record["approved_by"] == "bob"
    assert look_up([*asked, "--to", "2020-01-01T00:00:00Z"]) == 0
    assert "(no records)" in capsys.readouterr().out
    assert look_up([*asked, "--from", "yesterday"]) == 2
    assert "--from takes a date" in capsys.readouterr().err
