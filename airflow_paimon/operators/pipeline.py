"""Operators over the tables of a pipeline, one after the other: replay, publish all or none, undo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

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

    from airflow_paimon.core.branches.published import Published
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

    A retry finishes an undo that an earlier try began, and repeats one that the storage failed. After Clear, what this
    task published before counts as published: it is not published twice, and it is undone if a table without such a
    publish is refused.

    :param tables: one dict for each table, with arguments of
        :class:`~airflow_paimon.operators.branch.MergeBranchOperator` (templated)
    """

    template_fields: Sequence[str] = (*MergeBranchOperator.template_fields, "tables")

    def __init__(self, *, tables: Any, **kwargs: Any) -> None:
        super().__init__(**{"table": "", "branch": "", **kwargs, "deferrable": False})
        self.tables = tables

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Publish all tables; returns the results."""
        with self._airflow_errors(context):
            self._look_at_all(context)
        return super().execute(context)

    def _look_at_all(self, context: Context) -> None:
        """Finish an undo that an earlier try began; else plan every publish, unless an earlier try began to publish."""
        from airflow_paimon.core.branches.published import publishes
        from airflow_paimon.core.requests.operations import run_operation

        mine, users = operation_id(context), set()
        for number, arguments in enumerate(self._chosen(), 1):
            self._take(arguments, number)
            users |= {p.snapshot.commit_user for p in publishes(self._main())}
        if mine + UNDO_SUFFIX in users:
            self._finish_undo(context)
        for number, arguments in enumerate([] if mine in users else self._chosen(), 1):
            self._take(arguments, number)
            request = cast(Any, self._request(PaimonHook(self.paimon_conn_id), context))
            # A rewrite happens when it is published, not in a plan.
            allowed = request.writers_stopped or request.rewrite
            plan = replace(request, dry_run=True, operation_id=None, writers_stopped=allowed, rewrite=False)
            with self._all_or_none(context):
                run_operation(plan)

    def _one(self, context: Context) -> dict[str, Any]:
        with self._all_or_none(context):
            return self._perform(context)

    @contextmanager
    def _all_or_none(self, context: Context) -> Iterator[None]:
        """When the table is refused, undo what was published, and fail; nothing where a retry may publish the rest."""
        try:
            yield
        except PaimonError as error:
            if error.kind in REFUSALS or not (_has_tries_left(context) or error.kind == "outcome-unknown"):
                failed, found = self.table, self._standing(context)
                # Else the earlier publishes may be complete: this one was to follow them.
                stopped = error.kind != "not-found" and failed not in {one["table"] for one, _, _ in found}
                said = self._undo_all(found, stopped, context)
                if said:
                    self._fail(f"{failed} was not published: {error.message}", said, error, context)
            raise

    def _finish_undo(self, context: Context) -> None:
        """Undo what still stands, and fail: else the first tables would be undone, and the last ones published."""
        found, mine = self._standing(context), operation_id(context)
        earlier = {one["table"] for one, _, publish in found if publish.snapshot.commit_user != mine}
        said = self._undo_all(found, len(earlier) < len(self._chosen()), context)
        message = (
            "Nothing more was published: an earlier try of this task was undone. To publish again, clear the task "
            "while its branches are there"
        )
        self._fail(message, said, ConflictError(message), context)

    def _standing(self, context: Context) -> list[tuple[dict[str, Any], int, Published]]:
        """Find what this task instance has published and nobody has undone, also before Clear; the last table first."""
        from airflow_paimon.core.branches.published import standing_publishes

        own = {operation_id(context, tries) for tries in range(context["ti"].max_tries + 1)}
        found = []
        for number, arguments in enumerate(self._chosen(), 1):
            self._take(arguments, number)
            standing = standing_publishes(self._main())
            found += [(arguments, number, p) for p in standing if p.snapshot.commit_user in own]
        return found[::-1]

    def _undo_all(
        self, found: Sequence[tuple[dict[str, Any], int, Published]], earlier: bool, context: Context
    ) -> list[str]:
        """Undo publishes, those from before Clear only if ``earlier``; returns what became of each.

        Raises:
            PaimonError: an undo failed in a way that a retry, of which one is left, may not meet.
        """
        said, passing = [], None
        for arguments, number, publish in found:
            if not earlier and publish.snapshot.commit_user != operation_id(context):
                continue
            self._take(arguments, number)
            try:
                undone = self._undo(publish)
            except PaimonError as error:
                passing = passing if error.kind in REFUSALS else error
                said.append(f"{self.table} STAYS PUBLISHED as snapshot {publish.snapshot.id}, as its undo failed: "
                            f"{error.message}")  # fmt: skip
            else:
                said.append(f"{self.table} was published as snapshot {publish.snapshot.id} and undone by snapshot "
                            f"{undone['snapshot_after']}")  # fmt: skip
        for line in said:
            self.log.error("%s", line)
        if passing is not None and _has_tries_left(context):
            raise passing
        return said

    def _fail(self, message: str, said: Sequence[str], error: PaimonError, context: Context) -> NoReturn:
        message = ". ".join([message, *said])
        told = ConflictError(message, table=error.table, details=error.details)
        context["ti"].xcom_push(key=ERROR_KEY, value={**error_to_json(told), "kind": error.kind})
        raise AirflowFailException(f"{error.kind}: {message}") from None

    def _undo(self, publish: Published) -> dict[str, Any]:
        from airflow_paimon.core.requests.build import build_request
        from airflow_paimon.core.requests.operations import run_operation

        hook = PaimonHook(self.paimon_conn_id)
        values = {"warehouse": hook.warehouse, "storage_options": hook.storage_options, "table": self.table,
                  "tag": publish.undo_tag, "keep_later": True, "undo_retention": self.undo_retention,
                  "writers_stopped": self.writers_stopped,
                  "operation_id": publish.snapshot.commit_user + UNDO_SUFFIX}  # fmt: skip
        return run_operation(build_request("rollback_to", values)).to_json()


def _has_tries_left(context: Context) -> bool:
    return context["ti"].try_number <= context["ti"].max_tries


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
