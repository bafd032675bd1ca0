"""Runs of the DAGs for corrections and erasures that are about one table, from Airflow's database."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import ColumnElement, String, and_, cast, or_, select
from sqlalchemy.orm import Session

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.paths import parse_identifier
from airflow_paimon.forms.locked import is_locked
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.plugin.tabs.corrections_plan import Approval, TableRun
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.task_run import PROGRESS_KEY, RAN_ON_KEY

_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDag:
    """A DAG that a factory made. ``form``: what its fields hold where a run says nothing; ``locked``: always.

    ``stale``: Airflow knows its runs, but no file makes it any more.
    """

    dag_id: str
    kind: Kind
    stale: bool
    form: Mapping[str, Any]
    locked: Collection[str]

    def takes(self, form: Mapping[str, Any], conn_id: str) -> bool:
        """Say whether it may be triggered with this form, which is about a table of this connection."""
        made = {**self.form, **form}
        same = (made.get("paimon_conn_id") or PaimonHook.default_conn_name) == conn_id
        return same and all(form[name] == self.form[name] for name in self.locked if name in form)


def known_dags() -> list[KnownDag]:
    """Find the DAGs of this Airflow by the tag that their factory gave them, by kind and id."""
    kinds = {kind.tag: kind for kind in Kind}
    with create_session() as session:
        rows = session.execute(
            select(DagModel.dag_id, DagModel.is_stale, DagTag.name)
            .join(DagTag, DagTag.dag_id == DagModel.dag_id)
            .where(DagTag.name.in_(list(kinds)))
        )
        found = [_known(session, dag_id, bool(stale), kinds[tag]) for dag_id, stale, tag in rows.all()]
    return sorted(found, key=lambda dag: (dag.kind, dag.dag_id))


def _known(session: Session, dag_id: str, stale: bool, kind: Kind) -> KnownDag:
    stored = SerializedDagModel.get(dag_id, session=session)
    params = dict(stored.data["dag"].get("params") or ()) if stored is not None and stored.data else {}
    schemas = {name: param.get("schema") or {} for name, param in params.items()}
    locked = {name for name, schema in schemas.items() if is_locked(schema.get("__var", schema))}
    form = {name: param.get("default") for name, param in params.items()}
    return KnownDag(dag_id=dag_id, kind=kind, stale=stale, form=form, locked=locked)


def runs_of(table: str, conn_id: str, dags: Sequence[KnownDag]) -> list[TableRun]:
    """Find the newest runs of these DAGs about a table, the newest first."""
    known = {dag.dag_id: dag for dag in dags}
    with create_session() as session:
        rows = session.execute(
            select(
                DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.conf, DagRun.triggering_user_name,
                DagRun.queued_at, DagRun.start_date,
            )
            .where(DagRun.dag_id.in_(known), _may_be_about(table, conn_id, dags))
            .order_by(DagRun.id.desc())
            .execution_options(yield_per=_SHOWN)
        )  # fmt: skip
        about = (row for row in rows if is_about(_form_of(row, known), table, conn_id))
        found = list(islice(about, _SHOWN))
        rows.close()
        if not found:
            return []
        # Of more runs than these, where several DAGs have runs of one id.
        of_these = and_(
            TaskInstance.dag_id.in_({row.dag_id for row in found}), TaskInstance.run_id.in_({r.run_id for r in found})
        )
        tasks, approvals = _tasks(session, of_these), _approvals(session, of_these)
        said = _said(session, of_these, PROGRESS_KEY, "running")
        ran_on = _said(session, of_these, RAN_ON_KEY, "success")
    return [
        TableRun(
            dag_id=row.dag_id,
            kind=known[row.dag_id].kind,
            run_id=row.run_id,
            state=str(getattr(row.state, "value", row.state) or "queued"),
            conf=_form_of(row, known),
            by=row.triggering_user_name or "",
            began=row.start_date or row.queued_at,
            tasks=tasks.get((row.dag_id, row.run_id), {}),
            approval=approvals.get((row.dag_id, row.run_id)),
            progress=said.get((row.dag_id, row.run_id), {}),
            ran_on=ran_on.get((row.dag_id, row.run_id), {}),
        )
        for row in found
    ]


def _form_of(row: Any, known: Mapping[str, KnownDag]) -> dict[str, Any]:
    return {**known[row.dag_id].form, **(row.conf if isinstance(row.conf, dict) else {})}


def _may_be_about(table: str, conn_id: str, dags: Sequence[KnownDag]) -> ColumnElement[bool]:
    """Leave out what surely is about other tables: the text of a form must name this one, if the DAG itself doesn't."""
    database, _, name = table.partition(".")
    spelled = [f"{database}{one}.{other}{name}" for one in ("", "`") for other in ("", "`")]
    texts = {*spelled, *(json.dumps(text)[1:-1] for text in spelled)}
    by_itself = [dag.dag_id for dag in dags if is_about(dag.form, table, conn_id)]
    conf = cast(DagRun.conf, String)
    return or_(DagRun.dag_id.in_(by_itself), *(conf.contains(text, autoescape=True) for text in texts))


def is_about(form: Mapping[str, Any], table: str, conn_id: str) -> bool:
    """Say whether a form names this table of this connection."""
    several = form.get("tables")
    tables = [form.get("table"), *(several if isinstance(several, list) else ())]
    names = (one.get("table") if isinstance(one, dict) else one for one in tables)
    where = form.get("paimon_conn_id") or PaimonHook.default_conn_name
    return where == conn_id and any(isinstance(one, str) and _names(one, table) for one in names)


def _names(text: str, table: str) -> bool:
    try:
        named = parse_identifier(text)
    except InvalidInputError:
        return False
    return f"{named.database}.{named.table}" == table


def _tasks(session: Session, of_runs: ColumnElement[bool]) -> dict[tuple[str, str], dict[str, str]]:
    rows = session.execute(
        select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state).where(of_runs)
    ).all()
    out: dict[tuple[str, str], dict[str, str]] = {}
    for dag_id, run_id, task_id, state in rows:
        tasks, now = out.setdefault((dag_id, run_id), {}), str(getattr(state, "value", state) or "")
        tasks[task_id] = min(now, tasks.get(task_id, now), key=_weight)
    return out


def _weight(state: str) -> int:
    """Order the states of a mapped task's parts: one that failed, or has not ended, tells more than one that has."""
    return 0 if state == "failed" else {"success": 2, "skipped": 3, "removed": 4}.get(state, 1)


def _said(
    session: Session, of_runs: ColumnElement[bool], key: str, state: str
) -> dict[tuple[str, str], dict[str, str]]:
    """Return what tasks in a state have left in their XCom of this key, which is a text."""
    rows = session.execute(
        select(XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.value)
        .join(
            TaskInstance,
            and_(*(getattr(TaskInstance, name) == getattr(XComModel, name)
                   for name in ("dag_id", "run_id", "task_id", "map_index"))),
        )
        .where(of_runs, XComModel.key == key, TaskInstance.state == state)
    ).all()  # fmt: skip
    out: dict[tuple[str, str], dict[str, str]] = {}
    for dag_id, run_id, task_id, value in rows:
        if isinstance(value, str):
            out.setdefault((dag_id, run_id), {})[task_id] = value.strip('"')
    return out


def _approvals(session: Session, of_runs: ColumnElement[bool]) -> dict[tuple[str, str], Approval]:
    from airflow.models.hitl import HITLDetail

    rows = session.execute(
        select(TaskInstance.dag_id, TaskInstance.run_id, HITLDetail)
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .where(of_runs)
    ).all()
    return {(dag_id, run_id): _approval(detail) for dag_id, run_id, detail in rows}


def _approval(detail: Any) -> Approval:
    by = detail.responded_by or {}
    return Approval(
        subject=detail.subject,
        asked_at=getattr(detail, "created_at", None),  # the first 3.1 may not keep it
        answered_at=detail.responded_at,
        answered_by=str(by.get("name") or by.get("id") or ""),
        answer=", ".join(detail.chosen_options or ()),
    )
