"""Nightly maintenance of a chain table: compact long chains, group by group, expire whole segments, report its state.

plan -> compact (a mapped task for each group with something to do) -> expire -> metrics -> fail_on_skipped. Each
partition is committed on its own, and only while what it was built from stands; so a run that is cleared, killed or
started twice repeats nothing and loses nothing. docs/howto/chain-maintenance.md explains the parameters.

To see its state: `python -m airflow_paimon chain --warehouse W --table db.t`. When a task has failed, its log says why:

| failed | mostly | what to do |
|---|---|---|
| `plan` | a wrong form, no such table, a branch missing | trigger again, or `check_chain_table` |
| `compact`, `conflict` | another writer changed what it merged | clear it with its downstream, later |
| `compact`, memory | other groups are done | trigger again with more memory in *Spark options* |
| `compact`, anything else | Spark, storage; other groups are done | clear it with its downstream |
| `expire`, `metrics` | storage; what was dropped is not dropped again | clear it with its downstream |
| `fail_on_skipped` | a partition without a partition time, which its group waits for | docs/failed-nights.md |

`expire` and `metrics` wait until every group is through. Clearing the whole run is safe.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, AssetAlias, Param, task

from airflow_paimon.assets import paimon_asset
from airflow_paimon.dags.factory import Changes, make_dag
from airflow_paimon.forms.locked import locked_names
from airflow_paimon.operators.chain import ChainCompactOperator
from airflow_paimon.operators.maintenance import PartitionExpireOperator
from airflow_paimon.runbooks import chain_maintenance as runbook
from airflow_paimon.runbooks.fields import choice, number, shared, switch, text
from airflow_paimon.runbooks.form import (
    end_as_failed,
    form_of,
    form_value,
    in_airflows_terms,
    refuse_unknown,
    report_lines,
)
from airflow_paimon.runbooks.tasks import DEFAULTS, SPARK

if TYPE_CHECKING:
    from airflow.sdk import Context

FIGURES = AssetAlias("nightly_chain_maintenance")
MORE = "More: limits, connections"
# Of the groups of a job. Airflow keeps 250 characters of it; PostgreSQL refuses more, and with it the task's success.
LABEL = """\
{%- set groups = task.partition or ['all'] -%}
{{ groups[:3] | join(' + ') | replace("'", '') | truncate(200, True) }}
{%- if groups | length > 3 %} and {{ groups | length - 3 }} more{% endif %}"""

PARAMS = {
    "table": Param(
        type="string",
        minLength=3,
        title="Table",
        description="The chain table, as database.table",
    ),
    "date": text(
        "Date",
        "Compact this date into full partitions, such as 2026-11-20, 2026-11-20T05:00:00, or {ds} "
        "for the run's date. Empty: every partition whose chain is too long, and stale ones.",
    ),
    "max_chain_length": number(
        "Longest chain",
        "How many deltas a read may have to merge; longer chains are compacted. 0: all.",
        6,
        minimum=0,
    ),
    "gap_policy": choice(
        "Gaps",
        "For groups without a delta at the date. empty: left out, as in Paimon. carry_forward: "
        "compacted from the days before.",
        ["empty", "carry_forward"],
    ),
    "dry_run": switch("Dry run", "Only report what would be compacted and expired, and why."),
    "expiration_time": text(
        "Expire after",
        "Age at which segments expire, such as 90 d. Empty: the table's option "
        "partition.expiration-time; without it nothing expires.",
    ),
    "min_full_partitions": number(
        "Anchors to keep", "Full partitions that each group keeps at least, however old.", 1, section=MORE
    ),
    "max_jobs": number(
        "Compaction jobs",
        "With more groups than this to compact, several share a task and its Spark job.",
        16,
        maximum=500,
        section=MORE,
    ),
    **shared("paimon_conn_id", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=MORE),
}


@task
def plan(**context: Any) -> list[dict[str, Any]]:
    """Check the form, say what is to be compacted and why, and give the mapped tasks their groups."""
    with in_airflows_terms():
        refuse_unknown(context["dag_run"].conf, context["dag"].params)
        planned = runbook.plan_chain_maintenance(form_of(context), locked_names(context["dag"].params))
    report_lines(*planned["lines"])
    for key in ("expires", "left_out"):
        context["ti"].xcom_push(key=key, value=planned[key])
    return [] if context["params"]["dry_run"] else list(planned["jobs"])


@task(multiple_outputs=False, trigger_rule="none_failed", outlets=[FIGURES])
def metrics(**context: Any) -> dict[str, Any]:
    """Sum up the night and how the table stands; a run that is not a dry run leaves it in an asset event, too."""
    ti, params = context["ti"], context["params"]
    # By their numbers: a single mapped task's result would come without a list around it, and a cleared run that had
    # more of them keeps the results of those that it has no longer.
    numbers = range(len(ti.xcom_pull(task_ids="plan") or ()))
    compacted = ti.xcom_pull(task_ids="compact", map_indexes=numbers) if numbers else []
    with in_airflows_terms():
        found = runbook.summarize_chain_maintenance(params, compacted, ti.xcom_pull(task_ids="expire"))
    report_lines(*(f"{name}: {value}" for name, value in found.items()))
    if not params["dry_run"]:
        context["outlet_events"][FIGURES].add(paimon_asset(params["paimon_conn_id"], found["table"]), extra=found)
    return found


@task(retries=0)
def fail_on_skipped(**context: Any) -> None:
    """Fail when a group had to be left out; the others have had their night."""
    left_out = context["ti"].xcom_pull(task_ids="plan", key="left_out")
    if left_out:
        end_as_failed(f"Groups that were left out: {len(left_out):,}", *left_out)


def unless_nothing_expires(context: Context) -> None:
    """Skip the expiry of a table for which nothing says how old its partitions may become."""
    if not context["ti"].xcom_pull(task_ids="plan", key="expires"):
        raise AirflowSkipException("Neither 'Expire after' nor option partition.expiration-time sets an age")


def chain_dag(dag_id: str = "nightly_chain_maintenance", **changes: Unpack[Changes]) -> DAG:
    """Make the DAG that compacts the chains of a chain table and expires old segments.

    What can be changed: :class:`~airflow_paimon.dags.factory.Changes`.

    Raises:
        InvalidInputError: a change that this DAG can't have.
    """
    return make_dag(
        dag_id,
        add_tasks,
        changes,
        params=PARAMS,
        default_args={**DEFAULTS, "retry_delay": timedelta(minutes=1), "table": "{{ params.table }}"},
        description="Compact the chains of a Paimon chain table, expire old segments, report its state",
        doc=__doc__,
    )


def add_tasks() -> None:
    """Add the tasks, in the order of their names above."""
    planned = plan()
    compact = ChainCompactOperator.partial(
        task_id="compact",
        map_index_template=LABEL,
        max_active_tis_per_dagrun=4,
        gap_policy="{{ params.gap_policy }}",
        **SPARK,
    ).expand_kwargs(planned)
    expire = PartitionExpireOperator(
        task_id="expire",
        trigger_rule="none_failed",
        expiration_time=form_value("expiration_time"),
        min_full_partitions="{{ params.min_full_partitions }}",
        dry_run="{{ params.dry_run }}",
        pre_execute=unless_nothing_expires,
    )
    compact >> expire >> metrics() >> fail_on_skipped()
