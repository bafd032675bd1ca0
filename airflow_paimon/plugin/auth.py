"""Who may see the page: read access to the Airflow connection, asked of Airflow's auth manager.

The page reads a warehouse with the connection's credentials, so whoever may not read that connection may not look
through it either. Runs of DAGs are shown to those who may read the DAG's runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import (
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import get_user, requires_access_connection
from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException

signed_in = Depends(get_user)
"""Refuses requests without a valid token: 401."""
may_read_connection = Depends(requires_access_connection("GET"))
"""Refuses users who may not read the connection that the path names: 403."""


def require_any_connection(user: BaseUser) -> None:
    """Refuse a user who may read no connection at all. ``HTTPException`` 403."""
    if not get_auth_manager().is_authorized_connection(method="GET", user=user):
        raise HTTPException(403, "You may not read Airflow connections; the page Paimon needs that right")


def readable_connections(user: BaseUser, more: Iterable[str]) -> set[str]:
    """Name the connections of Airflow's database that the user may read, and those of ``more``."""
    manager = get_auth_manager()
    allowed = set(manager.get_authorized_connections(user=user, method="GET"))
    for name in more:
        details = ConnectionDetails(conn_id=name, **of_team(Connection, name))
        if manager.is_authorized_connection(method="GET", details=details, user=user):
            allowed.add(name)
    return allowed


def may_read_dag(user: BaseUser, dag_id: str, *, runs: bool = False) -> bool:
    """Say whether the user may see a DAG, or its ``runs``."""
    details, part = DagDetails(id=dag_id, **of_team(DagModel, dag_id)), DagAccessEntity.RUN if runs else None
    return get_auth_manager().is_authorized_dag(method="GET", access_entity=part, details=details, user=user)


def of_team(model: type[Connection] | type[DagModel], name: str) -> dict[str, str]:
    """Return the argument ``team_name`` of a look-up; none where Airflow has no teams, or this belongs to none."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return {}
    team = model.get_team_name(name)
    return {} if team is None else {"team_name": team}
