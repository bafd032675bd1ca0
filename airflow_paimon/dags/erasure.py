"""Erase rows of a condition from a Paimon table, on all branches and from its files, with an approval and a proof.

check_params -> plan -> report -> approve -> check_plan -> erase -> wait -> prove -> certificate -> assert_complete.
Until erase nothing is changed. wait ends when files have waited for readers that began before; prove erases once more
what came meanwhile, and reads what is stored. certificate has the report that an auditor keeps.
docs/howto/erase-rows.md explains the form. Clearing a task, or the whole run, is safe: what is done is not done again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

from airflow.sdk import DAG, Param, chain, task

from airflow_paimon._compat import mask_secret
from airflow_paimon.dags.factory import Changes, make_dag
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.links import task_url
from airflow_paimon.notify import choose_notifiers, send
from airflow_paimon.operators.erasure import EraseRowsOperator
from airflow_paimon.runbooks import erasure as runbook
from airflow_paimon.runbooks.advice import check_advice
from airflow_paimon.runbooks.fields import shared, switch, text
from airflow_paimon.runbooks.form import (
    end_as_failed,
    error_lines,
    failed_errors,
    form_value,
    in_airflows_terms,
    report_lines,
)
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.runbooks.tasks import APPROVED_BY, DEFAULTS, SPARK, ask_for_approval, check_form, end_as_rejected
from airflow_paimon.task_run import triggering_user

MORE = "More: waiting, connections"

PARAMS = {
    **shared("table"),
    "where": Param(
        type="string",
        minLength=1,
        title="Condition",
        description="Which rows, such as user_id = 17. Results, logs and reports don't show it, but this "
        "run's configuration does: use a surrogate key, not a name or an address.",
    ),
    "reason": text("Reason", "Why: a ticket's number, not a person. The audit keeps it."),
    "expire_tags": switch(
        "Expire tags",
        "Expire the tags that still reference such rows, undo tags included, for all rows of the "
        "table. The approver sees which. Off: they stay, and the erasure isn't complete until "
        "they have expired.",
    ),
    "expire_history": switch(
        "Expire old snapshots",
        "Expire the snapshots that still reference such rows: the table can't be read as of then "
        "any more. Off: they stay, and the erasure isn't complete until they have expired.",
    ),
    "approval": switch("Ask for approval", "Wait until the plan was reviewed and approved.", on=True),
    **shared("notify", "remind_before", "approvers", "four_eyes"),
    "skip_checks": switch(
        "Skip checks",
        "Erase although the table requires checks: no check can inspect the result of an erasure. "
        "The approver sees it, and the snapshots record it.",
    ),
    "grace": text(
        "Grace time",
        "How long files stay for readers that began before, at least 10 min. The run waits for it.",
        "1 h",
        section=MORE,
    ),
    "orphans_older_than": text(
        "Age of orphan files",
        "Unreferenced files with such rows are deleted once they are older; at least 1 h. The run waits for it.",
        "1 d",
        section=MORE,
    ),
    "writers_stopped": switch(
        "Writers are stopped",
        "Confirm that no process writes, reads or tags the table: allows a shorter grace time.",
        section=MORE,
    ),
    **shared("paimon_conn_id", "spark_conn_id", "in_spark", "spark_conf", "spark_options", section=MORE),
}
_WORDS = ("expire_tags", "expire_history", "grace", "orphans_older_than", "writers_stopped", "skip_checks")
ERASURE: dict[str, Any] = {
    "where": form_value("where"),
    "limit": 0,
    "reason": form_value("reason"),
    **{name: f"{{{{ params.{name} }}}}" for name in _WORDS},
}


@task(multiple_outputs=False, show_return_value_in_logs=False)
def check_params(**context: Any) -> dict[str, Any]:
    """Check the form against the table."""
    params = context["params"]
    mask_secret(params["where"])
    with in_airflows_terms():
        check_form(context, context["dag"].params)
        checked = runbook.check_erasure(params)
    report_lines(f"{checked['table']}: rows with {checked['condition']}")
    return checked


@task(multiple_outputs=False, show_return_value_in_logs=False)
def plan(**context: Any) -> dict[str, Any]:
    """Find what would be erased and what would end, and who holds it. Changes nothing."""
    mask_secret(context["params"]["where"])
    with in_airflows_terms():
        return runbook.plan_erasure(context["params"])


@task(multiple_outputs=False, show_return_value_in_logs=False)
def report(**context: Any) -> dict[str, str]:
    """Render the plan. A legal hold ends the run here."""
    ti = context["ti"]
    checked, planned = ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="plan")
    with in_airflows_terms():
        made = runbook.describe_plan(context["params"], checked, planned, triggering_user(context))
    report_lines(made["subject"], *made["markdown"].splitlines())
    return made


@task
def check_plan(**context: Any) -> None:
    """Refuse if the erasure would end more than was approved."""
    params = context["params"]
    mask_secret(params["where"])
    with in_airflows_terms():
        runbook.check_approved(params, context["ti"].xcom_pull(task_ids="plan"))


@task.sensor(mode="reschedule", poke_interval=60, timeout=timedelta(days=8).total_seconds())
def wait(**context: Any) -> bool:
    """Wait until what was taken away may go for good."""
    until = runbook.due(context["params"], context["ti"].xcom_pull(task_ids="erase"))
    return until is None or until <= datetime.now(UTC)


@task(multiple_outputs=False, show_return_value_in_logs=False)
def certificate(**context: Any) -> dict[str, Any]:
    """Make the report for auditors, and tell the notifiers."""
    ti, params = context["ti"], context["params"]
    checked, answer = ti.xcom_pull(task_ids="check_params"), ti.xcom_pull(task_ids="approve")
    runs = [ti.xcom_pull(task_ids=name) for name in ("erase", "prove")]
    made = runbook.certificate(params, checked, runs, answer, triggering_user(context))
    report_lines(made["subject"], *made["markdown"].splitlines())
    with in_airflows_terms():
        hook = PaimonHook(params["paimon_conn_id"])
        chosen = choose_notifiers(hook.notify, params["notify"] or None, hook.paimon_conn_id)
        send(chosen, runbook.message_of(made, checked, task_url(ti)), context)
    return made


@task(retries=0)
def assert_complete(**context: Any) -> None:
    """Fail while a stored file holds such a row, or could not be told."""
    made = context["ti"].xcom_pull(task_ids="certificate")
    if made["complete"]:
        return
    record = made["record"]
    lines = [f"{h['kind']} {h['name'] or ''} of {h['branch']} keeps {h['files']:,} files: {h['way']}"
             for h in record["references"]]  # fmt: skip
    lines += [f"not read: {one['path']}: {one['reason']}" for one in record["unchecked"]]
    lines.append("When that has ended: clear task erase with its downstream")
    end_as_failed(made["subject"], *lines)


@task(trigger_rule="one_failed", retries=0)
def report_failure(**context: Any) -> None:
    """Say what failed and what to do. Changes nothing, and fails the run."""
    errors = failed_errors(context)
    erased = context["ti"].xcom_pull(task_ids="erase")
    outcome = "rows were erased, the proof is missing" if erased else "what was erased stays erased; see the audit"
    helps = [*runbook.advice_for(*next(iter(errors.items()))), *check_advice(context["params"], errors)]
    end_as_failed(f"{', '.join(errors)} failed; {outcome}", *error_lines(errors), *helps)


def erasure_dag(dag_id: str = "row_erasure", **changes: Unpack[Changes]) -> DAG:
    """Make the DAG that erases rows of a condition, and proves it."""
    return make_dag(
        dag_id,
        add_tasks,
        changes,
        params=PARAMS,
        default_args={**DEFAULTS, "table": "{{ params.table }}"},
        description="Erase rows of a Paimon table for good, on all branches, with a proof",
        doc=__doc__,
        kind=Kind.ERASURE,
    )


def add_tasks() -> None:
    """Add the tasks, in the order of their names above."""
    who: dict[str, Any] = {
        "approved_by": APPROVED_BY,
        "four_eyes": "{{ ti.xcom_pull(task_ids='approve')['four_eyes'] }}",
    }
    approve = ask_for_approval("check_plan", four_eyes="{{ params.four_eyes }}")
    erase = EraseRowsOperator(task_id="erase", **ERASURE, **who, **SPARK)
    prove = EraseRowsOperator(task_id="prove", **ERASURE, **who, **SPARK)
    steps = [
        check_params(), plan(), report(), approve, check_plan(), erase, wait(), prove, certificate(), assert_complete(),
    ]  # fmt: skip
    chain(*steps)
    approve >> end_as_rejected(lambda context: ("nothing was erased", []))
    steps >> report_failure()
