"""Nightly maintenance of many tables: compact, expire partitions, branches, tags and snapshots, remove orphan files.

find_tables -> group_small_tables -> compact_together -> for each table: compact -> expire_partitions -> expire_branches
-> trigger_tag_automatic_creation -> expire_tags -> expire_snapshots -> remove_orphan_files (once a week);
then summary -> fail_on_errors. Small tables are compacted together, in one Spark application. Partitions expire by the
tables' own options alone. With a budget find_tables measures the tables, and leaves those that need nothing.
A step that fails ends the night of its own table: what is damaged is not deleted from.
docs/howto/nightly-maintenance.md explains the parameters. Trigger it with *Dry run* first.

| failed | mostly | what to do |
|---|---|---|
| `find_tables` | a wrong form or connection, or no table matches | trigger again |
| `compact` | Spark, memory, storage; or the table is damaged | its log; clear it with its downstream |
| `expire_...`, `remove_orphan_files` | something is unreadable; nothing was deleted | `check_table` |
| `fail_on_errors` | a table or a pattern; its log lists them | as above |

Clearing a table's tasks, or the whole run, is safe: what is done is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, Asset, AssetAlias, BaseNotifier, Param, task, task_group

from airflow_paimon.dags.factory import Changes, make_dag
from airflow_paimon.forms.locked import locked_names
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.links import task_url
from airflow_paimon.notify import choose_notifiers, send
from airflow_paimon.operators.maintenance import (
    BranchExpireOperator,
    CompactOperator,
    PartitionExpireOperator,
    RemoveOrphanFilesOperator,
    SnapshotExpireOperator,
    TagAutomaticCreationOperator,
    TagExpireOperator,
)
from airflow_paimon.runbooks import table_maintenance as night
from airflow_paimon.runbooks.fields import choice, number, shared, switch, text, texts
from airflow_paimon.runbooks.form import end_as_failed, form_value, in_airflows_terms, refuse_unknown, report_lines
from airflow_paimon.runbooks.tasks import DEFAULTS, SPARK

if TYPE_CHECKING:
    from airflow.sdk import Context

DAG_ID = "table_maintenance"
FREED = AssetAlias(DAG_ID)
GROUP = "maintain"
LABEL = "{{ task.table | truncate(200, True) }}"
MORE = "More: limits, connections"

PARAMS = {
    "tables": Param(
        type="array",
        items={"type": "string"},
        minItems=1,
        title="Tables",
        description="One name or pattern a line: sales.orders, sales.* or, for all tables of the connection, *",
    ),
    "older_than": text(
        "Expire snapshots after",
        "Age at which snapshots expire, such as 7 d. Empty: each table's own options "
        "(snapshot.time-retained, by default 1 h).",
    ),
    "orphan_day": choice(
        "Orphan files on",
        "The day, by the run's logical date, on which unreferenced files are deleted.",
        [*night.DAYS, night.EVERY_DAY, night.NEVER],
        "sunday",
    ),
    "budget": text(
        "Budget",
        "Measure the tables first, and maintain only those with work, the worst first. Bytes that "
        "compactions may rewrite, such as 500 gb; their time from the run's start, such as 2 h; "
        "or: unlimited. Empty: maintain all tables.",
    ),
    "dry_run": switch("Dry run", "Only report what would be compacted and deleted."),
    "exclude": Param(
        [],
        type="array",
        items={"type": "string"},
        section=MORE,
        title="Except",
        description="Names or patterns of tables to leave alone, one a line.",
    ),
    "compact": switch(
        "Compact",
        "Merge small files of append tables and buckets of primary-key tables, with Spark. "
        "Nothing else here needs Spark.",
        on=True,
        section=MORE,
    ),
    "min_files": number(
        "Small files",
        "Compact partitions of append tables that have at least this many small files.",
        5,
        minimum=2,
        section=MORE,
    ),
    "max_sorted_runs": number(
        "Sorted runs",
        "Merge buckets of primary-key tables that have more sorted runs than this. 5 leaves those "
        "alone that their writers compact. Empty: merge all completely.",
        5,
        type=["null", "integer"],
        section=MORE,
    ),
    "all_branches": switch(
        "Branches, too", "Expire snapshots and tags of all branches; otherwise of main only.", on=True, section=MORE
    ),
    "retain_min": number(
        "Snapshots to keep",
        "The newest snapshots that always stay. Empty: snapshot.num-retained.min, without it 10.",
        section=MORE,
    ),
    "retain_max": number(
        "Snapshots at most",
        "More expire, whatever their age. Empty: snapshot.num-retained.max, without it no limit.",
        section=MORE,
    ),
    "grace": text(
        "Grace time",
        "How long files of expired snapshots and tags stay for readers that began before, at least 10 min. "
        "The next run deletes what this one expires.",
        "1 h",
        section=MORE,
    ),
    "writers_stopped": switch(
        "Writers are stopped",
        "Confirm that no process writes, reads or tags the tables meanwhile: allows a shorter grace time.",
        section=MORE,
    ),
    "branches_idle_for": text(
        "Idle branches",
        "Also delete branches without a retention that had no commit for this time, such as 60 d. "
        "Protected branches, and those with commits that main doesn't have, stay.",
        section=MORE,
    ),
    "notify_before": text(
        "Announce branches",
        "The summary lists the branches that expire within this time. Empty: none.",
        "3 d",
        type=["null", "string"],
        section=MORE,
    ),
    "orphans_older_than": text(
        "Age of orphan files",
        "Longer than any writer takes from its first file to its commit; at least 1 h.",
        "1 d",
        section=MORE,
    ),
    "notify": texts(
        "Notify",
        "Who is notified of the results: names from the Paimon connection's extra notify, one a line. Empty: none.",
        section=MORE,
    ),
    **shared("paimon_conn_id", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=MORE),
}


def skip_if(*whys: Callable[[Context], str | None]) -> Callable[[Context], None]:
    """Make a function that skips a task for the first reason that there is, and leaves it for the summary."""

    def skip(context: Context) -> None:
        with in_airflows_terms(context):
            reason = next(filter(None, (why(context) for why in whys)), None)
        if reason is not None:
            context["ti"].xcom_push(key=night.SKIPPED, value=reason)
            raise AirflowSkipException(reason)

    return skip


def not_planned(context: Context) -> str | None:
    """Say that a night with a budget leaves a step out."""
    task = context["task"]
    plan = context["ti"].xcom_pull(task_ids="find_tables", key="plan")
    return night.why_not_planned(plan, task.task_id.rpartition(".")[2], task.table)


def no_time(context: Context) -> str | None:
    """Say that the budget's time is over."""
    return night.why_out_of_time(context["params"], context["dag_run"].start_date, datetime.now(UTC))


def not_its_day(context: Context) -> str | None:
    """Say that orphan files are removed on another day."""
    return night.why_no_orphan_cleaning(context["params"]["orphan_day"], day_of(context))


def not_compacted(context: Context) -> str | None:
    """Say why a table needs no compaction, or can't have one."""
    retried = context["ti"].try_number > 1
    return night.why_not_compacted(context["params"], context["task"].table, retried=retried)


def of_table(why: Callable[[Mapping[str, Any], str], str | None]) -> Callable[[Context], str | None]:
    """Ask about the task's table."""
    return lambda context: why(context["params"], context["task"].table)


class CompactIfNeeded(CompactOperator):
    """Skips a table that needs no compaction, or can't have one, or had one with others, before a job is submitted."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Look at the table first."""
        skip_if(not_planned)(context)
        if (done := night.done_together(context, self.table)) is not None:
            return done
        skip_if(no_time, not_compacted)(context)
        return super().execute(context)


@task
def find_tables(**context: Any) -> list[str]:
    """Check the form, and find the tables that it names; with a budget, those that have something to do."""
    ti, params = context["ti"], context["params"]
    with in_airflows_terms():
        refuse_unknown(context["dag_run"].conf, context["dag"].params)
        chosen_notifiers(params)
        found = night.choose_tables(params, locked_names(context["dag"].params))
        plan = night.measure(params, found["tables"], day_of(context))
    ti.xcom_push(key="missed", value=found["missed"])
    if plan is None:
        report_lines(f"{len(found['tables']):,} tables", *found["tables"])
        return list(found["tables"])
    report_lines(*night.describe_maintenance(plan))
    ti.xcom_push(key="plan", value=night.plan_to_json(plan))
    return [one.table for one in plan.tables]


@task
def group_small_tables(**context: Any) -> list[str]:
    """Put tables whose compaction is small together: each text names the tables of one Spark application."""
    ti = context["ti"]
    with in_airflows_terms():
        groups = night.small_groups(
            context["params"], ti.xcom_pull(task_ids="find_tables"), ti.xcom_pull(task_ids="find_tables", key="plan")
        )
    report_lines(f"{len(groups):,} groups of small tables", *groups)
    return groups


def chosen_notifiers(params: Mapping[str, Any]) -> list[BaseNotifier]:
    """Make the notifiers that the form names; unknown ones are refused."""
    conn_id = params["paimon_conn_id"]
    return choose_notifiers(PaimonHook(conn_id).notify, params["notify"] or [], conn_id)


def day_of(context: Context) -> datetime:
    """Return the run's day in the DAG's timezone."""
    run = context["dag_run"]
    day: datetime = (run.logical_date or run.run_after).astimezone(context["dag"].timezone)
    return day


@task_group(group_id=GROUP)
def maintain(table: str) -> None:
    """Look after one table."""
    compact = CompactIfNeeded(
        task_id="compact",
        table=table,
        trigger_rule="all_done",
        map_index_template=LABEL,
        max_active_tis_per_dagrun=4,
        min_files="{{ params.min_files }}",
        max_sorted_runs=form_value("max_sorted_runs"),
        **SPARK,
    )
    here: dict[str, Any] = {
        "table": table,
        "map_index_template": LABEL,
        "run_on": "worker",
        "trigger_rule": "none_failed",
        "dry_run": "{{ params.dry_run }}",
    }
    expiry: dict[str, Any] = {name: f"{{{{ params.{name} }}}}" for name in ("all_branches", "grace", "writers_stopped")}
    limits: dict[str, Any] = {name: form_value(name) for name in ("older_than", "retain_min", "retain_max")}
    idle: dict[str, Any] = {"idle_for": form_value("branches_idle_for"), "notify_before": form_value("notify_before")}
    planned: dict[str, Any] = {"pre_execute": skip_if(not_planned), **here}
    kept = of_table(night.why_kept_by_server)
    of_metadata: dict[str, Any] = {"pre_execute": skip_if(not_planned, kept), **here}
    no_expiry = skip_if(not_planned, of_table(night.why_no_partition_expiry))
    partitions = PartitionExpireOperator(task_id="expire_partitions", pre_execute=no_expiry, **here)
    branches = BranchExpireOperator(task_id="expire_branches", **idle, **planned)
    no_tags = skip_if(not_planned, kept, of_table(night.why_no_automatic_tags))
    automatic = TagAutomaticCreationOperator(task_id="trigger_tag_automatic_creation", pre_execute=no_tags, **here)
    tags = TagExpireOperator(task_id="expire_tags", **expiry, **of_metadata)
    snapshots = SnapshotExpireOperator(task_id="expire_snapshots", **limits, **expiry, **of_metadata)
    orphans = RemoveOrphanFilesOperator(
        task_id="remove_orphan_files",
        older_than="{{ params.orphans_older_than }}",
        pre_execute=skip_if(not_its_day, no_time, kept),
        **here,
    )
    compact >> partitions >> branches >> automatic >> tags >> snapshots >> orphans


@task(multiple_outputs=False, trigger_rule="all_done", outlets=[FREED])
def summary(**context: Any) -> dict[str, Any]:
    """Sum up what was freed, of which table; a run that is not a dry run leaves it in an asset event, too."""
    ti, dry_run = context["ti"], context["params"]["dry_run"]
    tables, plan = ti.xcom_pull(task_ids="find_tables"), ti.xcom_pull(task_ids="find_tables", key="plan")
    if not tables and plan is None:
        raise AirflowFailException("No tables were found: the log of find_tables shows why")
    missed = ti.xcom_pull(task_ids="find_tables", key="missed")
    nights = night.gather_outcomes(context, GROUP, tables or ())
    found = night.summarize(nights, missed or (), dry_run=dry_run, plan=plan)
    subject, markdown = night.render_summary(found)
    report_lines(subject, *markdown.splitlines())
    ti.xcom_push(key="markdown", value=markdown)
    with in_airflows_terms():
        send(chosen_notifiers(context["params"]), night.message_of(found, subject, task_url(ti)), context)
    if not dry_run:
        context["outlet_events"][FREED].add(Asset(DAG_ID), extra=found)
    return found


@task(retries=0)
def fail_on_errors(**context: Any) -> None:
    """Fail when a table's night failed, or a pattern matched nothing; the other tables have had theirs."""
    failed = context["ti"].xcom_pull(task_ids="summary")["failed"]
    if failed:
        end_as_failed(f"Failed: {len(failed):,}", *failed)


def maintenance_dag(dag_id: str = "table_maintenance", **changes: Unpack[Changes]) -> DAG:
    """Make the DAG that compacts and expires many tables, and removes orphan files.

    What can be changed: :class:`~airflow_paimon.dags.factory.Changes`.

    Raises:
        InvalidInputError: a change that this DAG can't have.
    """
    return make_dag(
        dag_id,
        add_tasks,
        changes,
        params=PARAMS,
        default_args={**DEFAULTS, "retry_delay": timedelta(minutes=1)},
        description="Compact tables, expire branches, tags and snapshots, remove orphan files, report freed bytes",
        doc=__doc__,
    )


def add_tasks() -> None:
    """Add the tasks, in the order of their names above."""
    tables, groups = find_tables(), group_small_tables()
    # What it leaves undone, the table's own task does.
    together = CompactOperator.partial(
        task_id="compact_together",
        map_index_template=LABEL,
        max_active_tis_per_dagrun=4,
        retries=0,
        min_files="{{ params.min_files }}",
        max_sorted_runs=form_value("max_sorted_runs"),
        pre_execute=skip_if(no_time),
        **SPARK,
    ).expand(table=groups)
    tables >> groups >> together >> (maintained := maintain.expand(table=tables))
    maintained >> summary() >> fail_on_errors()
