"""The job alter_table: one version for all changes, what a second run does, and what it says of open branches."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, cut_off, make_table, run


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = make_table(tmp_path)
    append(made, "a")
    return made


def test_all_changes_are_one_version(table: Table) -> None:
    before = table.schema()
    result = run(
        table,
        "alter_table",
        change=["add column w INT 'weight' first", "rename column v to value", "set snapshot.num-retained.max=50"],
    )
    after = table.schema()
    assert result.changed and result.details["schema_id"] == after.id == before.id + 1
    assert list(after.field_names)[:1] == ["w"] and "value" in after.field_names and "v" not in after.field_names
    assert after.options["snapshot.num-retained.max"] == "50"
    assert result.details["columns"][0] == "w INT"
    assert result.snapshot_before == result.snapshot_after == 1
    again = run(table, "alter_table", change=["add column w INT 'weight' first", "rename column v to value",
                                              "set snapshot.num-retained.max=50"])  # fmt: skip
    assert not again.changed and table.schema().id == after.id


def test_changes_that_are_in_effect_make_no_version(table: Table) -> None:
    assert run(table, "alter_table", change=["set snapshot.num-retained.max=50"]).changed
    assert not run(table, "alter_table", change=["set snapshot.num-retained.max=50"]).changed
    assert len(table.schema_ids()) == 2


def test_a_dry_run_writes_nothing(table: Table) -> None:
    result = run(table, "alter_table", change=["drop column v"], dry_run=True)
    assert result.changed and result.dry_run and result.plan_id
    assert [a["action"] for a in result.details["plan"]["actions"]] == ["PutNew"]
    assert table.schema_ids() == [0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ([], "at least one change"),
        (["drop column nope"], "nope"),
        (["drop column k"], "k"),
        (["add column w INT NOT NULL"], "nullable"),
        (["alter column v type INT"], "v"),
        (["truncate"], "write one of"),
        (["set merge-engine=first-row"], "merge-engine"),
        (["set bucket-function.type=mod"], "bucket-function.type"),
        (["set sequence.snapshot-ordering=true"], "sequence.snapshot-ordering"),
        (["add column w INT", "add column w INT"], "w"),
    ],
)
def test_what_breaks_a_rule_changes_nothing(table: Table, change: list[str], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        run(table, "alter_table", change=change)
    assert table.schema_ids() == [0]


def test_a_branch_is_altered_alone(table: Table) -> None:
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", tag="t")
    with pytest.raises(UnsafeOperationError, match="keeps every engine from expiring"):
        run(table, "alter_table", branch="fix", change=["reset write-only"])
    result = run(table, "alter_table", branch="fix", change=["add column w INT"])
    assert result.branch == "fix" and result.details["publish"] == {"fix": "possible"}
    assert "w" in table.branch("fix").schema().field_names and "w" not in table.schema().field_names
    with pytest.raises(NotFoundError):
        run(table, "alter_table", branch="nope", change=["add column w INT"])


def test_open_branches_are_named_with_what_becomes_of_their_publish(table: Table) -> None:
    run(table, "create_tag", tag="t")
    for name in ("same", "other"):
        run(table, "create_branch", branch=name, tag="t")
    run(table, "alter_table", branch="other", change=["add column w STRING"])
    result = run(table, "alter_table", change=["add column w INT"])
    publish = result.details["publish"]
    assert publish["same"] == "possible" and "alter one to the other's type" in publish["other"]
    append(table.branch("same"), "b")
    assert run(table, "merge_branch", branch="same", writers_stopped=True).changed
    append(table.branch("other"), "c")
    with pytest.raises(ConflictError, match="column 'w' is INT on main and STRING on the branch"):
        run(table, "merge_branch", branch="other", writers_stopped=True)
    run(table, "create_branch", branch="again", snapshot=table.latest_snapshot_id())
    run(table, "alter_table", branch="again", change=["add column x INT"])
    append(table.branch("again"), "c")
    assert run(table, "merge_branch", branch="again", writers_stopped=True).changed
    assert table.schema().field_names[-2:] == ("w", "x")
    for name in ("same", "other", "again"):
        run(table, "delete_branch", branch=name)
    assert run(table, "alter_table", change=["set snapshot.num-retained.max=50"]).details["publish"] == {}


def test_a_run_that_was_killed_is_finished_by_the_next_try(tmp_path: Path) -> None:
    step, died = 0, True
    while died:
        step += 1
        table = make_table(tmp_path / str(step))
        values = {"change": ["add column w INT", "drop column v"], "operation_id": "run-1"}
        died = cut_off(table, step, "alter_table", **values)
        result = run(table, "alter_table", **values)
        assert result.changed or not died
        assert len(table.schema_ids()) == 2 and "w" in table.schema().field_names
        alter_table(table, [AddColumn(name="z", type=parse_type("INT"))])
        assert run(table, "alter_table", **values).changed, "another change afterwards doesn't hide it"
        assert len(table.schema_ids()) == 3
    assert step > 2


def test_concurrent_changes_all_take_effect(table: Table) -> None:
    threads = [
        threading.Thread(target=run, args=(table, "alter_table"), kwargs={"change": [f"add column c{i} INT"]})
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert {f"c{i}" for i in range(6)} <= set(table.schema().field_names)
    ids = [f.id for f in table.schema().fields]
    assert len(set(ids)) == len(ids) and table.schema_ids() == list(range(7))


def test_a_branch_with_deletion_vectors_is_not_published_onto_a_main_without(tmp_path: Path) -> None:
    """Options stay on their side; Paimon's readers of main would show the deleted rows."""
    table = make_table(tmp_path / "wh", primary=False, **{"deletion-vectors.modifiable": "true"})
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    run(table, "alter_table", branch="fix", change=["set deletion-vectors.enabled=true"])
    append(table.branch("fix"), "b")
    with pytest.raises(UnsafeOperationError, match=r"deletion-vectors\.enabled is set on the branch"):
        run(table, "merge_branch", branch="fix")
    assert table.latest_snapshot_id() == 1
    run(table, "alter_table", change=["set deletion-vectors.enabled=true"])
    assert run(table, "merge_branch", branch="fix").changed


def test_an_option_that_no_engine_knows_is_set_with_a_warning(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    result = run(table, "alter_table", change=["set snapshot.tme-retained=1 h", "set snapshot.num-retained.max=50"])
    (warning,) = result.details["warnings"]
    assert "'snapshot.tme-retained'" in warning and "did you mean snapshot.time-retained?" in warning
    assert [record.getMessage() for record in caplog.records] == [f"d.t: {warning}"]
    assert table.schema().options["snapshot.tme-retained"] == "1 h", "a newer Paimon may know it"
    assert "warnings" not in run(table, "alter_table", change=["reset snapshot.tme-retained"]).details
    assert run(table, "alter_table", change=["set x=y"], dry_run=True).details["warnings"]


def test_a_new_table_with_an_option_that_no_engine_knows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_table(tmp_path)
    assert caplog.records == []
    make_table(tmp_path, "d.u", merge__engin="first-row")
    assert "d.u: " in caplog.text and "did you mean merge-engine?" in caplog.text
