"""What the operators' tasks announce without being asked: events of the branches that they changed."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk import DAG, Asset, AssetAlias

from airflow_paimon._compat import PARTITION_KEYS
from airflow_paimon.assets import paimon_asset
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.table.new_snapshots import partitions_written
from airflow_paimon.operators._partition_events import MOST_CHARACTERS, announce_partitions
from airflow_paimon.operators.branch import (
    CreateBranchOperator,
    CreateTagOperator,
    DeleteBranchOperator,
    DiffBranchesOperator,
    MergeBranchOperator,
    RenameBranchOperator,
    RollbackOperator,
)
from airflow_paimon.operators.chain import AlterChainTableOperator, CreateChainTableOperator
from airflow_paimon.operators.maintenance import CheckTableOperator, PartitionExpireOperator
from tests.airflow.conftest import RunDag, register
from tests.core.tables import append, make_table, rewrite

pytestmark = pytest.mark.airflow

START = datetime(2026, 1, 1, tzinfo=UTC)
MAIN = "paimon://paimon_default/d/t"


def test_only_a_task_that_changed_rows_or_columns_is_an_event(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    append(main, "2")
    with DAG(
        "asset_events", schedule=None, start_date=START, default_args={"table": "d.t"}, params={"b": "fix"}
    ) as dag:
        tag = CreateTagOperator(task_id="tag", tag="before")
        create = CreateBranchOperator(task_id="create", branch="{{ params.b }}", tag="before")
        again = CreateBranchOperator(task_id="again", branch="fix", tag="before", if_exists="skip")
        rename = RenameBranchOperator(task_id="rename", branch="fix", to_branch="mend")
        plan = RollbackOperator.partial(task_id="plan", dry_run=True).expand(snapshot=[1])
        back = RollbackOperator.partial(task_id="back").expand(snapshot=[1])
        check = CheckTableOperator(task_id="check")
        delete = DeleteBranchOperator(task_id="delete", branch="mend")
        tag >> create >> again >> rename >> plan >> back >> check >> delete
    run = run_dag(dag)
    assert run.state == "success", run.tasks
    assert [(uri, extra["operation"], extra["snapshot_after"]) for uri, extra in run.asset_events] == [
        (f"{MAIN}/fix", "create_branch", 2),
        (f"{MAIN}/mend", "rename_branch", 2),
        (MAIN, "rollback_to", 3),
    ]
    assert run.asset_events[2][1] == run.xcom("back", map_index=0)


def test_a_chain_table_announces_each_branch_that_it_altered(warehouse: Path, run_dag: RunDag) -> None:
    with DAG("asset_events_chain", schedule=None, start_date=START, default_args={"table": "d.t"}) as dag:
        create = CreateChainTableOperator(
            task_id="create",
            column=["k BIGINT", "dt STRING"],
            primary_key=["dt", "k"],
            partition_key="dt",
            timestamp_pattern="$dt",
            timestamp_formatter="yyyyMMdd",
            sequence_field="k",
            option=["bucket=1"],
        )
        alter = AlterChainTableOperator(task_id="alter", change=["add column w INT"])
        expire = PartitionExpireOperator(task_id="expire", expiration_time="1 d")
        create >> alter >> expire
    run = run_dag(dag)
    assert run.state == "success", run.tasks
    assert [(uri, extra["operation"]) for uri, extra in run.asset_events] == [
        (MAIN, "create_chain_table"),
        (f"{MAIN}/snapshot", "alter_chain_table"),
        (f"{MAIN}/delta", "alter_chain_table"),
        (MAIN, "alter_chain_table"),
    ]


def test_an_event_reaches_the_asset_of_any_name_and_every_alias_once(warehouse: Path, run_dag: RunDag) -> None:
    """Airflow keeps one active asset per URI. An asset of ours beside the user's would be inactive and start no DAG."""
    main = make_table(warehouse, "d.named")
    append(main, "1")
    append(main, "2")
    uri = "paimon://paimon_default/d/named"  # in the metadata database the other tests have theirs
    named = Asset(name="orders", uri=uri)
    for name, schedule in {"reads_named": [named], "reads_alias": [AssetAlias("changes")]}.items():
        with DAG(name, schedule=schedule, start_date=START, is_paused_upon_creation=False) as reader:
            CheckTableOperator(task_id="read", table="d.named")
        register(reader)
    with DAG("writes", schedule=None, start_date=START, default_args={"table": "d.named"}) as dag:
        RollbackOperator(task_id="back", snapshot=1, outlets=[AssetAlias("changes")])
    with DAG("writes_both", schedule=None, start_date=START, default_args={"table": "d.named"}) as both:
        RollbackOperator(task_id="back", snapshot=2, outlets=[named, AssetAlias("changes")])
    for writer in (dag, both):
        run = run_dag(writer)
        assert run.state == "success", run.tasks
        assert [uri for uri, _ in run.asset_events] == [uri]
        assert _queued("reads_named", "reads_alias") == {("reads_named", "orders"), ("reads_alias", "orders")}


def _queued(*dag_ids: str) -> set[tuple[str, str]]:
    """The DAGs that the events of assets have asked the scheduler to start, and by which asset."""
    from airflow.models.asset import AssetDagRunQueue, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(AssetDagRunQueue.target_dag_id, AssetModel.name).join(
        AssetModel, AssetModel.id == AssetDagRunQueue.asset_id
    )
    with create_session() as session:
        return {(d, a) for d, a in session.execute(query.where(AssetDagRunQueue.target_dag_id.in_(dag_ids)))}


def test_the_dag_says_which_branches_its_tasks_read_and_write_where_the_arguments_name_them() -> None:
    with DAG("asset_ports", schedule=None, start_date=START, default_args={"table": "d.t"}) as dag:
        MergeBranchOperator(task_id="merge", branch="fix", outlets=[AssetAlias("mine")])
        DiffBranchesOperator(task_id="diff", branch="fix")
        DiffBranchesOperator(task_id="diff_other", branch="fix", against="other")
        CreateBranchOperator(task_id="create", branch="{{ params.b }}", tag="t")
        CheckTableOperator(task_id="rendered", table="{{ params.t }}")
    ports = {t.task_id: ([a.name for a in t.inlets], [a.name for a in t.outlets]) for t in dag.tasks}
    assert ports == {
        "merge": ([f"{MAIN}/fix", MAIN], ["mine", MAIN]),
        "diff": ([f"{MAIN}/fix", MAIN], []),
        "diff_other": ([f"{MAIN}/fix", f"{MAIN}/other"], []),
        "create": ([MAIN], []),
        "rendered": ([], []),
    }


def test_a_merge_announces_main_and_nothing_else(warehouse: Path, run_dag: RunDag) -> None:
    main = make_table(warehouse)
    append(main, "1")
    with DAG("asset_events_merge", schedule=None, start_date=START, default_args={"table": "d.t"}) as dag:
        CreateBranchOperator(task_id="create", branch="fix", snapshot=1)
    assert run_dag(dag).state == "success"
    rewrite(main.branch("fix"), "1")
    with DAG("asset_events_merge", schedule=None, start_date=START, default_args={"table": "d.t"}) as dag:
        first = MergeBranchOperator(task_id="first", branch="fix")
        first >> MergeBranchOperator(task_id="second", branch="fix")
    run = run_dag(dag)
    assert run.state == "success", run.tasks
    assert [(uri, extra["snapshot_before"]) for uri, extra in run.asset_events] == [(MAIN, 1)]


@pytest.mark.skipif(not PARTITION_KEYS, reason="partition keys of asset events came with Airflow 3.3")
def test_three_partitions_start_three_runs_of_a_dag_that_runs_by_partition(warehouse: Path, run_dag: RunDag) -> None:
    from airflow.sdk import PartitionedAssetTimetable

    # Of its own: while a DAG names the asset by partition, each change of the table has events more.
    main = make_table(warehouse, "d.days")
    for dt in ("0", "1", "2", "3"):
        append(main, dt)
    by_partition = paimon_asset("paimon_default", "d.days", by_partition=True)
    schedule = PartitionedAssetTimetable(assets=by_partition)
    with DAG("by_partition", schedule=schedule, start_date=START, is_paused_upon_creation=False) as each:
        CheckTableOperator(task_id="check", table="d.days")
    with DAG("by_commit", schedule=[paimon_asset("paimon_default", "d.days")], start_date=START) as ordinary:
        CheckTableOperator(task_id="check", table="d.days")
    for dag in (each, ordinary):
        register(dag)
    with DAG("changes_three", schedule=None, start_date=START, default_args={"table": "d.days"}) as dag:
        branch = CreateBranchOperator(task_id="branch", branch="fix", snapshot=4)
        branch >> RollbackOperator(task_id="back", snapshot=1) >> RollbackOperator(task_id="again", snapshot=1)
    run = run_dag(dag)
    assert run.state == "success", run.tasks
    uri = paimon_asset("paimon_default", "d.days").uri
    uris = sorted(one for one, _ in run.asset_events)
    assert uris == [uri, f"{uri}/fix", *[by_partition.uri] * 3]
    assert [extra for one, extra in run.asset_events if one == by_partition.uri] == [run.xcom("back")] * 3
    assert sorted(_runs_by_partition("by_partition")) == ["dt=1", "dt=2", "dt=3"]


def _runs_by_partition(dag_id: str) -> list[str]:
    """Let the scheduler make the runs that events with keys ask for; give the partitions of the DAG's runs."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    runner = SchedulerJobRunner(job=Job(), num_runs=1)
    with create_session() as session:
        runner._create_dagruns_for_partitioned_asset_dags(session)
        return list(session.scalars(select(DagRun.partition_key).where(DagRun.dag_id == dag_id)).all())


def test_a_key_names_each_partition_that_a_snapshot_wrote(warehouse: Path) -> None:
    main = make_table(warehouse)
    for dt in ("1", "2", "2"):
        append(main, dt)
    assert partitions_written(main, 0, 2) == ["dt=1", "dt=2"]
    assert partitions_written(main, 1, 3) == ["dt=2"]
    with pytest.raises(NotFoundError, match="have expired"):
        partitions_written(main, 3, 4)


@pytest.mark.skipif(not PARTITION_KEYS, reason="partition keys of asset events came with Airflow 3.3")
def test_a_partition_whose_key_airflow_refuses_gets_no_event_and_fails_no_task(warehouse: Path) -> None:
    from airflow.sdk.definitions.asset import AssetUniqueKey
    from airflow.sdk.execution_time.context import OutletEventAccessor

    main, longest = make_table(warehouse), "x" * (MOST_CHARACTERS - len("dt="))
    for dt in ("1", longest, f"{longest}x"):
        append(main, dt)
    asset = paimon_asset("paimon_default", "d.t", by_partition=True)
    accessor = OutletEventAccessor(key=AssetUniqueKey.from_asset(asset))
    result = {"operation": "rollback_to", "table": "d.t", "branch": "main", "snapshot_before": 0, "snapshot_after": 3}
    assert announce_partitions("paimon_default", {Asset.ref(uri=asset.uri): accessor}, result) is not None
    assert accessor.partition_keys == {"dt=1", f"dt={longest}"}
    with pytest.raises(ValueError, match="at most"):
        accessor.add_partitions(f"dt={longest}x")
