"""Wait until a branch has caught up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon.arguments import as_list, keeps_arguments
from airflow_paimon.core.streaming.catch_up import CatchUpCondition, check, parse_catch_up
from airflow_paimon.core.table.options import parse_boolean
from airflow_paimon.links import AssetLink, TableLink
from airflow_paimon.sensors._deferred import DeferrableSensor, not_blank

if TYPE_CHECKING:
    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["SnapshotCatchUpSensor"]

_TEXTS = ("min_snapshot_id", "consumer", "max_watermark_lag", "max_commit_lag", "reference_time")


def check_caught_up(
    hook: PaimonHook, table: str, branch: str, condition: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Check once, for the sensor and its trigger."""
    verdict = check(hook.get_table(table, branch), CatchUpCondition.from_json(condition))
    notes = [f"waiting for {text}" for text in verdict.waiting_for]
    return verdict.to_json() if verdict.caught_up else None, notes


class SnapshotCatchUpSensor(DeferrableSensor):
    """
    Wait until a branch of a table has caught up; all conditions that are given must hold. Without any it has caught up
    with main: its newest commit is not older than main's, nor is its watermark where both have one.

    A poke costs at most three small reads per branch (waiting for partitions reads manifests as well). Returns
    ``{"table", "branch", "caught_up", "waiting_for", "snapshot_id", "watermark", "commit_time", "main_snapshot_id"}``.

    :param table: the table, ``db.table`` (templated)
    :param branch: the branch that has to catch up (templated)
    :param paimon_conn_id: connection of type ``paimon`` (templated)
    :param min_snapshot_id: the branch's head is at least this snapshot (templated)
    :param consumer: this streaming reader of the branch (``consumer-id``) has passed ``min_snapshot_id``, or the
        branch's head when that is left out (templated)
    :param max_watermark_lag: the branch's watermark is at most this far behind main's, such as ``10 min`` (templated)
    :param max_commit_lag: the branch's newest commit is at most this far behind main's; compactions and commits
        without rows don't count (templated)
    :param reference_time: measure the lags from this time, ISO with an offset, instead of from main (templated)
    :param partitions: these partitions hold files, such as ``["dt=2025-01-01"]``, not older than main's newest there
        (templated)
    :param allow_older_partitions: it is enough that the partitions hold files (templated)
    :param marked_partitions: these partitions are marked as complete, as ``mark_partition_done`` and Paimon's writers
        do it by a file ``_SUCCESS`` (templated)
    :param wait_for_branch: also wait for a branch that doesn't exist yet, instead of failing; without another condition
        until it exists and has a snapshot (templated)
    :param deferrable: wait in the triggerer instead of a worker; left out, ``[paimon] deferrable``, or else
        ``[operators] default_deferrable``
    :param poke_interval: time between two polls
    """

    operator_extra_links = (TableLink(), AssetLink())
    check = staticmethod(check_caught_up)
    table: str
    branch: str

    @keeps_arguments
    def __init__(
        self,
        *,
        table: str,
        branch: str = "main",
        min_snapshot_id: int | str | None = None,
        consumer: str | None = None,
        max_watermark_lag: str | timedelta | None = None,
        max_commit_lag: str | timedelta | None = None,
        reference_time: str | int | None = None,
        partitions: Sequence[str] | str = (),
        allow_older_partitions: bool | str = False,
        wait_for_branch: bool | str = False,
        marked_partitions: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _condition(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: not_blank(name, getattr(self, name)) for name in _TEXTS}
        values |= {name: as_list(name, getattr(self, name)) for name in ("partitions", "marked_partitions")}
        switches = ("allow_older_partitions", "wait_for_branch")
        values |= {name: parse_boolean(getattr(self, name), name) for name in switches}
        return {"table": self.table, "branch": self.branch, "condition": parse_catch_up(**values).to_json()}
