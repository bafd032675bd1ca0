"""erase_rows: the person's rows go from every branch and from the stored files, everything else stays."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.audit.text import render
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.publish.audit_properties import record_path
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import ManifestListRef, read_manifest_lists
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compaction_tasks import HERE, Workers, run_here
from airflow_paimon.data.erasure.erase_rows import erase_rows
from airflow_paimon.data.files.conform import ROW_KINDS
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.core.metadata_expiry.test_remove_orphan_files import Aged, sound
from tests.core.tables import run
from tests.data.erasure.tables import COLUMNS, WHERE, holding, keyed, plain, upsert
from tests.data.tables import make_table, rows_of
from tests.randomness import moments
from tests.stores import Crash, FaultStore

ALL = {"expire_tags": True, "expire_history": True, "grace": "0 s", "writers_stopped": True}
Rows = list[tuple[Any, ...]]


def erase(
    main: Table, *, store: Any = None, workers: Workers = HERE, where: str = WHERE, **values: Any
) -> OperationResult:
    root = main.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request("erase_rows", {"warehouse": root, "table": main.name, "where": where, "limit": 0, **values})
    context = open_context(request)
    if store is not None:
        context = replace(context, table=replace(context.table, store=store(context.table.store)))
    result = erase_rows(context, request, workers)
    assert "secret" not in str(result.to_json()), "a result holds a value of a row"
    return result


def shown(table: Table) -> Rows:
    return sorted(tuple(row.values()) for row in read_arrow(table).to_pylist())


def without(rows: Rows) -> Rows:
    return [row for row in rows if row[1] != "secret"]


def lived(make: Callable[..., Table], folder: Path, **options: str) -> Table:
    """Main and branch fix have the person's rows, visible ones and hidden ones; so has tag month."""
    table = make(folder, **options)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    if make is keyed:
        upsert(table, "a", [3], kind="-D")
        upsert(table.branch("fix"), "b", [3, 4], person={3: "somebody else"})
    upsert(table, "c", range(5))
    return table


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (plain, {}),
        (plain, {"row_tracking__enabled": "true"}),
        (plain, {"bucket": "2", "bucket_key": "k"}),
        (keyed, {}),
        (keyed, {"changelog_producer": "input"}),
        (keyed, {"bucket": "2", "deletion_vectors__enabled": "true"}),
        (keyed, {"bucket": "-1"}),
        (keyed, {"merge_engine": "partial-update", "partial_update__ignore_delete": "true"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(value.values()) or "default",
)
def test_the_rows_go_from_every_branch_and_then_from_the_files(
    tmp_path: Path, make: Callable[..., Table], options: dict[str, str]
) -> None:
    table = lived(make, tmp_path, **options)
    fix = table.branch("fix")
    before = {"main": shown(table), "fix": shown(fix)}
    assert any(row[1] == "secret" for row in before["main"]), "nothing to erase"

    result = erase(table)
    details = result.details
    assert [one["branch"] for one in details["erased"]] == ["main", "fix"] and not details["complete"]
    assert {"main": shown(table), "fix": shown(fix)} == {name: without(rows) for name, rows in before.items()}
    assert details["branches"] == [] and set(holding(table)) == {one["path"] for one in details["found"]}
    assert {h["kind"] for h in details["references"]} == {"snapshots", "tag", "protective tag"}
    assert {"month", "airflow-paimon-branch-fix"} <= set(table.tag_names()), "nobody asked for their end"

    assert not erase(table, **ALL).details["complete"], "the branch still shares the old files"
    run(table, "delete_branch", branch="fix")
    last = erase(table, **ALL, store=Aged)
    assert last.details["complete"] and last.details["proven"] and holding(table) == {}
    assert shown(table) == without(before["main"])
    sound(table)
    again = erase(table, **ALL, store=Aged)
    assert again.details["complete"] and not again.changed and again.details["erased"] == []


def test_its_snapshots_do_not_name_anybody(tmp_path: Path) -> None:
    table = plain(tmp_path)
    result = erase(table)
    snapshot = table.latest_snapshot()
    assert snapshot is not None and snapshot.operation == "DELETE"
    assert snapshot.properties["airflow-paimon.condition-sha256"] == result.details["condition_sha256"]
    private = [table.store.read(p).decode() for p in table.store.walk("_airflow_paimon")]
    assert "secret" not in json.dumps([snapshot.to_json(), *private])


def test_the_audit_says_who_and_why_also_when_its_snapshots_have_expired(tmp_path: Path) -> None:
    table = lived(plain, tmp_path)
    result = erase(table, reason="ticket 17", requested_by="ann", approved_by="bob", four_eyes=True)
    assert [one["branch"] for one in result.details["erased"]] == ["main", "fix"]
    for one in result.details["erased"]:  # as after a kill: the record is put before the snapshot goes
        view = table.branch(one["branch"])
        table.store.delete(record_path(view.branch_name, view.snapshot(one["snapshot"])))
    run(table, "expire_snapshots", retain_min=1, retain_max=1, grace="0 s", writers_stopped=True)
    upsert(table, "d", [1])
    run(table, "expire_snapshots", retain_min=1, retain_max=1, grace="0 s", writers_stopped=True)
    found = [r for r in read_audit(table) if r.kind == "erasure"]
    assert sorted((r.branch, r.is_there) for r in found) == [("fix", True), ("main", False)]
    said = {(r.reason, r.requested_by, r.approved_by, r.four_eyes) for r in found}
    assert said == {("ticket 17", "ann", "bob", True)}
    assert {r.changes[0]["condition_sha256"] for r in found} == {result.details["condition_sha256"]}
    assert "secret" not in render(found, "json") + render(found, "csv") + render(found, "markdown")


@pytest.mark.parametrize("approved_by", [None, "Ann"])
def test_four_eyes_are_asked_before_anything_is_erased(tmp_path: Path, approved_by: str | None) -> None:
    table = plain(tmp_path)
    before = table.store.walk("")
    with pytest.raises(
        UnsafeOperationError, match=r"erase_rows needs the approval of a second person.*nothing was erased"
    ):
        erase(table, four_eyes=True, requested_by="ann", approved_by=approved_by)
    assert table.store.walk("") == before
    assert erase(table, four_eyes=True, requested_by="ann", dry_run=True).changed, "a plan needs no approval yet"


def test_only_what_reaches_the_rows_expires(tmp_path: Path) -> None:
    """Later snapshots and other tags stay, also beside a consumer that has yet to read the old ones."""
    table = plain(tmp_path)
    run(table, "create_tag", tag="with")
    erase(table)
    run(table, "create_tag", tag="clean")
    upsert(table, "d", range(20, 23))
    upsert(table, "d", range(23, 25))
    table.store.create("consumer/consumer-stream", b'{"nextSnapshot": 2}')
    first = erase(table, **ALL).details
    assert first["consumers"] == [{"branch": "main", "name": "stream", "next_snapshot": 2}] and not first["complete"]
    assert "consumer 'stream'" in first["expired_snapshots"]["branches"]["main"]["retained_by"]["main"]
    assert table.tag_names() == ["clean"] and table.snapshot_ids() == [2, 3, 4, 5]
    table.store.delete("consumer/consumer-stream")
    assert erase(table, **ALL).details["complete"] and holding(table) == {}
    assert table.snapshot_ids() == [3, 4, 5] and table.tag_names() == ["clean"]


def test_a_dry_run_says_what_ends_and_what_stays(tmp_path: Path) -> None:
    table = lived(plain, tmp_path)
    before = {path: table.store.read(path) for path in table.store.walk("")}
    planned = erase(table, dry_run=True, expire_tags=True)
    assert planned.changed and planned.plan_id and not planned.details["complete"]
    assert [(e["kind"], e["branch"]) for e in planned.details["ends"]] == [("tag", "main"), ("tag", "fix")]
    assert {e["kind"] for e in planned.details["stays"]} == {"protective tag", "snapshots"}
    assert [b["branch"] for b in planned.details["branches"]] == ["main", "fix"]
    (rival,) = planned.details["conflicts"]
    assert rival["branch"] == "fix" and rival["way"].startswith("publish it before")
    assert {path: table.store.read(path) for path in table.store.walk("")} == before


def test_a_legal_hold_wins(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "create_tag", tag="case", hold="case 17", held_by="legal")
    before = {path: table.store.read(path) for path in table.store.walk("")}
    with pytest.raises(UnsafeOperationError, match=r"tag 'case' of main is under a legal hold, set by legal"):
        erase(table, **ALL)
    assert {path: table.store.read(path) for path in table.store.walk("")} == before
    assert [h["hold"] for h in erase(table, dry_run=True, **ALL).details["stays"] if h["kind"] == "tag"] == ["case 17"]
    run(table, "delete_tag", tag="case", release_hold=True)
    assert erase(table, **ALL).details["complete"]


def test_files_wait_for_the_grace_time_and_orphans_for_their_age(tmp_path: Path) -> None:
    table = plain(tmp_path)
    orphan = f"dt=a/bucket-0/data-{uuid.uuid4()}-0.parquet"
    source = next(path for path in holding(table) if path.startswith("dt=a/"))
    table.store.create(orphan, table.store.read(source))
    first = erase(table, expire_history=True).details
    assert first["expired_snapshots"]["branches"]["main"]["trash"]["entries"] == 2 and not first["complete"]
    assert first["orphan_files"]["files"] == 0 and set(holding(table)) == {one["path"] for one in first["found"]}
    assert {h["kind"] for h in first["references"]} == {"trash"} and first["files"]["unreached"] == 1
    last = erase(table, store=Aged).details
    assert last["complete"] and holding(table) == {} and last["orphan_files"]["files"] == 1


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    """No row is lost, and the next run completes it."""
    made = lived(keyed, tmp_path / "made")
    run(made, "delete_branch", branch="fix")
    for step in moments(200, 15):
        shutil.copytree(tmp_path / "made", tmp_path / str(step))
        table = open_table(str(tmp_path / str(step)), made.name)
        before = shown(table)

        def faulty(store: Any, at: int = step) -> Any:
            return FaultStore(Aged(store), fail_at=at, error=Crash(), after=at % 2 == 0)

        try:
            erase(table, store=faulty, operation_id="op", **ALL)
        except Crash:
            assert shown(table) in (before, without(before))
        else:
            break
        done = erase(table, store=Aged, operation_id="op", **ALL)
        assert done.details["complete"] or done.details["unchecked"] == [], done.details
        assert shown(table) == without(before)
        assert erase(table, store=Aged, **ALL).details["complete"] and holding(table) == {}
        sound(table)
    else:
        raise AssertionError("it never ended")


def test_a_commit_in_between_is_looked_at_again(tmp_path: Path) -> None:
    table, raced = keyed(tmp_path), list[bool]()

    def late(works: Any) -> Any:
        outputs = list(run_here(works))
        if not raced:
            raced.append(True)
            upsert(table, "a", [3, 99])
        return outputs

    before = without(shown(table))
    details = erase(table, workers=Workers(late)).details
    assert raced and details["branches"] == []
    assert [(one["branch"], one["rows"]) for one in details["erased"]] == [("main", 2), ("main", 1)]
    assert shown(table) == sorted([*before, (99, "p99", "a")])


def test_a_branch_with_another_name_for_the_column(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    run(table, "alter_table", branch="fix", change=("rename column person to who",))
    erase(table)
    assert "secret" not in read_arrow(table.branch("fix")).column("who").to_pylist()
    run(table, "alter_table", branch="fix", change=("drop column who",))
    upsert(table, "e", [3])
    assert erase(table).details["branches"] == []


def test_what_is_not_erased_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no column 'nobody'"):
        erase(plain(tmp_path), where="nobody = 1")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"grace": "soon"}, "grace: 'soon' is not a duration"),
        ({"grace": "1 min"}, "grace must be at least 10 min"),
        ({"orphans_older_than": "soon"}, "orphans_older_than: 'soon' is not a duration"),
        ({"orphans_older_than": "5 min"}, r"d\.t: orphans_older_than must be at least 1 h"),
    ],
)
def test_what_the_last_steps_would_refuse_is_refused_before_the_first(
    tmp_path: Path, wrong: dict[str, str], said: str
) -> None:
    table = lived(plain, tmp_path)
    before = table.snapshot_ids(), table.branch("fix").snapshot_ids()
    for dry_run in (False, True):
        with pytest.raises(InvalidInputError, match=said):
            erase(table, dry_run=dry_run, **wrong)
    with pytest.raises(InvalidInputError, match=said):
        run_before_spark(build_request("erase_rows", {
            "warehouse": str(tmp_path), "table": table.name, "where": WHERE, **wrong}))  # fmt: skip
    assert (table.snapshot_ids(), table.branch("fix").snapshot_ids()) == before


def test_rows_are_as_a_delete_leaves_them(tmp_path: Path) -> None:
    """A row of which the condition is unknown stays."""
    table = make_table(tmp_path, COLUMNS, partition_keys=["dt"])
    write_arrow(table, rows_of(COLUMNS, [{"k": 1, "person": None, "dt": "a"}, {"k": 2, "person": "secret", "dt": "a"}]))
    erase(table)
    assert shown(table) == [(1, None, "a")]


def test_rows_of_a_branch_do_not_go_by_another_column(tmp_path: Path) -> None:
    """Main and the branch gave the same id to different columns."""
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    fix = table.branch("fix")
    run(table, "alter_table", branch="fix", change=("add column note STRING", "add column phone STRING"))
    run(table, "alter_table", change=("add column phone STRING",))
    new = [
        {"k": k, "dt": "x", "note": note, "phone": phone} for k, note, phone in [(1, "secret", "1"), (2, "2", "secret")]
    ]
    write_arrow(fix, rows_of({**COLUMNS, "note": "STRING", "phone": "STRING"}, new))
    before = read_arrow(fix).to_pylist()
    assert [one["branch"] for one in erase(table, where="phone = 'secret'").details["erased"]] == ["fix"]
    assert read_arrow(fix).to_pylist() == [row for row in before if row["phone"] != "secret"]


def test_files_of_a_deleted_branch_that_can_not_be_read_go_as_orphans(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    run(table, "alter_table", branch="fix", change=("rename column person to who",))
    write_arrow(table.branch("fix"), pa.table({"k": pa.array([1], pa.int32()), "who": ["x"], "dt": ["x"]}))
    run(table, "delete_branch", branch="fix")
    last = erase(table, store=Aged, **ALL).details
    assert last["complete"] and last["orphan_files"]["files"] >= 1


def test_nothing_is_erased_if_one_branch_refuses(tmp_path: Path) -> None:
    table = plain(tmp_path)
    run(table, "create_tag", tag="month")
    run(table, "create_branch", branch="fix", tag="month")
    run(table, "alter_table", branch="fix", change=("drop column person",))
    before = {path for path in table.store.walk("") if not path.startswith("_airflow_paimon/")}
    for dry_run in (True, False):
        with pytest.raises(UnsupportedFeatureError, match="fix has no column 'person'"):
            erase(table, dry_run=dry_run)
    assert {path for path in table.store.walk("") if not path.startswith("_airflow_paimon/")} == before


@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
def test_rows_that_wait_for_a_compaction_are_told_and_the_erased_ones_are_not(tmp_path: Path, producer: str) -> None:
    """A rewrite is their compaction: streaming readers would never get them."""
    table = keyed(tmp_path, changelog_producer=producer, write_only="true")
    upsert(table, "a", [5], kind="-D")
    erase(table)
    assert told(table) == [("+I", row) for row in shown(table)] and len(shown(table)) == 17
    upsert(table, "b", [3, 11])
    upsert(table, "b", [4], kind="-D")
    erase(table)
    assert told(table) == [("+I", (11, "p11", "b")), ("-D", (4, "p4", "b"))]
    upsert(table, "b", [12])
    erase(table, where="k = 7")
    assert [kind for kind, _ in told(table)] == ["+I"]


def told(table: Table) -> list[tuple[str, tuple[Any, ...]]]:
    """The changelog of the newest snapshot."""
    snapshot = table.latest_snapshot()
    assert snapshot is not None and snapshot.changelog_manifest_list is not None
    (manifests,) = read_manifest_lists(table, [ManifestListRef(snapshot.changelog_manifest_list, None, "changelog")])
    names = {entry.file.file_name for part in read_entries(table, manifests) for entry in part}
    paths = [p for p in Path(table.store.uri.removeprefix("file://")).rglob("*.parquet") if p.name in names]
    rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted((ROW_KINDS[r["_VALUE_KIND"]], (r["k"], r["person"], r["dt"])) for r in rows)
