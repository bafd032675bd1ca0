"""What templates may ask of a table: ``{{ macros.paimon.latest_snapshot("paimon_default", "db.orders") }}``.

Every component of Airflow imports this module; what reads a table is imported when a task renders its templates.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_paimon.core.format.snapshot import Snapshot


def latest_snapshot(paimon_conn_id: str, table: str, branch: str = "main") -> int:
    """
    Return the id of a branch's newest snapshot.

    :param paimon_conn_id: connection of type ``paimon``
    :param table: the table, ``db.table``
    :param branch: the branch; of a chain table ``main`` has no snapshots, ``delta`` has
    """
    return _newest(paimon_conn_id, table, branch).id


def latest_commit_time(paimon_conn_id: str, table: str, branch: str = "main") -> datetime:
    """
    Return the time of a branch's newest snapshot, in UTC; Airflow's filters ``ds`` and ``ts`` take it.

    :param paimon_conn_id: connection of type ``paimon``
    :param table: the table, ``db.table``
    :param branch: the branch; of a chain table ``main`` has no snapshots, ``delta`` has
    """
    return datetime.fromtimestamp(_newest(paimon_conn_id, table, branch).time_millis / 1000, UTC)


MACROS = (latest_snapshot, latest_commit_time)


def _newest(paimon_conn_id: str, table: str, branch: str) -> Snapshot:
    from airflow_paimon.core.errors import NotFoundError, PaimonError
    from airflow_paimon.hooks.paimon import PaimonHook
    from airflow_paimon.task_run import airflow_error

    try:
        view = PaimonHook(paimon_conn_id).get_table(table, branch).require()
        newest = view.latest_snapshot()
        if newest is None:
            raise NotFoundError(f"{view.label} has no snapshot yet, so a template can't name its newest one")
    except PaimonError as error:
        raise airflow_error(error) from (error if error.retryable else None)
    return newest
