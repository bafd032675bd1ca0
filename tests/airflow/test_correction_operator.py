"""What the correction operator does before it corrects: back to the branch's base, and never in a dry run."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import CorrectBranch, ReplayBranch
from airflow_paimon.core.table.table import Table
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.correction import CorrectFromBaseOperator, branch_owner
from airflow_paimon.operators.pipeline import ReplayTablesOperator
from airflow_paimon.task_run import operation_id
from tests.airflow.conftest import RunDag
from tests.core.tables import append, make_table, message, names, run

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]


@dataclass(frozen=True)
class Instance:
    """What Airflow says of a task instance. ``max_tries`` is raised by Clear."""

    dag_id: str = "mend"
    run_id: str = "r1"
    task_id: str = "correct"
    map_index: int = -1
    max_tries: int = 2


def context_of(instance: Instance) -> Any:
    return {"ti": instance}


@pytest.fixture
def branch(warehouse: Path) -> Table:
    """A branch that run r1 made, and that the correction's task has written before it was cleared."""
    main = make_table(warehouse)
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1, owner=branch_owner(context_of(Instance())))
    view = main.branch("fix")
    write(view, operation_id(context_of(Instance())))
    return view


def write(view: Table, user: str) -> None:
    commit_append(
        view,
        [message(view, "1", seq=1)],
        CommitOptions(identity=CommitIdentity(user=user)),
        planned_on=view.latest_snapshot(),
    )


def prepare(instance: Instance, **values: Any) -> None:
    operator = CorrectFromBaseOperator(task_id="correct", table="d.t", branch="fix", sql="SELECT 1")
    hook = PaimonHook("paimon_default")
    asked = {"warehouse": hook.warehouse, "table": "d.t", "branch": "fix", "sql": "x.sql", **values}
    request = build_request(CorrectBranch.operation, asked)
    operator._prepare(hook, request, context_of(instance))


def test_clear_starts_from_the_base_and_a_retry_does_not(branch: Table) -> None:
    base, corrected = names(branch.branch("main")), names(branch)
    prepare(Instance())
    assert names(branch) == corrected
    prepare(Instance(max_tries=3))
    assert names(branch) == base
    prepare(Instance(max_tries=6))
    assert names(branch) == base


def test_a_dry_run_leaves_the_branch_as_it_is(branch: Table) -> None:
    before = branch.snapshot_ids(), branch.branch("main").tag_names(), branch.tag_names()
    prepare(Instance(max_tries=3), dry_run=True)
    assert (branch.snapshot_ids(), branch.branch("main").tag_names(), branch.tag_names()) == before


@pytest.mark.parametrize("user", ["a-flink-job", operation_id(context_of(Instance(task_id="correct-too")))])
def test_commits_of_somebody_else_are_not_dropped(branch: Table, user: str) -> None:
    write(branch, user)
    with pytest.raises(UnsafeOperationError, match=user):
        prepare(Instance(max_tries=3))
    with pytest.raises(UnsafeOperationError, match="belongs to mend/r1"):
        prepare(Instance(run_id="r2"))


def prepare_replay(max_tries: int, **values: Any) -> None:
    operator = ReplayTablesOperator(task_id="replay", tables=[])
    hook = PaimonHook("paimon_default")
    asked = {"warehouse": hook.warehouse, "table": "d.t", "branch": "fix", "source": ["up=d.up"], "function": "m:f"}
    request = build_request(ReplayBranch.operation, {**asked, **values})
    operator._prepare(hook, request, context_of(Instance(task_id="replay", max_tries=max_tries)))


def test_clear_of_a_replay_starts_from_the_base_unless_streams_go_on(warehouse: Path) -> None:
    main = make_table(warehouse)
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1, owner=branch_owner(context_of(Instance())))
    branch, base = main.branch("fix"), names(main)
    for number in (1, 2):  # one commit for each statement
        write(branch, f"{operation_id(context_of(Instance(task_id='replay')))}-t-{number}")
    replayed = names(branch)
    prepare_replay(2)
    prepare_replay(3, available_now=True)
    assert names(branch) == replayed
    prepare_replay(3)
    assert names(branch) == base
    write(branch, "a-flink-job")
    with pytest.raises(UnsafeOperationError, match="a-flink-job"):
        prepare_replay(6)


def test_a_refusal_is_in_xcom(branch: Table, run_dag: RunDag) -> None:
    with DAG("test_foreign_branch", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        CorrectFromBaseOperator(task_id="correct", table="d.t", branch="fix", sql="SELECT 1", retries=2)
    ended = run_dag(dag)
    assert ended.tasks == {"correct": ("failed", 1)}
    assert ended.xcom("correct", "paimon_error")["kind"] == "unsafe"
