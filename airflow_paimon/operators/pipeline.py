"""Operators over the tables of a pipeline, one after the other: replay, publish all or none, undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from airflow_paimon._compat import AirflowFailException
from airflow_paimon.core.errors import ConflictError, InvalidInputError, PaimonError, error_to_json
from airflow_paimon.core.requests.replay_requests import ReplayBranch
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.links import store_links
from airflow_paimon.operators._base import ERROR_KEY, PaimonOperator, operation_id
from airflow_paimon.operators.branch import MergeBranchOperator, RollbackOperator
from airflow_paimon.operators.correction import start_from_base
from airflow_paimon.operators.replay import ReplayBranchOperator
from airflow_paimon.runbooks.leftovers import REFUSALS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.base import Request
    from airflow_paimon.core.table.table import Table

__all__ = ["PublishTablesOperator", "ReplayTablesOperator", "UndoTablesOperator"]

UNDO_SUFFIX = "-undo"
"""Ends the operation id of the rollbacks of a publish that another table refused."""


class _TableByTable(PaimonOperator):
    """Runs its operation on each of ``tables``, in their order; each is a dict of the operator's arguments."""

    tables: Any

    def _chosen(self) -> list[dict[str, Any]]:
        found = self.tables
        if not isinstance(found, list) or not all(isinstance(one, Mapping) and "table" in one for one in found):
            raise InvalidInputError(f"tables must be a list of dicts with a table each, got {found!r}")
        return [dict(one) for one in found]

    def _take(self, arguments: Mapping[str, Any], number: int) -> None:
        """Become the operator of one table."""
        for name, value in arguments.items():
            setattr(self, name, value)
        self._number = number

    def _result_name(self, context: Context) -> str:
        return f"{super()._result_name(context).removesuffix('.json')}-table{self._number}.json"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Run the operation on each table; returns the results."""
        results = []
        with self._airflow_errors(context):
            chosen = self._chosen()
            for number, arguments in enumerate(chosen, 1):
                self._take(arguments, number)
                store_links(self, context)
                self.log.info("Table %s of %s: %s", number, len(chosen), self.table)
                results.append(self._one(context))
        for number, (arguments, result) in enumerate(zip(chosen, results, strict=True), 1):
            self._take(arguments, number)
            self._done(context, result)
        return results

    def _one(self, context: Context) -> dict[str, Any]:
        return self._perform(context)

    def _main(self) -> Table:
        return PaimonHook(self.paimon_conn_id).get_table(self.table)


class ReplayTablesOperator(_TableByTable, ReplayBranchOperator):
    """
    Replay the tables of a pipeline, upstream first, always starting from the base of each branch.

    Clear runs all replays again: a branch that an earlier run of this task has written first gets its base's files
    back, as a new snapshot. Streams go on from their checkpoints instead. The branches must be this run's, as
    :class:`~airflow_paimon.operators.correction.CorrectFromBaseOperator` asks. Waits in a worker, in a cluster as well.

    Returns one result for each table; of a table without ``sql`` and ``function``, which is only read here, the newest
    snapshot of its branch.

    :param tables: one dict for each table, with arguments of
        :class:`~airflow_paimon.operators.replay.ReplayBranchOperator` (templated)
    """

    template_fields: Sequence[str] = (*ReplayBranchOperator.template_fields, "tables")

    def __init__(self, *, tables: Any, **kwargs: Any) -> None:
        super().__init__(**{"table": "", "branch": "", "sql": "", **kwargs, "deferrable": False})
        self.tables = tables

    def _one(self, context: Context) -> dict[str, Any]:
        if self.sql or self.function:
            return self._perform(context)
        head = self._main().branch(self.branch).require().latest_snapshot_id()
        return {"operation": self.operation, "table": self.table, "branch": self.branch, "changed": False,
                "dry_run": False, "snapshot_before": head, "snapshot_after": head,
                "details": {"sources": {}, "targets": {}}}  # fmt: skip

    def _prepare(self, hook: PaimonHook, request: Request, context: Context) -> None:
        assert isinstance(request, ReplayBranch)
        streams = request.available_now or bool(request.until_snapshot or request.until_watermark)
        start_from_base(hook.get_table(request.table), request, context, self.log, goes_on=streams)


class PublishTablesOperator(_TableByTable, MergeBranchOperator):
    """
    Publish the branches of several tables, in their order: all of them, or none.

    Plans all publishes first; if one is refused, nothing is published. If one is refused after that, as its main moved
    at that moment, those that were published are undone (what main got since elsewhere stays), and the task fails
    without a retry: the log and the error say which tables were undone. Readers may see some of the tables published
    for that moment. A failure that leaves open whether a publish landed undoes nothing and is retried.

    :param tables: one dict for each table, with arguments of
        :class:`~airflow_paimon.operators.branch.MergeBranchOperator` (templated)
    """

    template_fields: Sequence[str] = (*MergeBranchOperator.template_fields, "tables")

    def __init__(self, *, tables: Any, **kwargs: Any) -> None:
        super().__init__(**{"table": "", "branch": "", **kwargs, "deferrable": False})
        self.tables = tables
        self._published: list[tuple[dict[str, Any], int, dict[str, Any]]] = []

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Publish all tables; returns the results."""
        self._published = []
        with self._airflow_errors(context):
            self._look_at_all(context)
        return super().execute(context)

    def _look_at_all(self, context: Context) -> None:
        """Plan every publish, unless an earlier try has begun to publish."""
        from airflow_paimon.core.branches.published import publishes
        from airflow_paimon.core.requests.operations import run_operation

        mine, begun = operation_id(context), False
        for number, arguments in enumerate(self._chosen(), 1):
            self._take(arguments, number)
            users = {p.snapshot.commit_user for p in publishes(self._main())}
            if mine + UNDO_SUFFIX in users:
                raise InvalidInputError(
                    f"{self.table}: an earlier try of this task was undone; clear the task to publish again",
                    table=self.table,
                )
            begun = begun or mine in users
        for number, arguments in enumerate([] if begun else self._chosen(), 1):
            self._take(arguments, number)
            request = cast(Any, self._request(PaimonHook(self.paimon_conn_id), context))
            # A rewrite happens when it is published, not in a plan.
            allowed = request.writers_stopped or request.rewrite
            run_operation(replace(request, dry_run=True, operation_id=None, writers_stopped=allowed, rewrite=False))

    def _one(self, context: Context) -> dict[str, Any]:
        try:
            result = self._perform(context)
        except PaimonError as error:
            self._undo_published(error, context)
            raise
        if result["changed"]:
            self._published.append((self._chosen()[self._number - 1], self._number, result))
        return result

    def _undo_published(self, error: PaimonError, context: Context) -> None:
        """Undo what was published, the last one first, and fail; nothing where a retry may still publish the rest."""
        ti, failed = context["ti"], self.table
        is_last_try = ti.try_number > ti.max_tries and error.kind != "outcome-unknown"
        if not self._published or not (error.kind in REFUSALS or is_last_try):
            return
        said = []
        for arguments, number, result in reversed(self._published):
            self._take(arguments, number)
            try:
                undone = self._undo(result, context)
            except PaimonError as refused:
                said.append(f"{self.table} STAYS PUBLISHED as snapshot {result['snapshot_after']}, as its undo failed: "
                            f"{refused.message}")  # fmt: skip
            else:
                said.append(f"{self.table} was published as snapshot {result['snapshot_after']} and undone by snapshot "
                            f"{undone['snapshot_after']}")  # fmt: skip
        for line in said:
            self.log.error("%s", line)
        message = f"{failed} was not published: {error.message}. {'. '.join(said)}"
        told = ConflictError(message, table=failed, details=error.details)
        ti.xcom_push(key=ERROR_KEY, value={**error_to_json(told), "kind": error.kind})
        raise AirflowFailException(f"{error.kind}: {message}") from None

    def _undo(self, result: Mapping[str, Any], context: Context) -> dict[str, Any]:
        from airflow_paimon.core.requests.build import build_request
        from airflow_paimon.core.requests.operations import run_operation

        hook = PaimonHook(self.paimon_conn_id)
        values = {"warehouse": hook.warehouse, "storage_options": hook.storage_options, "table": self.table,
                  "tag": result["details"]["undo_tag"], "keep_later": True, "undo_retention": self.undo_retention,
                  "writers_stopped": self.writers_stopped,
                  "operation_id": operation_id(context) + UNDO_SUFFIX}  # fmt: skip
        return run_operation(build_request("rollback_to", values)).to_json()


class UndoTablesOperator(_TableByTable, RollbackOperator):
    """
    Give the main of several tables their earlier files back, in their order.

    A retry goes on where the first try stopped; a table that is refused ends it, and those before it stay undone.

    :param tables: one dict for each table, with arguments of
        :class:`~airflow_paimon.operators.branch.RollbackOperator` (templated)
    """

    template_fields: Sequence[str] = (*RollbackOperator.template_fields, "tables")

    def __init__(self, *, tables: Any, **kwargs: Any) -> None:
        super().__init__(**{"table": "", **kwargs, "deferrable": False})
        self.tables = tables
