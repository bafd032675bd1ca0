"""What the DAGs check and prove, on real metadata and without running a DAG."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedFeatureError,
    error_to_json,
)
from airflow_paimon.core.format.snapshot import SnapshotRef
from airflow_paimon.core.publish.undoable_publishes import (
    last_publish,
    publishes_still_on_main,
    undoable_publishes,
    undone_by,
    verify_publish,
    verify_rollback,
)
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.table.record_kinds import AUDIT
from airflow_paimon.core.table.table import Table
from airflow_paimon.dags import correction_cleanup_dag, correction_dag
from airflow_paimon.dags.correction_cleanup import in_use
from airflow_paimon.data import write_arrow
from airflow_paimon.forms.rules import rules_as_json
from airflow_paimon.runbooks import advice, correction, erasure, leftovers, report, undo
from airflow_paimon.runbooks.form import error_lines, open_main, refuse_unknown
from tests.airflow.conftest import set_connection
from tests.core.tables import alter_table, append, make_table, names, rewrite, run
from tests.dags.conftest import CONF, TABLE, WRONG, form_of, load_dag, make_orders

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]


OWNER = "data_correction/run-1"
FORM = {"paimon_conn_id": "paimon_default", "table": "d.t", "writers_stopped": False}
TAG = leftovers.run_tag(OWNER)


def form(dag: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """The form as somebody fills it in: the other parameters have their defaults."""
    return {key: value for key, value in form_of(dag).items() if key != "table"} | {**conf}


# -- the correction's form --------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[PaimonError], str]] = {
    "no such table": ({"table": "sales.odrers"}, NotFoundError, "There is no table sales.odrers"),
    "a table's branch": ({"table": "sales.orders$snapshots"}, InvalidInputError, "system table"),
    "sql and function": ({"function": "m:f"}, InvalidInputError, "one of the two"),
    "neither": ({"sql": None}, InvalidInputError, "one of the two"),
    "no partitions": ({"partitions": []}, InvalidInputError, "name the partitions"),
    "a wrong partition key": ({"partitions": ["day=2026-11-17"]}, InvalidInputError, "day"),
    "no partition at all": ({"partitions": ["2026-11-17"]}, InvalidInputError, "2026-11-17"),
    "a wrong awaited partition": ({"wait_partitions": ["day=1"]}, InvalidInputError, "day"),
    "a bad branch name": ({"branch": "fix.1"}, InvalidInputError, "fix.1"),
    "a bad view": ({"views": ["sales.other"]}, InvalidInputError, "name=db.table"),
    "a bad undo retention": ({"undo_retention": "soon"}, InvalidInputError, "undo_retention"),
    "a bad tag retention": ({"tag_retention": "soon"}, InvalidInputError, "tag_retention"),
    "no such spark connection": (
        {"spark_conn_id": "sprak"},
        InvalidInputError,
        "There is no Airflow connection 'sprak'",
    ),
    "a connection of another kind": (
        {"spark_conn_id": "paimon_default"},
        InvalidInputError,
        "is not a Spark connection",
    ),
    "an unknown spark option": (
        {"spark_options": {"memory": "4g"}},
        UnsafeOperationError,
        "spark_options memory can't come from a form",
    ),
    "a command": (
        {"spark_options": {"post_submit_commands": ["id"]}},
        UnsafeOperationError,
        "spark_options post_submit_commands can't come from a form",
    ),
    "a function": (
        {"sql": None, "function": "os:system"},
        UnsafeOperationError,
        "function 'os:system' can't come from a form",
    ),
    "a misspelled column": (
        {"sql": "SELECT * FROM branch WHERE amuont > 1"},
        InvalidInputError,
        "no column amuont (did you mean amount?)",
    ),
    "another target": (
        {"sql": "UPDATE main SET amount = 1 WHERE id = 1", "partitions": []},
        InvalidInputError,
        "name it branch, not 'main'",
    ),
    "no statement": ({"sql": "-- none"}, InvalidInputError, "no statement"),
    "a misspelled column in a condition": (
        {"sql": "UPDATE branch SET amount = 1 WHERE dtt = '2026-11-17'", "partitions": []},
        InvalidInputError,
        "branch has no column dtt (did you mean dt?). sales.orders has dt, id, amount, note",
    ),
    "a view that is not there": (
        {"views": ["rates=sales.rates"]},
        NotFoundError,
        "view (--view) rates=sales.rates: There is no table sales.rates",
    ),
    "a version that is not there": ({"views": ["o=sales.orders@99"]}, NotFoundError, "view (--view) o=sales.orders@99"),
    "a misspelled statement": ({"sql": "UPDAET branch SET amount = 1"}, InvalidInputError, "did you mean UPDATE?"),
    "no query": ({"sql": "DROP TABLE branch"}, InvalidInputError, "one SELECT"),
    "a statement with partitions": ({"sql": "DELETE FROM branch WHERE id = 1"}, InvalidInputError, "for a SELECT"),
    "a SELECT among several": (
        {"sql": "DELETE FROM branch WHERE id = 1; SELECT * FROM branch", "partitions": []},
        InvalidInputError,
        "statement 2 of 2 is a SELECT",
    ),
    "a misspelled column in the second statement": (
        {"sql": "DELETE FROM branch WHERE id = 1;\nUPDATE branch SET amuont = 1 WHERE id = 2;", "partitions": []},
        InvalidInputError,
        "no column amuont",
    ),
    "every row in the second statement": (
        {"sql": "DELETE FROM branch WHERE id = 1; DELETE FROM branch", "partitions": []},
        InvalidInputError,
        "has no WHERE",
    ),
    "several statements for the connector": (
        {
            "sql": "DELETE FROM branch WHERE id = 1; DELETE FROM branch WHERE id = 2",
            "partitions": [],
            "engine": "connector",
        },
        InvalidInputError,
        "engine=connector takes one",
    ),
    "a view of checks": (
        {"views": ["Diff=sales.orders"], "checks": "- not_null: amount"},
        InvalidInputError,
        "the checks have a view 'Diff' already",
    ),
    "a function in a rule": (
        {"checks": "- function: os:system"},
        UnsafeOperationError,
        "function 'os:system' can't come from a form",
    ),
    "a bad lag": ({"wait_max_commit_lag": "soon"}, InvalidInputError, "wait_max_commit_lag"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_form_is_refused_before_anything_is_made(case: str, warehouse: Path) -> None:
    conf, error, message = REFUSED[case]
    main = make_orders(str(warehouse))
    with pytest.raises(error) as caught:
        correction.plan_correction(form("data_correction", {**CONF, **conf}), "data_correction", "run-1")
    assert message in caught.value.message
    assert main.tag_names() == main.branch_names() == []


def test_a_form_may_hold_several_statements(warehouse: Path) -> None:
    make_orders(str(warehouse))
    sql = f"UPDATE branch SET note = ';' WHERE dt = '{WRONG[0]}'; DELETE FROM branch WHERE note = ';' AND id = 1;"
    params = form("data_correction", {**CONF, "sql": sql, "partitions": []})
    planned = correction.plan_correction(params, "data_correction", "run-1")
    effects = correction.plan_effects(params, planned)
    assert effects is not None and effects["statement"] == "UPDATE, DELETE"
    each = [{"statement": "UPDATE", "rows": 2}, {"statement": "DELETE", "rows": 1}]
    asked = report.what_ran(params, {"statements": each, "rows_updated": 2, "rows_deleted": 1})
    assert "- Statement: UPDATE, DELETE; rows: 2 updated, 1 deleted, 0 inserted" in asked


def test_what_a_run_will_touch_is_said_before_and_whom_it_concerns_to_the_approver(
    warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = make_orders(str(warehouse))
    keep_from(main, "dashboards", 1)
    params = form("data_correction", CONF)
    planned = correction.plan_correction(params, "data_correction", "run-1")
    effects = correction.plan_effects(params, planned)
    assert effects is not None and set(effects["replaces"]["partitions"]) == {f"dt={day}" for day in WRONG}
    assert "dashboards reads snapshot 1 next, 2 behind" in report.affected_readers(correction.preview_of(effects))
    assert report.affected_readers(correction.preview_of(None)) == ""
    assert main.tag_names() == main.branch_names() == []

    run(main, "alter_table", change=("set sequence.auto-padding=row-kind-flag",))
    assert correction.plan_effects(params, planned) is None, "the branch will be made from a state without that option"
    assert "could not be planned" in caplog.text
    refused = make_table(warehouse, "d.p", **{"sequence.auto-padding": "row-kind-flag"})
    append(refused, "a")
    asked = form("data_correction", {**CONF, "table": "d.p", "sql": "DELETE FROM branch WHERE k = 1", "partitions": []})
    with pytest.raises(UnsupportedFeatureError, match=r"sequence\.auto-padding"):
        correction.plan_effects(asked, {"branch": "fix", "from_branch": "main"})


def test_a_run_has_its_branch_and_its_base_however_often_it_is_tried(warehouse: Path) -> None:
    main = make_orders(str(warehouse))
    params = form("data_correction", CONF)
    first = correction.plan_correction(params, "data_correction", "run-1")
    assert first["base_snapshot"] == 2
    other = correction.plan_correction(params, "data_correction", "run-2")
    assert other["branch"] != first["branch"]
    assert other["tag"] != first["tag"]
    run(main, "create_tag", tag=first["tag"], snapshot=2)
    append_orders(main)
    assert correction.plan_correction(params, "data_correction", "run-1") == first
    assert correction.plan_correction(params, "data_correction", "run-2")["base_snapshot"] == 3


def append_orders(main: Table) -> None:
    from airflow_paimon.data import write_arrow
    from tests.dags.conftest import LIVE, orders

    write_arrow(main, orders((LIVE,)))


def test_an_empty_table_has_nothing_to_correct(warehouse: Path) -> None:
    make_table(warehouse, "d.t")
    params = form("data_correction", {**CONF, "table": "d.t", "partitions": ["dt=1"]})
    with pytest.raises(NotFoundError, match="nothing to correct"):
        correction.plan_correction(params, "data_correction", "run-1")


def test_the_example_of_checks_is_yaml_as_a_page_shows_it() -> None:
    """In one line, and without what Markdown takes for a list."""
    shown = str(load_dag("data_correction").params.get_param("checks").description)
    example = " ".join(shown.partition("For example: ")[2].split())
    rules = json.loads(rules_as_json(example, "Checks") or "[]")
    assert [set(rule) for rule in rules] == [{"not_null"}, {"row_limits"}, {"sql", "severity"}]


def test_misspelled_parameters_are_named_with_what_was_meant() -> None:
    refuse_unknown(None, ["table"])
    refuse_unknown({"table": "x"}, ["table", "sql"])
    with pytest.raises(
        InvalidInputError, match=r"partition \(did you mean partitions\?\), zzz\. .*: partitions, table"
    ):
        refuse_unknown({"zzz": 1, "partition": 2}, ["partitions", "table"])


# -- publishes, found again and verified ------------------------------------------------------------------------------


def corrected(warehouse: Path) -> tuple[Table, Table]:
    """Main with two partitions, and a branch that rewrote one of them."""
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    run(main, "create_tag", tag=TAG)
    run(main, "create_branch", branch="fix", tag=TAG, owner=OWNER)
    branch = main.branch("fix")
    rewrite(branch, "1")
    return main, branch


def test_a_publish_is_found_by_its_undo_tag_and_verified(warehouse: Path) -> None:
    main, _ = corrected(warehouse)
    with pytest.raises(NotFoundError, match="nothing to undo"):
        last_publish(main)
    append(main, "2", seq=5)
    result = run(main, "merge_branch", branch="fix", approved_by="ann")
    found = last_publish(main)
    assert (found.snapshot.id, found.before.id, found.branch) == (4, 3, "fix")
    checked = verify_publish(main, snapshot_id=4, branch="fix", branch_snapshot=3)
    assert checked["partitions"] == {"dt=1": {"files_out": 1, "rows_out": 1, "files_in": 1, "rows_in": 1}}
    assert checked["properties"]["approved-by"] == "ann"
    assert result.details["undo_tag"] == found.undo_tag == checked["properties"]["undo-tag"]


def test_a_publish_that_does_not_hold_what_the_branch_held_is_reported(warehouse: Path) -> None:
    main, branch = corrected(warehouse)
    run(main, "merge_branch", branch="fix")
    rewrite(branch, "2")
    with pytest.raises(FormatError, match="branch-snapshot"):
        verify_publish(main, snapshot_id=3, branch="fix", branch_snapshot=4)
    append(main, "2", seq=5)
    with pytest.raises(FormatError, match=r"has airflow-paimon\.branch=None"):
        verify_publish(main, snapshot_id=4, branch="fix", branch_snapshot=4)


def test_an_undo_is_verified_and_is_not_a_publish_to_undo(warehouse: Path) -> None:
    main, _ = corrected(warehouse)
    before = names(main)
    run(main, "merge_branch", branch="fix")
    append(main, "2", seq=5)
    params = form("data_correction_undo", {"table": "d.t"})
    ((planned,), left_out) = undo.plan_undos(params)
    assert (planned["target_snapshot"], left_out) == (2, [])
    preview = run(main, "rollback_to", tag=planned["tag"], keep_later=True, dry_run=True)
    shown = undo.with_plan(params, planned, preview.to_json()["details"])
    told = undo.describe_undos(params, [shown], [{}])
    assert "dt=1/bucket-0" in told["markdown"] and "Streaming readers of d.t skip this snapshot" in told["markdown"]
    assert "(1 partition)" in told["subject"]
    result = run(main, "rollback_to", tag=planned["tag"], keep_later=True)
    assert before < names(main)
    assert "stop the Flink job with a savepoint" in undo.advice_for("wait_for_quiet[0]", None)[0]
    assert "main got newer rows" in undo.advice_for("wait_for_quiet", {"kind": "conflict"})[0]
    done = undo.verify_undone(params, [planned], [result.to_json()])
    assert done["snapshots"] == {"d.t": 5} and "in dt=1, and nothing else changed" in done["lines"][0]
    assert [p.operation for p in undoable_publishes(main)] == ["merge_branch", "rollback_to"]
    with pytest.raises(InvalidInputError, match="undone already, by snapshot 5"):
        undo.plan_undos(params)
    ((again,), _) = undo.plan_undos({**params, "tag": planned["tag"]})
    repeated = run(main, "rollback_to", tag=again["tag"], keep_later=True)
    assert "Nothing to undo" in undo.verify_undone(params, [again], [repeated.to_json()])["lines"][0]


def test_an_undo_of_new_keys_asks_in_the_forms_words_whether_writers_are_stopped(warehouse: Path) -> None:
    key = [("k", "BIGINT NOT NULL")]
    main = create_table(str(warehouse), "d.t", key, primary_keys=["k"], options={"bucket": "-1"})
    write_arrow(main, pa.table({"k": [1]}))
    run(main, "create_branch", branch="fix", snapshot=1)
    write_arrow(main.branch("fix"), pa.table({"k": [2]}))
    tag = run(main, "merge_branch", branch="fix", writers_stopped=True).details["undo_tag"]
    for dag in ("data_correction_undo", "pipeline_correction_undo"):
        params = form(dag, {"table": "d.t"})
        with pytest.raises(UnsafeOperationError) as caught:
            undo.plan_rollback(params, tag)
        (line,) = error_lines({"preview": error_to_json(caught.value)})
        assert "Use Writers are stopped when no writer is open" in line
        assert undo.plan_rollback({**params, "writers_stopped": True}, tag)["rows_deleted"] == 1


def test_a_publish_whose_undo_was_undone_can_be_undone_again(warehouse: Path) -> None:
    main, _ = corrected(warehouse)
    run(main, "merge_branch", branch="fix")
    wrong, published = names(main), last_publish(main)
    run(main, "rollback_to", tag=published.undo_tag, keep_later=True)
    (first_undo,) = undone_by(undoable_publishes(main)).values()
    run(main, "rollback_to", tag=first_undo.undo_tag, keep_later=True)
    assert names(main) == wrong
    ((planned,), _) = undo.plan_undos(form("data_correction_undo", {"table": "d.t"}))
    assert planned["tag"] == published.undo_tag
    result = run(main, "rollback_to", tag=planned["tag"], keep_later=True)
    assert (result.changed, result.snapshot_after) == (True, 6)
    assert undone_by(undoable_publishes(main))[published.undo_tag].snapshot.id == 6


def test_an_undo_that_does_not_hold_what_it_went_back_to_is_reported(warehouse: Path) -> None:
    main, _ = corrected(warehouse)
    run(main, "merge_branch", branch="fix")
    append(main, "2", seq=5)
    target = last_publish(main).before
    with pytest.raises(FormatError, match="dt=1/bucket-0"):
        verify_rollback(main, snapshot_id=4, target=target, keep_later=True)


def test_a_second_name_for_a_published_branch_is_refused(warehouse: Path) -> None:
    main, _ = corrected(warehouse)
    run(main, "merge_branch", branch="fix")
    params = form("data_correction", {"table": "d.t", "sql": "SELECT 1", "partitions": ["dt=1"], "branch": "fix"})
    assert correction.plan_correction(params, *OWNER.split("/"))["branch"] == "fix", "it is still there"
    run(main, "delete_branch", branch="fix")
    with pytest.raises(InvalidInputError, match="was published already, as snapshot 3"):
        correction.plan_correction(params, "data_correction", "r")


FOREIGN = {"by nobody in particular": None, "by another run": "data_correction/run-2", "by a person": "ann"}


@pytest.mark.every(2)
@pytest.mark.parametrize("owner", FOREIGN.values(), ids=FOREIGN)
def test_no_run_takes_somebodys_branch_nor_advises_to_delete_it_or_to_undo_its_publish(
    warehouse: Path, owner: str | None
) -> None:
    """The branch came between the check of the form and the task that makes branches, or before it."""
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    run(main, "create_branch", branch="fix", snapshot=1, owner=owner)
    rewrite(main.branch("fix"), "1")
    params = form("data_correction", {"table": "d.t", "sql": "SELECT 1", "partitions": ["dt=1"], "branch": "fix"})
    with pytest.raises(InvalidInputError, match="has a branch 'fix' already, not of this run"):
        correction.plan_correction(params, *OWNER.split("/"))
    lines = every_advice(main, params)
    whose = f": it belongs to {owner}" if owner else ""
    assert f"Branch fix is not of this run{whose}: leave it alone" in lines
    run(main, "merge_branch", branch="fix")
    lines += every_advice(main, params)
    assert any("it published nothing" in line for line in lines)
    assert not [line for line in lines if "job delete_" in line or "_undo" in line or "made from snapshot" in line]
    assert main.branch_names() == ["fix"] and main.latest_snapshot_id() == 3


def every_advice(main: Table, params: dict[str, Any]) -> list[str]:
    """What the runbooks say of each task that fails in each way, after they have cleaned up."""
    made, lines = planned(main), list[str]()
    tasks = [task.task_id for name in ("data_correction", "pipeline_correction") for task in load_dag(name).tasks]
    kinds = [*all_kinds(), "error"]
    for failed in dict.fromkeys(tasks):
        for error in [{"kind": kind, "message": f"{kind}: Use --writers-stopped"} for kind in kinds] + [None]:
            lines += leftovers.clean_up_run(params, [made], {failed: error["kind"] if error else None})
            lines += advice.next_steps(params, [made], failed, error)
    outcome, standing = report.describe_outcome(params, [made])
    half, of_all = report.describe_outcome({**params, "tables": [main.name]}, [made])
    return [*lines, outcome, *standing, half, *of_all]


def all_kinds() -> list[str]:
    found, left = list[str](), list(PaimonError.__subclasses__())
    while left:
        one = left.pop()
        found.append(one.kind)
        left += one.__subclasses__()
    return list(dict.fromkeys(found))


REFUSALS_FOR_SAFETY: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "what the SQL reaches": ("correct", {"message": "sql (--sql) reaches beyond the tables"}, None),
    "four eyes": (
        "merge",
        {"message": "merge_branch needs the approval of a second person (four-eyes rule), and nobody approved it"},
        None,
    ),
    "a form's field": ("check_params", {"message": "spark_options jars can't come from a form"}, None),
    "open writers": (
        "report",
        {"message": "Use writers_stopped (--writers-stopped) when no writer is open"},
        "with Writers are stopped",
    ),
    "a broken rule": ("check", {"message": "breaks 1 of 1 rules", "rules": [{}]}, "SQL that corrects the rows"),
    "main moved": ("report", {"message": "would drop", "would_discard": ["dt=1"]}, "Publish by: merge"),
}


@pytest.mark.parametrize("case", REFUSALS_FOR_SAFETY)
def test_after_a_refusal_for_safety_only_what_helps_is_advised(warehouse: Path, case: str) -> None:
    failed, error, helps = REFUSALS_FOR_SAFETY[case]
    main, _ = corrected(warehouse)
    params = form("data_correction", {"table": "d.t", "publish": "fast_forward"})
    lines = [
        *advice.next_steps(params, [planned(main)], failed, {"kind": "unsafe", **error}),
        *(undo.advice_for(failed, {"kind": "unsafe", **error}) if helps is None else ()),
        *(advice.form_advice({"kind": "unsafe", **error}) if failed == "check_params" else ()),
        *(erasure.advice_for(failed, {"kind": "unsafe", **error}) if helps is None else ()),
    ]
    said = [line for line in lines if line.startswith("What helps")]
    assert (helps is None and not said) or (len(said) == 1 and helps is not None and helps in said[0]), said


@pytest.mark.parametrize("engine", ["embedded", "connector"])
def test_a_statement_runs_on_either_engine_without_partitions(warehouse: Path, engine: str) -> None:
    append(make_table(warehouse), "1")
    conf = {"table": "d.t", "sql": "UPDATE branch SET v = 'x' WHERE dt = '1'", "engine": engine}
    assert correction.plan_correction(form("data_correction", conf), "data_correction", "r")["base_snapshot"] == 1
    with pytest.raises(InvalidInputError, match="leave out partitions"):
        correction.plan_correction(form("data_correction", {**conf, "partitions": ["dt=1"]}), "data_correction", "r")


# -- what is approved -------------------------------------------------------------------------------------------------


def planned(main: Table) -> dict[str, Any]:
    return {
        "table": main.name,
        "from_branch": "main",
        "branch": "fix",
        "tag": TAG,
        "owner": OWNER,
        "base_snapshot": 2,
    }


def plan_publish(params: dict[str, Any], main: Table, diff: dict[str, Any], snapshot: int) -> dict[str, Any]:
    return report.plan_publishes(params, [planned(main)], [{"diff": diff, "wait": snapshot}])


def test_fast_forward_is_refused_before_anybody_is_asked_when_main_moved(warehouse: Path) -> None:
    main, _ = corrected(warehouse)
    params = form("data_correction", {"table": "d.t", "publish": "fast_forward"})
    diff: dict[str, Any] = {"details": {}}
    append(main, "2", seq=5)
    with pytest.raises(UnsafeOperationError, match="a fast-forward would drop"):
        plan_publish(params, main, diff, 3)
    with pytest.raises(ConflictError, match="not at 2 as approved"):
        plan_publish({**params, "publish": "merge"}, main, diff, 2)


def test_a_correction_that_has_changed_nothing_has_nothing_to_approve_and_leaves_nothing(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    params = form("data_correction", {"table": "d.t"})
    same = {"against": "base", "branch": "fix", "branch_snapshot": 3, "against_snapshot": 2, "different": False,
            "buckets": {"compared": 0, "skipped": 0}, "partitions": []}  # fmt: skip
    assert plan_publish(params, main, {"details": same}, 3)["changes"]
    user = "airflow-data_correction-correct-fedcba9876543210"
    run(main, "rollback_to", branch="fix", snapshot=2, operation_id=user)
    assert not plan_publish(params, main, {"details": same}, 4)["changes"]
    assert leftovers.clean_up_unpublished({**params, "keep_branch": True}, [planned(main)]) == []
    assert "Cleaned up" in leftovers.clean_up_unpublished({**params, "clean_up": False}, [planned(main)])[0]
    assert main.branch_names() == main.tag_names() == []


def test_a_correction_of_a_chain_tables_branch_that_has_changed_nothing_leaves_nothing(warehouse: Path) -> None:
    main, tag = make_table(warehouse), leftovers.run_tag(OWNER)
    append(main, "1")
    run(main, "create_branch", branch="delta", snapshot=1)
    run(main, "create_tag", branch="delta", tag=tag)
    run(main, "create_branch", branch="fix", from_branch="delta", tag=tag, owner=OWNER)
    params = form("data_correction", {"table": "d.t$branch_delta"})
    made = {"table": "d.t", "from_branch": "delta", "branch": "fix", "tag": tag, "owner": OWNER}
    assert "Cleaned up: branch fix and tag" in leftovers.clean_up_unpublished(params, [made])[0]
    assert (main.branch_names(), tag in main.branch("delta").tag_names()) == (["delta"], False)


@pytest.mark.parametrize("publish", ["merge", "fast_forward"])
def test_a_required_check_without_a_result_ends_the_run_before_anybody_is_asked(warehouse: Path, publish: str) -> None:
    main, _ = corrected(warehouse)
    alter_table(main, [SetOption(key="airflow-paimon.required-checks", value='[{"not_null": "v"}]')])
    params = form("data_correction", {"table": "d.t", "publish": publish})
    with pytest.raises(UnsafeOperationError, match="the required check 'not_null v' has no result") as missing:
        plan_publish(params, main, {"details": {}}, 3)
    assert missing.value.details["missing_checks"] == ["not_null v"]
    first, *_ = advice.next_steps(params, [planned(main)], "report", error_to_json(missing.value))
    assert "clear task check with its downstream" in first


@pytest.mark.parametrize(
    ("producer", "changelog", "seen"),
    [
        ("none", "auto", "Streaming readers of d.t skip this snapshot, as any OVERWRITE, unless"),
        ("lookup", "auto", "Streaming readers of d.t get the net changes"),
        ("lookup", "none", "Streaming readers of d.t don't get these changes"),
    ],
)
def test_the_approver_reads_what_streaming_readers_see(
    warehouse: Path, producer: str, changelog: str, seen: str
) -> None:
    main, _ = corrected(warehouse)
    alter_table(main, [SetOption(key="changelog-producer", value=producer)])
    params = form("data_correction", {"table": "d.t", "publish": "merge", "changelog": changelog})
    plan = report.plan_merge(params, planned(main), SnapshotRef(3))
    assert seen in report.publish_facts("merge", "fix", plan)


def test_the_outcome_after_a_failure(warehouse: Path) -> None:
    main, _ = corrected(warehouse)
    outcome, lines = report.describe_outcome(FORM, [planned(main)])
    assert outcome == "main of d.t is untouched"
    assert lines[1:] == [
        f"Tag {TAG}: on snapshot 2 of main",
        "Branch fix: at snapshot 3, made from snapshot 2 of main",
    ]
    gone = {**planned(main), "branch": "other", "tag": "none"}
    assert report.describe_outcome(FORM, [gone])[1][1:] == ["d.t has no branch and no tag of this run"]
    run(main, "merge_branch", branch="fix")
    outcome, lines = report.describe_outcome(FORM, [planned(main)])
    assert outcome == "the correction is on main since snapshot 3"
    assert json.loads(lines[2]) == {"table": "d.t", "tag": last_publish(main).undo_tag}


@pytest.mark.parametrize(
    ("failed", "error", "conf", "helps"),
    [
        ("correct", {"kind": "invalid-input"}, {}, "correct what the message names"),
        ("correct", {"kind": "unsupported", "class": "UnsupportedFeatureError"}, {}, "Engine: connector"),
        (
            "correct",
            {"kind": "unsupported", "class": "UnsupportedFeatureError"},
            {"engine": "connector"},
            "nothing in this form",
        ),
        ("create_branch", {"kind": "unsupported", "class": "UnsupportedStorageError"}, {}, "nothing in this form"),
        ("merge", {"kind": "conflict"}, {}, "a new run starts from main as it is now"),
        ("create_branch", {"kind": "conflict"}, {}, "another job was faster"),
        (
            *("report", {"kind": "conflict", "message": "Use --keep-appended to keep them"}, {}),
            "or with Keep appended rows",
        ),
        ("merge", {"kind": "outcome-unknown"}, {}, "clear task merge"),
        ("verify", {"kind": "corrupt"}, {}, "Before anything else run check_table"),
        ("correct", {"kind": "storage"}, {}, "clear task correct with its downstream"),
        ("diff", None, {}, "with the sizes of killed Spark jobs in the runbook"),
        ("wait", None, {}, "the job that fills the branch"),
        ("wait_for_quiet", None, {}, "stop the Flink job with a savepoint"),
    ],
)
def test_the_advice_is_about_the_kind_of_failure(
    warehouse: Path, failed: str, error: dict[str, Any] | None, conf: dict[str, Any], helps: str
) -> None:
    main, _ = corrected(warehouse)
    first, *_ = advice.next_steps(form("data_correction", {"table": "d.t", **conf}), [planned(main)], failed, error)
    assert helps in first
    if error and error["kind"] in ("invalid-input", "unsupported", "conflict", "unsafe"):
        assert "clear" not in first, "the same request would fail the same way"


def test_the_commands_to_remove_what_a_run_made_do_that(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, _ = corrected(warehouse)
    params = form("data_correction", {"table": "d.t"})
    lines = advice.removal_advice(params, planned(main))
    assert "although it has 1 commit that main doesn't have (1 commit of another job): trigger data_" in lines[0]
    wanted = json.loads(lines[1])
    assert wanted == {"table": "d.t", "branches": ["fix"], "drop_unpublished": True}
    (listed,) = leftovers.list_leftovers(form("data_correction_cleanup", wanted), lambda owner: False)
    assert (listed["branch"], listed["tag"], listed["keep"]) == ("fix", TAG, None)
    head = main.branch("fix").latest_snapshot()
    assert head is not None and lines[3:] == [
        f"python -m airflow_paimon job {command} --if-missing skip"
        for command in (
            f"delete_branch --warehouse {warehouse} --table d.t --branch fix "
            f"--expected-branch-snapshot {head.id}:{head.identity}",
            f"delete_tag --warehouse {warehouse} --table d.t --tag {TAG}",
        )
    ]
    extra = {"warehouse": str(warehouse), "storage_options": {"auto_mkdir": False}}
    set_connection(monkeypatch, "paimon_default", "paimon", extra=extra)
    *commands, note = advice.removal_advice(params, planned(main))[3:]
    assert all("--storage-options FILE " in command for command in commands)
    assert advice.check_advice(params, {"verify": None, "diff": {"kind": "storage"}}) == []
    assert advice.check_advice(params, {"verify": {"kind": "corrupt"}}) == [
        f"python -m airflow_paimon job check_table --warehouse {warehouse} --table d.t --storage-options FILE", note
    ]  # fmt: skip
    assert "auto_mkdir" in note and "airflow connections get paimon_default" in note
    run(main, "delete_branch", branch="fix")
    assert "in a shell" in advice.removal_advice(params, planned(main))[0], "a DAG would remove other runs' tags, too"
    run(main, "delete_tag", tag=TAG)
    assert advice.removal_advice(params, planned(main)) == []


def test_nothing_to_publish_is_not_a_failure() -> None:
    params = form("data_correction", CONF)
    made = {"table": TABLE, "from_branch": "main", "branch": "fix"}
    found = report.verify_published(params, [made], [{"changed": False}])
    assert found["snapshot"] is None
    assert "Nothing was published" in found["lines"][0]


# -- what runs leave ---------------------------------------------------------------------------------------------------


def left_by_a_run(warehouse: Path, owner: str = OWNER, branch: str = "fix") -> Table:
    """Main, and the branch of a run that corrected it by its own task."""
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    run(main, "create_tag", tag=leftovers.run_tag(owner))
    run(main, "create_branch", branch=branch, tag=leftovers.run_tag(owner), owner=owner)
    rewrite(main.branch(branch), "1", user="airflow-data_correction-correct-0123456789abcdef")
    return main


def clean_up(
    main: Table, kinds: Mapping[str, str | None] | None = None, owner: str = OWNER, **conf: Any
) -> tuple[list[str], list[str], list[str]]:
    """Clean up as the run does; gives what it says, and the branches and tags of its kind that are left."""
    made = planned(main) | {"tag": leftovers.run_tag(owner), "owner": owner}
    lines = leftovers.clean_up_run(form("data_correction", {"table": "d.t", **conf}), [made], kinds or {})
    return lines, main.branch_names(), [t for t in main.tag_names() if t.startswith(leftovers.RUN_TAG_PREFIX)]


def test_a_failed_run_removes_its_branch_and_its_tags(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    lines, branches, _ = clean_up(main, {"correct": "storage"})
    assert lines == [f"Cleaned up: branch fix and tag {leftovers.run_tag(OWNER)} deleted"]
    assert branches == main.tag_names() == []
    assert clean_up(main)[0] == [], "a second time there is nothing to say"


@pytest.mark.parametrize("kind", ["outcome-unknown", "storage", None])
def test_nothing_is_cleaned_up_while_a_publish_may_land(warehouse: Path, kind: str | None) -> None:
    lines, branches, tags = clean_up(left_by_a_run(warehouse), {"merge": kind})
    assert "may still succeed" in lines[0]
    assert branches == ["fix"] and tags
    assert clean_up(open_main(form("data_correction", {"table": "d.t"})), {"merge": "conflict"})[1] == []


def test_a_run_leaves_alone_what_is_published_foreign_or_switched_off(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    assert clean_up(main, clean_up=False)[:2] == ([], ["fix"])
    assert clean_up(main, owner="data_correction/run-2")[1] == ["fix"], "it is another run's branch"
    rewrite(main.branch("fix"), "2", user="somebody")
    lines, branches, _ = clean_up(main)
    assert lines == ["Nothing was cleaned up: branch fix has 1 commit of another job"] and branches == ["fix"]
    run(main, "merge_branch", branch="fix")
    lines, branches, _ = clean_up(main, {"verify": "corrupt"})
    assert "the correction was published" in lines[0] and branches == ["fix"]


def listed(main: Table, running: Collection[str | None] = (), **conf: Any) -> dict[str, str | None]:
    params = form("data_correction_cleanup", {"table": main.name, **conf})
    found = leftovers.list_leftovers(params, running.__contains__)
    leftovers.remove_leftovers(params, found, running.__contains__)
    return {one["branch"] or one["tag"]: one["keep"] for one in found}


def test_the_cleanup_keeps_what_is_in_use_unpublished_or_not_of_a_run(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    run(main, "create_tag", tag="mine")
    run(main, "create_branch", branch="mine", tag="mine", owner="team/ann")
    orphan = leftovers.run_tag("data_correction/run-9")
    run(main, "create_tag", tag=orphan)
    before = (main.branch_names(), main.tag_names())
    busy = listed(main, {OWNER, None}, drop_unpublished=True)
    assert set(busy) == {"fix", orphan} and all(busy.values())
    assert (main.branch_names(), main.tag_names()) == before
    kept = listed(main)
    assert kept == {"fix": "it has 1 commit that main doesn't have", orphan: None}
    assert main.branch_names() == ["fix", "mine"] and orphan not in main.tag_names()
    assert listed(main, branches=["fix"], drop_unpublished=True) == {"fix": None}
    assert main.branch_names() == ["mine"]
    with pytest.raises(NotFoundError, match="mine: not the branch of a correction run"):
        listed(main, branches=["mine"], drop_unpublished=True)


@pytest.mark.parametrize("running", ["data_correction", "pipeline_correction", "correct_orders", "beside", None])
def test_a_tag_alone_is_in_use_while_any_correction_runs(running: str | None) -> None:
    class Runs:
        def get_dr_count(self, dag_id: str, run_ids: Any, states: Any) -> int:
            return int(dag_id == running and run_ids is None)

    correction_dag("beside")
    context: Any = {"ti": Runs(), "dag": correction_cleanup_dag("own_cleanup")}
    assert in_use(context, ["correct_orders"])(None) == (running is not None)


def test_the_cleanup_keeps_a_protected_branch(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    run(main, "alter_branch", branch="fix", protect=True, protected_by="ann", reason="evidence")
    assert listed(main, drop_unpublished=True) == {"fix": "it is protected by ann (evidence)"}
    assert clean_up(main)[:2] == (["Nothing was cleaned up: branch fix is protected by ann (evidence)"], ["fix"])
    (stays,) = advice.removal_advice(form("data_correction", {"table": "d.t"}), planned(main))
    assert stays.endswith("stays, as it is protected by ann (evidence)")
    run(main, "alter_branch", branch="fix", unprotect=True)
    assert listed(main, drop_unpublished=True) == {"fix": None}
    assert main.branch_names() == []


def test_the_cleanup_removes_a_published_branch_that_was_kept(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    run(main, "merge_branch", branch="fix")
    assert listed(main) == {"fix": None}
    assert main.branch_names() == []


@pytest.mark.parametrize(("undo_of_undo", "damaged"), [(False, False), (True, False), (False, True)])
def test_the_cleanup_keeps_a_branch_whose_publish_was_undone(
    warehouse: Path, undo_of_undo: bool, damaged: bool
) -> None:
    """It also stays where nothing but a damaged copy is left of what may have undone the publish."""
    main = left_by_a_run(warehouse)
    run(main, "merge_branch", branch="fix")
    back = run(main, "rollback_to", tag=last_publish(main).undo_tag, keep_later=True)
    if undo_of_undo:
        run(main, "rollback_to", tag=back.details["undo_tag"], keep_later=True)
    # the tag of an undo can run out before that of the publish
    main.store.delete(main.paths.tag(back.details["undo_tag"]))
    if damaged:
        [copy] = [path for path in main.store.walk(AUDIT.folder) if f"/{back.snapshot_after}-" in path]
        main.store.replace(copy, b"{")
        for tag in main.tags():
            if tag.snapshot.id == back.snapshot_after:
                main.store.delete(main.paths.tag(tag.name))
        rewrite(main, "2")
        main.store.delete(main.paths.snapshot(back.snapshot_after or 0))
    kept = None if undo_of_undo else "it has 1 commit that main doesn't have"
    assert listed(main) == {"fix": kept}
    assert main.branch_names() == ([] if undo_of_undo else ["fix"])


@pytest.mark.parametrize("whole", [True, False])
def test_a_rollback_to_an_earlier_snapshot_undoes_a_publish_unless_it_keeps_what_came_later(
    warehouse: Path, whole: bool
) -> None:
    main, _ = corrected(warehouse)
    run(main, "create_branch", branch="other", tag=TAG)
    rewrite(main.branch("other"), "2")
    first = run(main, "merge_branch", branch="other")
    run(main, "merge_branch", branch="fix")
    run(main, "rollback_to", tag=first.details["undo_tag"], keep_later=not whole)
    standing = [] if whole else ["fix"]
    assert [p.branch for p in publishes_still_on_main(main)] == standing
    outcome, _ = report.describe_outcome(FORM, [planned(main)])
    assert outcome == (
        "the correction was published as snapshot 4 of main, and undone since"
        if whole
        else "the correction is on main since snapshot 4"
    )


def test_the_cleanup_leaves_a_branch_that_was_written_since_it_was_listed(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    params = form("data_correction_cleanup", {"table": "d.t", "drop_unpublished": True})
    found = leftovers.list_leftovers(params, lambda owner: False)
    rewrite(main.branch("fix"), "2", user="somebody")
    gone, lines = leftovers.remove_leftovers(params, found, lambda owner: False)
    assert gone == 0 and lines[0] == "d.t: 0 leftovers removed" and "written since" in lines[1]
    assert main.branch_names() == ["fix"]


def test_the_cleanup_leaves_a_branch_that_is_written_after_its_last_look(warehouse: Path) -> None:
    main = left_by_a_run(warehouse)
    params = form("data_correction_cleanup", {"table": "d.t", "drop_unpublished": True})
    found = leftovers.list_leftovers(params, lambda owner: False)

    def write_now(owner: str | None) -> bool:
        """It is asked between the look at the branch and its deletion."""
        rewrite(main.branch("fix"), "2", user="somebody")
        return False

    gone, lines = leftovers.remove_leftovers(params, found, write_now)
    assert (
        gone == 0 and lines[0] == "d.t: 0 leftovers removed" and "not at 3 as expected; nothing was deleted" in lines[1]
    )
    assert main.branch_names() == ["fix"] and leftovers.run_tag(OWNER) in main.tag_names()


def test_a_jobs_flags_are_named_as_the_fields_of_the_form() -> None:
    error = {
        "kind": "invalid-input",
        "message": "sql (--sql): it takes every row; confirm with --all-rows (not --sql-file)",
    }
    assert error_lines({"correct": error, "report": None}) == [
        "correct: invalid-input: SQL: it takes every row; confirm with Allow full-table change (not --sql-file)",
        "report: see its log",
    ]
