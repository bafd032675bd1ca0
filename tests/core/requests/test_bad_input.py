"""Bad input and failures: each gets the right error and changes nothing, or is mended by the next run."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.commit.files import drop_partitions
from airflow_paimon.core.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, open_context
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import read_both_manifest_lists
from airflow_paimon.core.table.record_kinds import HOLDS
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table, parse_timestamp, resolve_version
from airflow_paimon.execution import perform
from tests.core.tables import append, files, make_table, rewrite, run
from tests.randomness import moments
from tests.stores import Crash, FaultStore


@pytest.fixture
def table() -> Table:
    """Two snapshots, tag ``t`` on the second, branch ``fix`` with a commit of its own. In memory, so it is fast."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    append(table, "b")
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", tag="t")
    rewrite(table.branch("fix"), "a")
    return table


def everything(table: Table) -> dict[str, bytes]:
    paths = table.store.walk("")
    return dict(zip(paths, table.store.read_many(paths), strict=True))


# -- what does not exist, what is malformed -------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], type[PaimonError], str]] = [
    ("create_tag", {"tag": "x", "table": "d.nope"}, NotFoundError, r"no table d\.nope"),
    ("create_tag", {"tag": "x", "table": "nope"}, InvalidInputError, "db.table"),
    ("create_tag", {"tag": "x", "table": "d.t$snapshots"}, InvalidInputError, "system table"),
    ("create_tag", {"tag": "x", "branch": "nope"}, NotFoundError, "its branches: main, fix"),
    ("create_tag", {"tag": "x", "snapshot": 77}, NotFoundError, "no snapshot 77"),
    ("create_tag", {"tag": "7"}, InvalidInputError, "not only digits"),
    ("create_tag", {"tag": "a/b"}, InvalidInputError, "not allowed"),
    ("create_tag", {"tag": "../../x"}, InvalidInputError, "not allowed"),
    ("create_tag", {"tag": "airflow-paimon-branch-fix"}, InvalidInputError, "choose another name"),
    ("create_tag", {"tag": "airflow-paimon-undo-mine"}, InvalidInputError, "choose another name"),
    ("create_tag", {"tag": "x", "time_retained": "soon"}, InvalidInputError, "7 d"),
    ("create_tag", {"tag": "x", "time_retained": "0 d"}, InvalidInputError, "greater than 0"),
    ("create_tag", {"tag": "x", "if_exists": "maybe"}, InvalidInputError, "fail, skip, replace"),
    ("create_tag", {"tag": "x", "now": "2026-11-21"}, InvalidInputError, "time zone"),
    ("create_tag", {"tag": "x", "colour": "red"}, InvalidInputError, "no option colour"),
    ("create_tag", {}, InvalidInputError, "--tag"),
    ("delete_tag", {"tag": "nope"}, NotFoundError, "its tags: airflow-paimon-branch-fix, t"),
    ("delete_tag", {"tag": "t", "branch": "nope"}, NotFoundError, "its branches"),
    ("delete_branch", {"branch": "nope"}, NotFoundError, "its branches: main, fix"),
    ("delete_branch", {"branch": "../schema"}, NotFoundError, "no branch"),
    ("delete_branch", {"branch": "main"}, InvalidInputError, "main"),
    ("merge_branch", {"branch": "nope"}, NotFoundError, "no branch"),
    ("merge_branch", {"branch": "main"}, InvalidInputError, "onto itself"),
    ("merge_branch", {"branch": "fix", "undo_retention": "long"}, InvalidInputError, "undo_retention"),
    ("merge_branch", {"branch": "fix", "expected_main_snapshot": "two"}, InvalidInputError, "whole number"),
    ("fast_forward", {"branch": "nope"}, NotFoundError, "no branch"),
    ("rollback_to", {}, InvalidInputError, "one of tag, snapshot, timestamp"),
    ("rollback_to", {"tag": "t", "snapshot": 1}, InvalidInputError, "one of tag, snapshot, timestamp"),
    ("rollback_to", {"tag": "nope"}, NotFoundError, "its tags"),
    ("rollback_to", {"snapshot": 9}, NotFoundError, "no snapshot 9"),
    ("rename_branch", {"branch": "fix", "to_branch": "main"}, InvalidInputError, "not allowed"),
    ("rename_branch", {"branch": "nope", "to_branch": "x"}, NotFoundError, "no branch"),
    ("repair_table", {"finding": ["nope"]}, InvalidInputError, "no finding 'nope'"),
]


@pytest.mark.parametrize(("operation", "values", "error", "message"), REFUSED)
def test_a_bad_request_is_refused_and_changes_nothing(
    table: Table, operation: str, values: dict[str, Any], error: type[PaimonError], message: str
) -> None:
    before = everything(table)
    with pytest.raises(error, match=message) as caught:
        run(table, operation, **values)
    assert type(caught.value) is error
    assert caught.value.exit_code == 2
    assert everything(table) == before


def test_versions_that_are_not_there(table: Table) -> None:
    for version in (99, "nope", "fix.nope", "fix.99"):
        with pytest.raises(NotFoundError):
            resolve_version(table, version)
    assert resolve_version(table, "fix.3")[0].branch_name == "fix"
    assert resolve_version(table, "fix.t")[1] == table.tag("t").snapshot
    with pytest.raises(NotFoundError, match="as early"):
        resolve_version(table, timestamp=1)
    for bad in ("2026-11-21T02:00:00", "yesterday"):
        with pytest.raises(InvalidInputError):
            parse_timestamp(bad)


# -- damaged files --------------------------------------------------------------------------------------------


def _paths(table: Table) -> dict[str, str]:
    head = table.latest_snapshot()
    manifest = read_both_manifest_lists(table, head)[1][0].file_name
    return {
        "snapshot": "snapshot/snapshot-2",
        "schema": "schema/schema-0",
        "manifest": f"manifest/{manifest}",
        "base list": f"manifest/{head.base_manifest_list}",
        "delta list": f"manifest/{head.delta_manifest_list}",
    }


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbage": lambda data: b"\x00\xff" * 40,
    "not an object": lambda data: b"[1, 2]",
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
@pytest.mark.parametrize("what", ["snapshot", "schema", "manifest", "base list", "delta list"])
def test_damaged_metadata_is_named_and_nothing_is_committed(table: Table, what: str, damage: str) -> None:
    path = _paths(table)[what]
    everywhere = [{"dt": s.values[0]} for s in plan_scan(table).splits]  # what has none of them is not even read
    table.store.replace(path, DAMAGES[damage](table.store.read(path)))
    before = everything(table)
    with pytest.raises(FormatError) as caught:
        plan_scan(table)
    assert path.rsplit("/", 1)[-1] in caught.value.message
    assert caught.value.kind == "corrupt"
    with pytest.raises(PaimonError):
        drop_partitions(table, everywhere)
    assert everything(table) == before


@pytest.mark.parametrize("what", ["manifest", "base list", "delta list"])
def test_missing_metadata_is_never_taken_for_an_empty_table(table: Table, what: str) -> None:
    table.store.delete(_paths(table)[what])
    with pytest.raises(FormatError, match="missing"):
        plan_scan(table)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (b'"version": 3', b'"version": 4', UnsupportedFeatureError),
        (b'"commitKind": "APPEND"', b'"commitKind": "MERGE"', FormatError),
        (b'"id": 2', b'"id": 3', FormatError),
        (b'"schemaId": 0', b'"schemaId": "0"', FormatError),
    ],
)
def test_snapshots_that_contradict_what_we_know(table: Table, old: bytes, new: bytes, error: type[PaimonError]) -> None:
    data = table.store.read("snapshot/snapshot-2")
    assert old in data
    table.store.replace("snapshot/snapshot-2", data.replace(old, new))
    with pytest.raises(error, match="snapshot-2"):
        table.latest_snapshot()


def test_a_deletion_without_its_file_is_corrupt(table: Table) -> None:
    head = table.latest_snapshot()
    empty = table.store.read(f"manifest/{table.snapshot(1).base_manifest_list}")
    rewrite(table, "a")
    new = table.latest_snapshot()
    table.store.replace(f"manifest/{new.base_manifest_list}", empty)
    small = replace(new, base_manifest_list_size=len(empty))
    table.store.replace(f"snapshot/snapshot-{new.id}", small.to_bytes())
    with pytest.raises(FormatError, match="never added"):
        live_entries(table, table.latest_snapshot())
    assert table.latest_snapshot_id() == head.id + 1


# -- failures half-way ----------------------------------------------------------------------------------------

OPERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("create_tag", {"tag": "x", "if_exists": "skip"}),
    ("delete_tag", {"tag": "t", "if_missing": "skip"}),
    ("create_branch", {"branch": "b", "tag": "t", "if_exists": "skip"}),
    ("delete_branch", {"branch": "fix", "if_missing": "skip"}),
    ("rename_branch", {"branch": "fix", "to_branch": "better"}),
    ("merge_branch", {"branch": "fix", "operation_id": "op"}),
    ("fast_forward", {"branch": "fix", "operation_id": "op"}),
    ("rollback_to", {"snapshot": 1, "operation_id": "op"}),
]


def _faulty(table: Table, operation: str, values: dict[str, Any], fault: FaultStore) -> None:
    warehouse = table.store.uri.rsplit("/", 2)[0]
    request = build_request(operation, {"warehouse": warehouse, "table": table.name, **values})
    context = open_context(request)
    perform(Context(context.request, Table(fault, table.name), context.now_ms, context.started), request)


def _steps(operation: str, values: dict[str, Any], table: Table) -> int:
    probe = FaultStore(table.store)
    _faulty(table, operation, values, probe)
    return len(probe.mutations)


@pytest.mark.parametrize(("operation", "values"), OPERATIONS, ids=[o for o, _ in OPERATIONS])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_between_any_two_store_calls(operation: str, values: dict[str, Any], after: bool) -> None:
    """A killed run leaves main as it was or as it should be; the next run finishes the work, once."""
    steps = _steps(operation, values, _fresh())
    wanted = _outcome(operation, values)
    for step in moments(steps + 1, 3):
        table = _fresh()
        before = files(table)
        with pytest.raises(Crash):
            _faulty(table, operation, values, FaultStore(table.store, step, after=after))
        assert files(table) in (before, wanted[0])
        _finish(table, operation, values)
        assert (files(table), table.branch_names(), len(table.snapshot_ids())) == wanted
        assert [f for f in run(table, "check_table").details["findings"] if f["severity"] == "error"] == []


def _fresh() -> Table:
    """The fixture's table with file names that are the same every time, so that outcomes can be compared."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    names = (f"{i:032x}" for i in range(10**6))
    real = uuid.uuid4
    try:
        uuid.uuid4 = lambda: uuid.UUID(next(names))  # type: ignore[assignment]
        append(table, "a")
        append(table, "b")
        run(table, "create_tag", tag="t")
        run(table, "create_branch", branch="fix", tag="t")
        rewrite(table.branch("fix"), "a")
    finally:
        uuid.uuid4 = real
    return table


def _outcome(operation: str, values: dict[str, Any]) -> tuple[Any, list[str], int]:
    table = _fresh()
    run(table, operation, **values)
    return files(table), table.branch_names(), len(table.snapshot_ids())


def _finish(table: Table, operation: str, values: dict[str, Any]) -> None:
    try:
        run(table, operation, **values)
    except NotFoundError:
        # It had finished, and the old name is gone.
        assert operation == "rename_branch"
        assert "better" in table.branch_names()


@pytest.mark.parametrize(("operation", "values"), OPERATIONS, ids=[o for o, _ in OPERATIONS])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES], ids=["disk full", "permission denied"])
def test_disk_full_and_permission_denied(operation: str, values: dict[str, Any], number: int) -> None:
    steps = _steps(operation, values, _fresh())
    wanted = _outcome(operation, values)
    for step in moments(steps + 1, 3):
        table = _fresh()
        before = files(table)
        fault = FaultStore(table.store, step, error=OSError(number, "as asked"))
        hint = False
        try:
            _faulty(table, operation, values, fault)
            path = fault.mutations[step - 1][1]
            hint = path.endswith("LATEST") or HOLDS.folder in path or "_airflow_paimon/results/" in path
            assert hint, "only a hint, the end of a hold, and the result for a retry may fail without a word"
        except (StorageError, OutcomeUnknownError):
            pass
        assert files(table) in (before, wanted[0])
        _finish(table, operation, values)
        assert (files(table), table.branch_names(), len(table.snapshot_ids())) == wanted


def test_a_lost_response_is_resolved_by_reading_back() -> None:
    """The put of the snapshot took effect, but the storage did not say so."""
    values = {"branch": "fix", "operation_id": "op"}
    table = _fresh()
    probe = FaultStore(table.store)
    _faulty(table, "merge_branch", values, probe)
    step = next(i for i, (_, uri) in enumerate(probe.mutations, 1) if "/snapshot/snapshot-" in uri)
    table = _fresh()
    _faulty(table, "merge_branch", values, FaultStore(table.store, step, error=OSError(errno.EIO, "lost"), after=True))
    assert len(table.snapshot_ids()) == 3
    assert run(table, "merge_branch", **values).details["replayed"]


def test_two_operations_on_one_table_at_once() -> None:
    """A competing commit before any step of a publish: it is planned again, and nothing of either is lost."""
    steps = _steps("merge_branch", {"branch": "fix"}, _fresh())
    for step in moments(steps + 1, 3):
        table = _fresh()
        count = iter(range(1, 10**6))

        def compete(method: str, path: str, table: Table = table, count: Any = count, step: int = step) -> None:
            if next(count) == step:
                append(table, "z")

        _faulty(table, "merge_branch", {"branch": "fix"}, FaultStore(table.store, on_mutation=compete))
        live = files(table)
        assert len(live) == 3
        assert table.snapshot_ids() == [1, 2, 3, 4]
        fixed = files(table.branch("fix"))
        assert all(live[k] == fixed[k] for k in fixed)


def test_a_table_folder_without_a_warehouse_is_reported(tmp_path: Any) -> None:
    for bad in ({}, {"warehouse": str(tmp_path)}, {"warehouse": str(tmp_path), "name": "d.t", "path": "x"}):
        with pytest.raises(InvalidInputError):
            open_table(**bad)
