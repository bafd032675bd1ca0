"""How the DAGs of this package are made, and what a DAG's author may change about them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from airflow.providers.common.compat.sdk import ParamValidationError
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, TaskGroup

from airflow_paimon.core.errors import InvalidInputError, did_you_mean
from airflow_paimon.forms.locked import lock
from airflow_paimon.runbooks.kinds import Kind, note
from airflow_paimon.runbooks.pages import with_links

_HERE = str(Path(__file__).parent)
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
_BY_ITSELF = ("dag_id", "default_args", "description", "params", "schedule", "tags")
_OF_THE_FORM = ("table", "paimon_conn_id", "spark_conn_id")
_OF_OTHER_FORMS = ("table", "tables", "publish")
"""By these fields tasks that several DAGs have know what a run is about."""
OwnTasks = Callable[[], object]
"""Makes tasks of the DAG's author; how they depend on each other is up to it. One that is skipped skips nothing of the
runbook; one that fails ends the run, as any task does."""


class Changes(TypedDict, total=False):
    """What every factory takes besides ``dag_id``.

    ``schedule``, ``tags``, ``description``, ``dag_arguments`` (any other argument of Airflow's ``DAG``) and
    ``default_args`` (added to the runbook's own) are Airflow's. ``paimon_conn_id`` and ``spark_conn_id`` lock these
    fields. ``fields`` adds fields to the form, ``defaults`` fills some in, ``locked`` fixes and hides some. What is
    locked is the DAG's own code; what a form passes, defaults included, is limited by the Paimon connection.
    """

    schedule: Any
    tags: Sequence[str]
    description: str
    default_args: Mapping[str, Any]
    dag_arguments: Mapping[str, Any]
    paimon_conn_id: str
    spark_conn_id: str
    fields: Mapping[str, Param]
    defaults: Mapping[str, Any]
    locked: Mapping[str, Any]


def make_dag(
    dag_id: str,
    add_tasks: Callable[[], None],
    changes: Changes,
    *,
    params: Mapping[str, Param],
    default_args: Mapping[str, Any],
    description: str,
    doc: str | None,
    kind: Kind | None = None,
) -> DAG:
    """Make a DAG whose tasks ``add_tasks`` adds. ``kind``: of one that the page and other DAGs' advice look for.

    Raises:
        InvalidInputError: a change that the runbook can't have; the file is then an import error in Airflow.
    """
    where = f"DAG {dag_id!r}"
    _refuse_wrong(where, changes)
    form = _form(where, params, changes)
    schedule = changes.get("schedule")
    if schedule is not None and (empty := [n for n, p in form.items() if not _may_be_left(p)]):
        raise InvalidInputError(f"{where} has a schedule: give {', '.join(empty)} a value in defaults or locked")
    with DAG(
        dag_id,
        schedule=schedule,
        params=form,
        tags=[*changes.get("tags", ("paimon",)), *([kind.tag] if kind else ())],
        description=changes.get("description", description),
        default_args={**default_args, **changes.get("default_args", {})},
        **{"catchup": False, "doc_md": with_links(doc), **changes.get("dag_arguments", {})},
    ) as dag:
        dag.fileloc = _calling_file()
        if kind is not None:
            note(dag.fileloc, dag_id, kind)
        add_tasks()
    return dag


def add_own_tasks(name: str, make: OwnTasks | None, earlier: Any, later: Any, last: Any) -> None:
    """Put the author's tasks between two tasks, and before ``last``.

    ``later`` waits for a task that is skipped only if ``earlier`` is: a skipped task of the author's would otherwise
    skip the approval, or the cleaning up.

    Raises:
        InvalidInputError: ``make`` made no task.
    """
    if make is None:
        return
    with TaskGroup(name, prefix_group_id=False) as group:
        make()
    if not group.children:
        raise InvalidInputError(f"DAG {group.dag.dag_id!r}: {name} made no task")
    done = EmptyOperator(task_id=f"{name}_done", trigger_rule="none_failed_min_one_success")
    earlier >> group >> done
    earlier >> done >> [later, last]


def _refuse_wrong(where: str, changes: Changes) -> None:
    known = set(Changes.__annotations__)
    if unknown := sorted(set(changes) - known):
        named = ", ".join(name + did_you_mean(name, known) for name in unknown)
        raise InvalidInputError(f"{where}: there is no argument {named}; dag_arguments takes those of Airflow's DAG")
    if mine := [name for name in _BY_ITSELF if name in changes.get("dag_arguments", {})]:
        raise InvalidInputError(
            f"{where}: dag_arguments can't have {', '.join(mine)}: these are arguments of the function, and fields of "
            f"the form (params) are in fields, defaults and locked"
        )
    if isinstance(changes.get("tags"), str):
        raise InvalidInputError(f"{where}: tags must be a list, such as [{changes.get('tags')!r}]")
    default_args = changes.get("default_args", {})
    for name in _OF_THE_FORM:
        if name in default_args:
            raise InvalidInputError(f"{where}: default_args can't have {name}, a field of the form: put it into locked")
    if "trigger_rule" in default_args:
        raise InvalidInputError(f"{where}: default_args can't have trigger_rule: it decides what is published")


def _form(where: str, params: Mapping[str, Param], changes: Changes) -> dict[str, Param]:
    """Return the fields in the form's order: added ones before those that are folded away, unless they are as well."""
    added, defaults = changes.get("fields", {}), changes.get("defaults", {})
    connections: dict[str, Any] = {n: v for n, v in changes.items() if n in ("paimon_conn_id", "spark_conn_id")}
    locked = {**changes.get("locked", {}), **connections}
    for name, param in added.items():
        if not name.isidentifier():
            raise InvalidInputError(f"{where}: field {name!r} needs a name that a template can use, such as ticket_id")
        if name in params:
            raise InvalidInputError(f"{where}: the form has a field {name} already; change it by defaults or locked")
        if name in _OF_OTHER_FORMS:
            raise InvalidInputError(f"{where}: field {name} has the name of a field of other forms; use another name")
        if not isinstance(param, Param):
            raise InvalidInputError(f"{where}: field {name} must be a Param, such as switch('Title', 'What it is')")
    known = {**{name: _of_draft_7(param) for name, param in params.items()}, **added}
    if unknown := [name for name in (*defaults, *locked) if name not in known]:
        named = ", ".join(name + did_you_mean(name, known) for name in unknown)
        raise InvalidInputError(f"{where}: the form has no field {named}. It has: {', '.join(known)}")
    if twice := sorted(set(defaults) & set(locked)):
        raise InvalidInputError(f"{where}: {', '.join(twice)} can't be in defaults and locked at the same time")
    ordered = sorted(known, key=lambda name: "section" in known[name].schema)
    return {name: _field(f"{where}, field {name}", known[name], name, defaults, locked) for name in ordered}


def _of_draft_7(param: Param) -> Param:
    """Airflow checks each field's schema once a task whenever it serializes the DAG, the newest draft's thrice as long.

    A runbook's own schemas say nothing that draft 7 doesn't have.
    """
    return Param(param.value, param.description, **{"$schema": _DRAFT_7, **param.schema})


def _field(where: str, param: Param, name: str, defaults: Mapping[str, Any], locked: Mapping[str, Any]) -> Param:
    try:
        if name in locked:
            return lock(param, locked[name])
        made = Param(defaults.get(name, param.value), param.description, **param.schema)
        if name in defaults:
            made.resolve()
        return made
    except ParamValidationError as error:
        raise InvalidInputError(f"{where}: {str(error).splitlines()[0]}") from None


def _may_be_left(param: Param) -> bool:
    try:
        Param(param.value, **param.schema).resolve()
    except ParamValidationError:
        return False
    return True


def _calling_file() -> str:
    """Return the file that calls the factory: Airflow looks for a DAG's templates beside it."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code.co_filename
