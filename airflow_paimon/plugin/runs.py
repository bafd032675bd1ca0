"""Runs of the DAGs for corrections and erasures that are about one table, from Airflow's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.paths import parse_identifier
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.task_run import PROGRESS_KEY, RAN_ON_KEY

CORRECT, UNDO, CLEAN_UP = "data_correction", "data_correction_undo", "data_correction_cleanup"
ERASE = "row_erasure"
DAGS = (CORRECT, UNDO, CLEAN_UP, ERASE)
_LOOKED_AT = 1000
_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """What a run asks or asked people."""

    subject: str
    asked_at: datetime | None
    answered_at: datetime | None
    answered_by: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """A run about the table, as the database has it. ``tasks``: states by task id; ``progress``: of running ones;
    ``ran_on``: ``spark`` or ``worker``, of operators' tasks that ended.
    """

    dag_id: str
    run_id: str
    state: str
    conf: Mapping[str, Any]
    by: str
    began: datetime | None
    ended: datetime | None
    tasks: Mapping[str, str] = field(default_factory=dict)
    approval: Approval | None = None
    progress: Mapping[str, str] = field(default_factory=dict)
    ran_on: Mapping[str, str] = field(default_factory=dict)


def known_dags(names: Sequence[str] = DAGS) -> set[str]:
    """Name those of some DAGs that this Airflow has."""
    with create_session() as session:
        return set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(names), ~DagModel.is_stale)))


def runs_of(table: str, conn_id: str, dag_ids: Sequence[str]) -> list[TableRun]:
    """Find the newest runs about a table, the newest first, among the last 1,000 runs of these DAGs."""
    with create_session() as session:
        rows = session.execute(
            select(
                DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.conf, DagRun.triggering_user_name,
                DagRun.queued_at, DagRun.start_date, DagRun.end_date,
            )
            .where(DagRun.dag_id.in_(dag_ids))
            .order_by(DagRun.id.desc())
            .limit(_LOOKED_AT)
        ).all()  # fmt: skip
        found = [row for row in rows if is_about(row.conf, table, conn_id)][:_SHOWN]
        tasks = _tasks(session, [(row.dag_id, row.run_id) for row in found])
        asked = _approvals(session, [(row.dag_id, row.run_id) for row in found])
        said = _said(session, PROGRESS_KEY, "running", [(row.dag_id, row.run_id) for row in found])
        ran_on = _said(session, RAN_ON_KEY, "success", [(row.dag_id, row.run_id) for row in found])
    return [
        TableRun(
            dag_id=row.dag_id,
            run_id=row.run_id,
            state=str(getattr(row.state, "value", row.state) or "queued"),
            conf=row.conf or {},
            by=row.triggering_user_name or "",
            began=row.start_date or row.queued_at,
            ended=row.end_date,
            tasks=tasks.get((row.dag_id, row.run_id), {}),
            approval=asked.get((row.dag_id, row.run_id)),
            progress=said.get((row.dag_id, row.run_id), {}),
            ran_on=ran_on.get((row.dag_id, row.run_id), {}),
        )
        for row in found
    ]


def is_about(conf: Any, table: str, conn_id: str) -> bool:
    """Say whether a run's form names this table of this connection."""
    if not isinstance(conf, dict) or not isinstance(conf.get("table"), str):
        return False
    try:
        named = parse_identifier(conf["table"])
    except InvalidInputError:
        return False
    where = conf.get("paimon_conn_id") or PaimonHook.default_conn_name
    return f"{named.database}.{named.table}" == table and where == conn_id


def _tasks(session: Session, runs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, str]]:
    if not runs:
        return {}
    rows = session.execute(
        select(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state).where(
            TaskInstance.dag_id.in_({d for d, _ in runs}), TaskInstance.run_id.in_({r for _, r in runs})
        )
    ).all()
    out: dict[tuple[str, str], dict[str, str]] = {}
    for dag_id, run_id, task_id, state in rows:
        out.setdefault((dag_id, run_id), {})[task_id] = str(getattr(state, "value", state) or "")
    return out


def _said(
    session: Session, key: str, state: str, runs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, str]]:
    """Return what tasks in a state have left in their XCom of this key, which is a text."""
    if not runs:
        return {}
    rows = session.execute(
        select(XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.value)
        .join(
            TaskInstance,
            and_(*(getattr(TaskInstance, name) == getattr(XComModel, name)
                   for name in ("dag_id", "run_id", "task_id", "map_index"))),
        )
        .where(
            XComModel.key == key, XComModel.dag_id.in_({d for d, _ in runs}),
            XComModel.run_id.in_({r for _, r in runs}), TaskInstance.state == state,
        )
    ).all()  # fmt: skip
    out: dict[tuple[str, str], dict[str, str]] = {}
    for dag_id, run_id, task_id, value in rows:
        if isinstance(value, str):
            out.setdefault((dag_id, run_id), {})[task_id] = value.strip('"')
    return out


def _approvals(session: Session, runs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Approval]:
    from airflow.models.hitl import HITLDetail

    if not runs:
        return {}
    rows = session.execute(
        select(TaskInstance.dag_id, TaskInstance.run_id, HITLDetail)
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .where(TaskInstance.dag_id.in_({d for d, _ in runs}), TaskInstance.run_id.in_({r for _, r in runs}))
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
