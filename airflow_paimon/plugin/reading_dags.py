"""DAGs that an update of a table concerns, from Airflow's database: scheduled on its asset, or reading it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow.models.asset import (
    AssetAliasModel,
    AssetModel,
    DagScheduleAssetAliasReference,
    DagScheduleAssetNameReference,
    DagScheduleAssetReference,
    DagScheduleAssetUriReference,
    TaskOutletAssetReference,
)
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_paimon.assets import SCHEME, paimon_asset_uri

_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingDag:
    """``how``: what connects the DAG with the table. ``makes``: tables of the same connection that its tasks update."""

    dag_id: str
    how: str
    paused: bool
    makes: tuple[str, ...] = ()


def reading_dags(conn_id: str, table: str) -> list[ReadingDag]:
    """Find the DAGs, by name; at most 100."""
    uris = [paimon_asset_uri(conn_id, table), paimon_asset_uri(conn_id, table, by_partition=True)]
    with create_session() as session:
        found = _scheduled(session, uris)
        rows = session.execute(
            select(DagModel.dag_id, DagModel.is_paused)
            .where(DagModel.dag_id.in_(found), ~DagModel.is_stale)
            .order_by(DagModel.dag_id)
            .limit(_MOST)
        ).all()
        makes = _made_by(session, [row.dag_id for row in rows], conn_id, table)
    return [
        ReadingDag(dag_id=dag_id, how=found[dag_id], paused=bool(paused), makes=makes.get(dag_id, ()))
        for dag_id, paused in rows
    ]


def _scheduled(session: Session, uris: Collection[str]) -> dict[str, str]:
    """Return what each DAG is scheduled on: the asset itself, a reference to it, or an alias that stands for it."""
    assets = {
        row.id: row for row in session.execute(select(AssetModel.id, AssetModel.name).where(AssetModel.uri.in_(uris)))
    }
    of_assets: Any = DagScheduleAssetReference
    queries = [
        (select(of_assets.dag_id).where(of_assets.asset_id.in_(assets)), "scheduled on its asset"),
        (select(DagScheduleAssetUriReference.dag_id).where(DagScheduleAssetUriReference.uri.in_(uris)),
         "scheduled on its asset"),
        (select(DagScheduleAssetNameReference.dag_id)
         .where(DagScheduleAssetNameReference.name.in_([row.name for row in assets.values()])),
         "scheduled on its asset"),
        (select(DagScheduleAssetAliasReference.dag_id)
         .join(DagScheduleAssetAliasReference.asset_alias)
         .where(AssetAliasModel.assets.any(AssetModel.id.in_(assets))), "scheduled on an alias of its asset"),
    ]  # fmt: skip
    found: dict[str, str] = {}
    for query, how in queries:
        for name in session.scalars(query):
            found.setdefault(name, how)
    return found


def _made_by(session: Session, dags: Collection[str], conn_id: str, table: str) -> dict[str, tuple[str, ...]]:
    """Return the tables that tasks of the DAGs declare as outlets."""
    rows = session.execute(
        select(TaskOutletAssetReference.dag_id, AssetModel.uri)
        .join(AssetModel, AssetModel.id == TaskOutletAssetReference.asset_id)
        .where(TaskOutletAssetReference.dag_id.in_(dags), AssetModel.uri.startswith(f"{SCHEME}://", autoescape=True))
        .order_by(AssetModel.uri)
    ).all()
    found: dict[str, list[str]] = {}
    for dag_id, uri in rows:
        name = _table_of(uri, conn_id)
        if name is not None and name != table:
            found.setdefault(dag_id, []).append(name)
    return {dag_id: tuple(dict.fromkeys(names)) for dag_id, names in found.items()}


def _table_of(uri: str, conn_id: str) -> str | None:
    parts = urlsplit(uri)
    names = [part for part in parts.path.split("/") if part]
    return f"{names[0]}.{names[1]}" if parts.netloc == conn_id and len(names) == 2 else None
