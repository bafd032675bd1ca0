"""Remove what corrections left in a table: their branches and the tags on what they started from.

find -> remove. A branch that a running correction uses is never removed; one with commits that main doesn't have only
when the form says so. Main is not touched. docs/runbook.md is the page for the person on call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, task

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.dags.factory import Changes, make_dag
from airflow_paimon.runbooks import leftovers
from airflow_paimon.runbooks.fields import shared, switch, texts
from airflow_paimon.runbooks.form import has_active_runs, in_airflows_terms, refuse_unknown, report_lines
from airflow_paimon.runbooks.kinds import CORRECTING, Kind, beside

if TYPE_CHECKING:
    from airflow.sdk import Context

PARAMS = {
    **shared("table"),
    "branches": texts("Branches", "Only these, one a line. Empty: everything that corrections left."),
    "drop_unpublished": switch(
        "Also what was never published",
        "On: also delete branches with commits that main doesn't have, such as those of rejected "
        "corrections. These rows are then lost.",
    ),
    "only_list": switch("Only list", "List what exists, whose it is and what would be deleted, and delete nothing."),
    **shared("paimon_conn_id"),
}


def in_use(context: Context, corrections: Sequence[str]) -> leftovers.InUse:
    """Ask Airflow whether the run that owns a branch has ended."""

    def ask(owner: str | None) -> bool:
        if owner is None:
            known = {*CORRECTING, *beside(context["dag"].dag_id, *CORRECTING), *corrections}
            return any(has_active_runs(context, dag_id) for dag_id in known)
        dag_id, _, run_id = owner.partition("/")
        return has_active_runs(context, dag_id, run_id or None)

    return ask


@task(show_return_value_in_logs=False)
def find(corrections: Sequence[str] = (), **context: Any) -> list[dict[str, Any]]:
    """Check the form, and list what there is."""
    with in_airflows_terms():
        refuse_unknown(context["dag_run"].conf, context["dag"].params)
        listed = leftovers.list_leftovers(context["params"], in_use(context, corrections))
    report_lines(*leftovers.describe(listed, context["params"]["table"]))
    return listed


@task
def remove(corrections: Sequence[str] = (), **context: Any) -> None:
    """Remove what was listed to go, if it is still what it was. Skipped when that is nothing."""
    if context["params"]["only_list"]:
        raise AirflowSkipException("Only list is on: nothing is removed")
    with in_airflows_terms():
        listed = context["ti"].xcom_pull(task_ids="find")
        removed, lines = leftovers.remove_leftovers(context["params"], listed, in_use(context, corrections))
    report_lines(*lines)
    if not removed:
        raise AirflowSkipException("There was nothing to remove")


DEFAULT_ARGS: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=30)}


def correction_cleanup_dag(
    dag_id: str = "data_correction_cleanup", *, corrections: Sequence[str] = (), **changes: Unpack[Changes]
) -> DAG:
    """Make the DAG that removes branches and tags that corrections left.

    ``corrections``: ids of DAGs that correct, besides ``data_correction``, ``pipeline_correction`` and those of this
    file: while one of them runs, a tag without a branch may be its own, and stays. The rest:
    :class:`~airflow_paimon.dags.factory.Changes`.

    Raises:
        InvalidInputError: a change that this DAG can't have.
    """
    if isinstance(corrections, str):
        raise InvalidInputError(f"DAG {dag_id!r}: corrections must be a list of ids, such as [{corrections!r}]")
    return make_dag(
        dag_id,
        partial(add_tasks, corrections),
        changes,
        params=PARAMS,
        default_args=DEFAULT_ARGS,
        description="Remove branches and tags that corrections of a Paimon table left",
        doc=__doc__,
        kind=Kind.CLEANUP,
    )


def add_tasks(corrections: Sequence[str]) -> None:
    """Add the tasks, in the order of their names above."""
    named = {"corrections": list(corrections)} if corrections else {}
    find(**named) >> remove(**named)
