"""Wait until a branch has caught up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon import settings
from airflow_paimon._compat import BaseSensorOperator, PokeReturnValue
from airflow_paimon.arguments import StrictTemplates, as_list
from airflow_paimon.core.branches.catch_up import CatchUpCondition, Verdict, check, parse_condition
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.options import parse_boolean
from airflow_paimon.links import AssetLink, TableLink, store_links
from airflow_paimon.sensors._deferred import failing_as_a_poke, given
from airflow_paimon.task_run import airflow_error, answer_of

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["SnapshotCatchUpSensor"]


class SnapshotCatchUpSensor(StrictTemplates, BaseSensorOperator):
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
    :param poke_interval: time between two looks
    """

    template_fields: Sequence[str] = (
        "table",
        "branch",
        "paimon_conn_id",
        "min_snapshot_id",
        "consumer",
        "max_watermark_lag",
        "max_commit_lag",
        "reference_time",
        "partitions",
        "allow_older_partitions",
        "wait_for_branch",
        "marked_partitions",
    )
    operator_extra_links = (TableLink(), AssetLink())
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        table: str,
        branch: str = "main",
        paimon_conn_id: str = settings.CONN_ID,
        min_snapshot_id: int | str | None = None,
        consumer: str | None = None,
        max_watermark_lag: str | timedelta | None = None,
        max_commit_lag: str | timedelta | None = None,
        reference_time: str | int | None = None,
        partitions: Sequence[str] | str = (),
        allow_older_partitions: bool | str = False,
        wait_for_branch: bool | str = False,
        marked_partitions: Sequence[str] | str = (),
        deferrable: bool = settings.DEFERRABLE,
        poke_interval: timedelta | float = settings.POKE_INTERVAL,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.table = table
        self.branch = branch
        self.paimon_conn_id = paimon_conn_id
        self.min_snapshot_id = min_snapshot_id
        self.consumer = consumer
        self.max_watermark_lag = max_watermark_lag
        self.max_commit_lag = max_commit_lag
        self.reference_time = reference_time
        self.partitions = partitions
        self.allow_older_partitions = allow_older_partitions
        self.wait_for_branch = wait_for_branch
        self.marked_partitions = marked_partitions
        self.deferrable = deferrable

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        verdict = self._look()
        return PokeReturnValue(is_done=verdict.caught_up, xcom_value=verdict.to_json())

    def execute(self, context: Context) -> Any:
        """Wait here, or look once and go on waiting in the triggerer."""
        store_links(self, context)
        if not self.deferrable:
            return super().execute(context)
        with failing_as_a_poke(self):
            verdict = self._look()
        if verdict.caught_up:
            return verdict.to_json()
        from airflow_paimon.triggers.snapshot import SnapshotCatchUpTrigger

        self.defer(
            trigger=SnapshotCatchUpTrigger(
                table=self.table,
                branch=self.branch,
                paimon_conn_id=self.paimon_conn_id,
                condition=self._condition().to_json(),
                poke_interval=float(self.poke_interval),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        return None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take the trigger's event: the verdict, or an error."""
        return answer_of(event, "verdict")

    def _condition(self) -> CatchUpCondition:
        return parse_condition(
            min_snapshot_id=given("min_snapshot_id", self.min_snapshot_id),
            consumer=given("consumer", self.consumer),
            max_watermark_lag=given("max_watermark_lag", self.max_watermark_lag),
            max_commit_lag=given("max_commit_lag", self.max_commit_lag),
            reference_time=given("reference_time", self.reference_time),
            partitions=as_list("partitions", self.partitions),
            allow_older_partitions=parse_boolean(self.allow_older_partitions, "allow_older_partitions"),
            wait_for_branch=parse_boolean(self.wait_for_branch, "wait_for_branch"),
            marked_partitions=as_list("marked_partitions", self.marked_partitions),
        )

    def _look(self) -> Verdict:
        from airflow_paimon.hooks.paimon import PaimonHook

        try:
            condition = self._condition()
            verdict = check(PaimonHook(self.paimon_conn_id).get_table(self.table, self.branch), condition)
        except PaimonError as error:
            raise airflow_error(error) from error
        for text in verdict.waiting_for:
            self.log.info("%s, branch %s: waiting for %s", verdict.state.table, verdict.state.branch, text)
        return verdict
