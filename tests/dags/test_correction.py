"""The correction DAG from its form to main, beside a writer that goes on; its rejection, its Clear, its failures."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, task

from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.table.paths import is_for_undo
from airflow_paimon.core.table.table import Table
from airflow_paimon.dags import correction_dag, correction_undo_dag, text
from airflow_paimon.data import read_arrow, write_arrow
from tests.airflow.conftest import Run
from tests.core.tables import alter_table, files
from tests.dags.conftest import (
    CONF,
    LIVE,
    RIGHT,
    TABLE,
    WRONG,
    amounts,
    answering,
    clear_and_run,
    expected,
    make_orders,
    orders,
    run_dag,
    run_made,
    set_state,
    states,
)
from tests.data.appender import FIRST, appender
from tests.data.tables import make_table, rows_of

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

OWN = "correct_units"


@contextmanager
def writer(warehouse: Path) -> Iterator[list[int]]:
    """Another job that goes on committing to main, in a process of its own; gives its snapshots at the end."""
    command = [sys.executable, "-m", "tests.dags.writer", str(warehouse), TABLE, LIVE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    snapshots: list[int] = []
    try:
        yield snapshots
    finally:
        out, _ = process.communicate(input="end", timeout=600)
    snapshots += json.loads(out)
    assert process.returncode == 0


def test_corrects_publishes_and_undoes_beside_a_writer(warehouse: Path, airflow_home: Path) -> None:
    """By a DAG of a user's own: a field of its own, a locked table and Spark setting, a task before and one after."""
    main = make_orders(str(warehouse))
    required = '[{"row_limits": {"added": 0}}]'
    alter_table(main, [SetOption(key="airflow-paimon.required-checks", value=required)])
    before = files(main)
    keep_from(main, "dashboards", 1)
    with writer(warehouse) as written, answering("Approve", OWN) as questions:
        checks = "- not_null: [amount]\n- row_limits: {deleted: 10 %}\n- unique: note\n  severity: warn"
        form = {"sql": CONF["sql"], "partitions": CONF["partitions"], "reason": "ticket 17", "checks": checks}
        run = run_made(own_dag(TABLE), {**form, "ticket": "OPS-17"})
    skipped = {"after", "fast_forward", "rejected", "report_failure"}
    assert states(run) == {name: "skipped" if name in skipped else "success" for name in run.tasks}
    assert run.state == "success"

    assert amounts(main, *RIGHT, *WRONG) == expected(*RIGHT, *WRONG)
    assert len(written) > 5
    assert amounts(main, LIVE) == [(LIVE, n, float(n)) for n in range(len(written))], "a commit of the writer was lost"
    assert main.snapshot_ids() == list(range(1, 1 + 2 + len(written) + 1))

    (publish,) = undoable_publishes(main)
    properties = publish.snapshot.properties
    assert publish.operation == "merge_branch"
    assert properties["airflow-paimon.approved-by"]
    (record,) = read_audit(main)
    assert (record.reason, record.diff["total"]["added"], record.approved_at is None) == ("ticket 17", 0, False)
    assert record.diff["total"]["changed"] == sum(p["changed"] for p in record.diff["partitions"]) > 0
    said = dict.fromkeys(['row_limits {"added": 0}', 'not_null ["amount"]', 'row_limits {"deleted": "10 %"}'], "passed")
    assert json.loads(properties["airflow-paimon.checks"]) == {**said, "unique note": "warned"}
    assert publish.snapshot.id not in written
    after = files(main)
    assert {b for b in before if after[b] != before[b]} == {b for b in before if day_of(main, b) in WRONG}
    assert main.branch_names() == []
    assert all(map(is_for_undo, main.tag_names()))

    (question,) = questions
    assert TABLE in question["subject"]
    assert run.xcom("before") == ["OPS-17", TABLE, question["subject"]]
    assert "ticket 17" in question["body"] and "amount / 100 AS amount" in question["body"]
    assert "Consumer dashboards reads snapshot 1 next" in question["body"]
    assert "4 checks of the branch**, 1 with a warning" in question["body"]
    assert all(f"dt={day}" in question["body"] for day in WRONG)
    announced = [(uri, extra["operation"]) for uri, extra in run.asset_events]
    assert [operation for _, operation in announced] == ["create_branch", "correct_branch", "merge_branch"]
    assert announced[-1][0] == "paimon://paimon_default/sales/orders"
    assert run.asset_events[-1][1]["snapshot_after"] == publish.snapshot.id
    check_undo(main, written, publish.undo_tag)


def own_dag(table: str, meanwhile: Callable[[str], object] = str) -> DAG:
    """A correction of one table; ``meanwhile`` gets the branch's name after the publish."""

    @task
    def before(params: Any = None, ti: Any = None) -> list[str]:
        return [params["ticket"], params["table"], ti.xcom_pull(task_ids="report")["subject"]]

    @task
    def after(ti: Any = None) -> None:
        meanwhile(ti.xcom_pull(task_ids="check_params")["branch"])
        raise AirflowSkipException("Nobody needs to know")

    return correction_dag(
        OWN,
        fields={"ticket": text("Ticket", "Its number.")},
        locked={"table": table, "spark_conf": {"spark.sql.session.timeZone": "UTC"}, "notify": None},
        default_args={"retries": 0},
        before_approval=before,
        after_publish=after,
    )


@pytest.mark.thorough
def test_corrects_and_undoes_a_table_without_keys_beside_a_process_that_appends(
    warehouse: Path, tmp_path: Path, airflow_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """UPDATE in the very partition to which the other process appends; then the undo.

    Beside one that never pauses both get through in tests/data/test_publish_beside_appends.py.
    Another job writes the branch after the publish: it stays, with what was written.
    """
    columns = {"k": "INT", "v": "STRING", "dt": "STRING"}
    table = make_table(warehouse, columns, partition_keys=["dt"], bucket="-1", row_tracking__enabled="true")
    write_arrow(table, rows_of(columns, [{"k": k, "v": "wrong", "dt": "a"} for k in range(10)]))

    def values() -> dict[int, str]:
        found = read_arrow(table).to_pylist()
        assert len({r["k"] for r in found}) == len(found)
        return {r["k"]: r["v"] for r in found}

    def write_late(branch: str) -> None:
        write_arrow(table.branch(branch), rows_of(columns, [{"k": 99, "v": "late", "dt": "b"}]))

    with appender(warehouse, tmp_path, pause=0.2) as committed:
        with answering("Approve", OWN) as questions:
            asked = {"ticket": "OPS-17", "sql": "UPDATE branch SET v = 'right' WHERE k < 5"}
            correction_undo_dag("own_undo")
            run = run_made(own_dag("d.t", write_late), asked)
        assert run.state == "failed" and len(questions) == 1
        said = {name: state for name, state in states(run).items() if state != "success"}
        failed = {"delete_branch": "failed", "report_failure": "failed", "delete_tag": "upstream_failed"}
        assert said == dict.fromkeys(("after", "fast_forward", "rejected"), "skipped") | failed
        assert run.xcom("delete_branch", "paimon_error")["kind"] == "conflict"
        assert run.xcom("before") == ["OPS-17", "d.t", questions[0]["subject"]]
        assert "publish what was added (merge_branch)" in caplog.text and "To remove what" not in caplog.text
        (branch,) = table.branch_names()
        assert 99 in {row["k"] for row in read_arrow(table.branch(branch)).to_pylist()}
        published = values()
        assert any(line.startswith("To undo within 7 d: trigger own_undo with") for line in run.xcom("verify")["lines"])
        undone = run_made(correction_undo_dag("own_undo"), {"table": "d.t", "approval": False})
        assert undone.state == "success"
    appended = dict.fromkeys(range(FIRST, FIRST + committed()), "appended")
    assert len(appended) > 20
    assert {k: v for k, v in published.items() if k < FIRST} == {k: "right" if k < 5 else "wrong" for k in range(10)}
    assert values() == dict.fromkeys(range(10), "wrong") | appended


@pytest.mark.thorough
def test_a_broken_rule_ends_the_run_before_anybody_is_asked_and_says_how_to_go_on(
    warehouse: Path, airflow_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a failed correction does otherwise as well: main stays, what the run made is cleaned up."""
    main = make_orders(str(warehouse))
    before = files(main)
    with answering("Approve") as questions:
        run = run_dag("data_correction", {**CONF, "checks": "- row_limits: {changed: 10 %}"})
    assert run.state == "failed" and not questions
    got = states(run)
    assert got["check"] == got["report_failure"] == "failed"
    assert got["create_branch"] == got["correct"] == "success"
    assert {got[name] for name in ("diff", "approve", "merge", "verify", "delete_branch")} == {"upstream_failed"}
    error = run.xcom("check", "paimon_error")
    assert error["kind"] == "unsafe" and len(error["rules"][0]["rows"]) == 2
    assert main.snapshot_ids() == [1, 2]
    assert files(main) == before
    said, planned = caplog.text, run.xcom("check_params")
    assert f"Main of {TABLE} is untouched by this run" in said
    assert f"Cleaned up: branch {planned['branch']} and tag {planned['tag']} deleted" in said
    assert "What helps: trigger this DAG again with SQL that corrects the rows" in said
    assert main.branch_names() == main.tag_names() == []


@pytest.mark.thorough
def test_what_the_check_of_the_form_knows_to_be_wrong_or_for_nothing_ends_the_run_there(
    warehouse: Path, airflow_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = make_orders(str(warehouse))
    run = run_dag("data_correction", {"table": TABLE, "sql": "UPDATE main SET amount = 1 WHERE id = 1"})
    assert run.state == "failed" and "name it branch, not 'main'" in run.xcom("check_params", "paimon_error")["message"]
    got = states(run)
    assert {name for name in got if got[name] == "failed"} == {"check_params", "report_failure"}
    with answering("Approve") as questions:
        sql = "UPDATE branch SET amount = 1 WHERE dt = '1999-01-01'"
        run = run_dag("data_correction", {"table": TABLE, "sql": sql})
    assert run.state == "success" and not questions and set(states(run).values()) == {"skipped"}
    assert f"The UPDATE matches no row of {TABLE}" in caplog.text
    assert main.branch_names() == main.tag_names() == []


def check_undo(main: Table, written: list[int], tag: str) -> None:
    """Undo by the form as it comes; the table's required check is made of what it brings back."""
    with answering("Approve", "data_correction_undo") as questions:
        undone = run_dag("data_correction_undo", {"table": TABLE})
    assert undone.state == "success"
    (question,) = questions
    assert f"0 rows added, {len(expected(*WRONG)) - len(WRONG)} changed, 0 deleted" in question["body"]
    assert "| dt=2026-11-17, id=1 | amount | 1.0 | 100.0 |" in question["body"] and LIVE not in question["body"]
    assert undone.xcom("check_params")["tag"] == tag
    assert amounts(main, *RIGHT) == expected(*RIGHT)
    assert amounts(main, *WRONG) == expected(*WRONG, factor=100)
    assert states(undone)["check"] == "success"
    assert len(amounts(main, LIVE)) == len(written)


@pytest.mark.thorough
def test_a_rejected_run_changes_nothing_and_the_cleanup_removes_its_branch(
    warehouse: Path, airflow_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = make_orders(str(warehouse))
    rejected = reject(main)
    said = caplog.text
    assert f"Main of {TABLE} is untouched by this run" in said
    assert "Branch fix_orders: at snapshot 3" in said
    assert amounts(main.branch("fix_orders"), *WRONG) == expected(*WRONG)

    write_arrow(main.branch("fix_orders"), orders((LIVE,)))
    everything = {"table": TABLE, "drop_unpublished": True}
    set_state(rejected, "running")
    assert run_dag("data_correction_cleanup", everything).state == "success"
    assert "stays: a run that has not ended uses it" in caplog.text
    set_state(rejected, "failed")
    kept = run_dag("data_correction_cleanup", {"table": TABLE})
    assert kept.state == "success"
    assert "it has 2 commits that main doesn't have (1 commit of another job)" in caplog.text
    assert main.branch_names() == ["fix_orders"]
    assert run_dag("data_correction_cleanup", everything).state == "success"
    assert main.branch_names() == main.tag_names() == []
    assert main.snapshot_ids() == [1, 2]
    assert amounts(main, *WRONG) == expected(*WRONG, factor=100)


def reject(main: Table) -> Run:
    """Run a correction that is rejected, and whose branch stays."""
    with answering("Reject"):
        rejected = run_dag("data_correction", {**CONF, "branch": "fix_orders", "clean_up": False})
    assert rejected.state == "failed"
    assert states(rejected)["rejected"] == "failed"
    assert {states(rejected)[name] for name in ("merge", "verify", "delete_branch", "report_failure")} == {"skipped"}
    assert main.snapshot_ids() == [1, 2]
    assert amounts(main, *WRONG) == expected(*WRONG, factor=100)
    return rejected


@pytest.mark.thorough
def test_a_cleared_correction_starts_from_the_base(warehouse: Path, airflow_home: Path) -> None:
    main = make_orders(str(warehouse))
    rejected, fix = reject(main), main.branch("fix_orders")
    cleared = clear_and_run(rejected, "correct")
    assert cleared.tasks["correct"] == ("success", 2)
    # Had the SQL started from its own result, amounts would be a hundredth of what they are.
    assert amounts(fix, *WRONG) == expected(*WRONG)
    assert fix.latest_snapshot_id() == 5, "one snapshot back to the base, one of the correction"

    write_arrow(fix, orders((LIVE,)))
    foreign = clear_and_run(rejected, "correct")
    assert foreign.tasks["correct"][0] == "failed", "another job's commit on the branch would have been dropped"
    assert fix.latest_snapshot_id() == 6


@pytest.mark.thorough
def test_an_unknown_parameter_fails_the_run(
    warehouse: Path, airflow_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = make_orders(str(warehouse))
    run = run_dag("data_correction", {**CONF, "tabel": "sales.other"})
    assert run.state == "failed"
    assert states(run)["check_params"] == states(run)["report_failure"] == "failed"
    assert "tabel (did you mean table?)" in caplog.text
    assert main.tag_names() == main.branch_names() == []


def day_of(table: Table, bucket: tuple[bytes, int]) -> str:
    return str(decode_row(bucket[0], table.schema().partition_types)[0])
