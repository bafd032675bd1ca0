"""Operators over the tables of a pipeline, one after the other: replay, publish all or none, undo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from airflow_paimon._compat import AirflowException, AirflowFailException
from airflow_paimon.arguments import is_blank, literal
from airflow_paimon.core.errors import ConflictError, InvalidInputError, PaimonError, error_to_json
from airflow_paimon.core.requests.requests import ReplayBranch
from airflow_paimon.forms.origin import from_outside
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.links import store_links
from airflow_paimon.operators._base import PaimonOperator, keeps_arguments
from airflow_paimon.operators.branch import MergeBranchOperator, RollbackOperator
from airflow_paimon.operators.correction import start_from_base
from airflow_paimon.operators.replay import ReplayBranchOperator
from airflow_paimon.task_run import ERROR_KEY, REFUSALS, operation_id, triggering_user

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.publish.undoable_publishes import UndoablePublish
    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.core.table.table import Table
    from airflow_paimon.core.table_sets.versions import WritableSet

__all__ = ["PublishTablesOperator", "ReplayTablesOperator", "UndoTablesOperator"]

COMMITTED_KEY = "paimon_committed"
"""XCom key of the tables that were done before one failed: ``table`` and ``snapshot`` of each."""
UNDO_SUFFIX = "-undo"
"""Ends the operation id of the rollbacks of a publish that another table refused."""


class EachTableOperator(PaimonOperator):
    """Runs its operation on each of ``tables``, in their order; each is a dict of the operator's arguments.

    Each table has an operator of its own, a copy of this one: no argument of a table is left for the next one.
    """

    tables: Any
    _number = 0
    _given: frozenset[str] = frozenset()
    """The arguments that the table brings along."""
    _begun: Sequence[PaimonOperator] = ()
    """The operators of the tables that were begun, the one that is worked on last."""

    def _each(self) -> list[Self]:
        """Return the operators of the tables."""
        found = literal("tables", self.tables) if isinstance(self.tables, str) else self.tables
        if not isinstance(found, list) or not all(isinstance(one, Mapping) and "table" in one for one in found):
            raise InvalidInputError(f"tables must be a list of dicts with a table each, got {found!r}")
        return [self._of(arguments, number) for number, arguments in enumerate(found, 1)]

    def _of(self, arguments: Mapping[str, Any], number: int) -> Self:
        known = set(self.template_fields) - {"tables"}
        if unknown := sorted(set(arguments) - known):
            raise InvalidInputError(
                f"{self.operation} has no argument {', '.join(unknown)} for one of tables; it has: "
                f"{', '.join(sorted(known))}"
            )
        one = copy(self)
        for name, value in arguments.items():
            setattr(one, name, value)
        one._number, one._given = number, frozenset(arguments)
        return one

    def _from_outside(self, context: Context) -> frozenset[str]:
        outside = super()._from_outside(context) - self._given
        return outside | (self._given if from_outside(self, ["tables"], context) else frozenset())

    def _result_name(self, context: Context) -> str:
        return f"{super()._result_name(context).removesuffix('.json')}-table{self._number}.json"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Run the operation on each table; returns the results."""
        results: list[dict[str, Any]] = []
        self._begun = []
        try:
            with self._airflow_errors(context):
                each = self._each()
                for one in each:
                    self._begun.append(one)
                    store_links(one, context)
                    self.log.info("Table %s of %s: %s", one._number, len(each), one.table)
                    results.append(self._one(one, context))
                self._after_all(context, results)
        except AirflowException as error:
            self._report_committed(context, results, fails_for_good(error, context))
            raise
        return [self._done(context, result, one) for one, result in zip(each, results, strict=True)]

    def _report_committed(self, context: Context, results: Sequence[dict[str, Any]], for_good: bool) -> None:
        """Say which tables were done before one failed, in the log and in an XCom; count them where no retry will."""
        committed = [one for one in self._committed(context, results) if one["snapshot"] is not None]
        for each in committed:
            self.log.error("%s was done before, as snapshot %s", each["table"], each["snapshot"])
        context["ti"].xcom_push(key=COMMITTED_KEY, value=committed)
        stands = {each["table"] for each in committed}
        for one, result in zip(self._begun, results, strict=False):
            one._result = result if result["table"] in stands else None
            if for_good and one._result is not None:
                self._done(context, result, one)

    def _committed(self, context: Context, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"table": one["table"], "snapshot": one["snapshot_after"]}
            for one in results
            if one["changed"] and not one["dry_run"]
        ]

    def _after_all(self, context: Context, results: list[dict[str, Any]]) -> None:
        """Do what follows when every table is done; for subclasses."""

    def on_kill(self) -> None:
        """Kill the job of the table that is being worked on."""
        if self._begun:
            self._begun[-1].on_kill()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Say what was read and written of each table that was begun."""
        if not self._begun:
            return super().get_openlineage_facets_on_complete(task_instance)
        from airflow_paimon.lineage.openlineage import lineage_of_several

        self._begun[-1]._error = self._error
        return lineage_of_several(self._begun)

    def _one(self, one: Self, context: Context) -> dict[str, Any]:
        return one._perform(context)

    def _main(self) -> Table:
        return PaimonHook(self.paimon_conn_id).get_table(self.table)


class TableSetVersionOperator(EachTableOperator):
    """Makes new versions of table sets when every table is done."""

    table_set: Any

    def _set_names(self, context: Context) -> list[str]:
        return [] if is_blank(self.table_set) else [str(self.table_set).strip()]

    def _table_sets(self, context: Context) -> list[WritableSet]:
        """Return the sets that get a version; none in a dry run."""
        from airflow_paimon.core.table_sets.versions import open_set

        if str(self.dry_run).strip().lower() == "true":
            return []
        hook = PaimonHook(self.paimon_conn_id)
        return [open_set(hook.warehouse, name, hook.storage_options) for name in self._set_names(context)]

    def _writers(self) -> set[str]:
        """Return the operations that published to the tables' mains or gave them earlier files back."""
        from airflow_paimon.core.publish.undoable_publishes import undoable_publishes

        return {p.snapshot.commit_user for one in self._each() for p in undoable_publishes(one._main())}

    def _check_versions(self, context: Context) -> None:
        """Check that the versions can be made, before anything is published."""
        from airflow_paimon.core.table_sets.versions import check_next_version

        for table_set in self._table_sets(context):
            check_next_version(table_set, [one.table for one in self._each()])

    def _after_all(self, context: Context, results: list[dict[str, Any]]) -> None:
        from airflow_paimon.core.table_sets.versions import make_published_version

        published = {result["table"]: result["snapshot_after"] for result in results}
        table_sets, own_id = self._table_sets(context), operation_id(context)
        made = [make_published_version(table_set, published, own_id) for table_set in table_sets]
        for one in made:
            self.log.info("Table set %s: version %s has %s", one["table_set"], one["number"], one["tables"])
        for result in results if made else []:
            result["details"] = {**result["details"], "table_set": made if len(made) > 1 else made[0]}


class ReplayTablesOperator(EachTableOperator, ReplayBranchOperator):
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

    @keeps_arguments
    def __init__(self, *, tables: Any, **kwargs: Any) -> None:
        super().__init__(**{"table": "", "branch": "", "sql": "", **kwargs, "deferrable": False})

    def _one(self, one: Self, context: Context) -> dict[str, Any]:
        if one.sql or one.function:
            return super()._one(one, context)
        head = one._main().branch(one.branch).require().latest_snapshot_id()
        return {"operation": self.operation, "table": one.table, "branch": one.branch, "changed": False,
                "dry_run": False, "snapshot_before": head, "snapshot_after": head,
                "details": {"sources": {}, "targets": {}}, "ran_on": "worker"}  # fmt: skip

    def _prepare(self, hook: PaimonHook, request: Request, context: Context) -> None:
        assert isinstance(request, ReplayBranch)
        streams = request.available_now or bool(request.until_snapshot or request.until_watermark)
        start_from_base(hook.get_table(request.table), request, context, self.log, goes_on=streams)


class PublishTablesOperator(TableSetVersionOperator, EachTableOperator, MergeBranchOperator):
    """
    Publish the branches of several tables, in their order: all of them, or none.

    Plans all publishes first; if one is refused, nothing is published. If one is refused after that, as its main moved
    at that moment, those that were published are undone (what main got since elsewhere stays), and the task fails
    without a retry: the log and the error say which tables were undone. Readers may see some of the tables published
    for that moment. A failure that leaves open whether a publish was committed undoes nothing and is retried.

    A retry finishes an undo that an earlier try began, and repeats one that the storage failed. After Clear, what this
    task published before counts as published: it is not published twice, and it is undone if a table without such a
    publish is refused.

    With ``table_set`` the tables become a new version of that set when all are published, beside the tables that its
    newest version has: who reads that version never sees some of them published and others not, whatever fails. The
    results have it in ``details.table_set``.

    :param tables: one dict for each table, with arguments of
        :class:`~airflow_paimon.operators.branch.MergeBranchOperator` (templated)
    :param table_set: the set whose next version the published tables are; left out or empty: none (templated)
    """

    template_fields: Sequence[str] = (*MergeBranchOperator.template_fields, "tables", "table_set")

    @keeps_arguments
    def __init__(self, *, tables: Any, table_set: str | None = None, **kwargs: Any) -> None:
        super().__init__(**{"table": "", "branch": "", **kwargs, "deferrable": False})

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Publish all tables; returns the results."""
        with self._airflow_errors(context):
            self._check_all(context)
        return super().execute(context)

    def _check_all(self, context: Context) -> None:
        """Finish an undo that an earlier try began. Unless one began to publish, plan every publish, and check that the
        versions of table sets can be made.
        """
        from airflow_paimon.core.publish.required_checks import refuse_unchecked
        from airflow_paimon.execution import run_operation

        mine, writers = operation_id(context), self._writers()
        if mine + UNDO_SUFFIX in writers:
            self._finish_undo(context)
        if mine in writers:
            return
        self._check_versions(context)
        for one in self._each():
            request = cast(Any, one._restricted_request(PaimonHook(one.paimon_conn_id), context))
            plan = replace(request, dry_run=True, operation_id=None)
            with self._all_or_none(one, context):
                refuse_unchecked(request, run_operation(plan))

    def _one(self, one: Self, context: Context) -> dict[str, Any]:
        with self._all_or_none(one, context):
            return super()._one(one, context)

    def _committed(self, context: Context, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Leave out what was undone again; where that can't be told, what this try has published."""
        try:
            found = self._publishes_on_main(context)[::-1]
        except PaimonError:
            return super()._committed(context, results)
        return [{"table": one.table, "snapshot": publish.snapshot.id} for one, publish in found]

    @contextmanager
    def _all_or_none(self, one: Self, context: Context) -> Iterator[None]:
        """When a table is refused, undo what was published, and fail; nothing where a retry may publish the rest."""
        try:
            yield
        except PaimonError as error:
            if error.kind in REFUSALS or not (_has_tries_left(context) or error.kind == "outcome-unknown"):
                failed, found = one.table, self._publishes_on_main(context)
                # Else the earlier publishes may be complete: this one was to follow them.
                stopped = error.kind != "not-found" and failed not in {each.table for each, _ in found}
                said = self._undo_all(found, stopped, context)
                if said:
                    self._fail(f"{failed} was not published: {error.message}", said, error, context)
            raise

    def _finish_undo(self, context: Context) -> None:
        """Undo what still stands, and fail: else the first tables would be undone, and the last ones published."""
        found, mine = self._publishes_on_main(context), operation_id(context)
        earlier = {one.table for one, publish in found if publish.snapshot.commit_user != mine}
        said = self._undo_all(found, len(earlier) < len(self._each()), context)
        message = (
            "Nothing more was published: an earlier attempt of this task was undone. To publish again, clear the task "
            "while its branches exist"
        )
        self._fail(message, said, ConflictError(message), context)

    def _publishes_on_main(self, context: Context) -> list[tuple[Self, UndoablePublish]]:
        """Find what this task instance has published and nobody has undone, also before Clear; the last table first."""
        from airflow_paimon.core.publish.undoable_publishes import publishes_still_on_main

        own = {operation_id(context, tries) for tries in range(context["ti"].max_tries + 1)}
        found = [(one, p) for one in self._each() for p in publishes_still_on_main(one._main())]
        return [(one, p) for one, p in found if p.snapshot.commit_user in own][::-1]

    def _undo_all(self, found: Sequence[tuple[Self, UndoablePublish]], earlier: bool, context: Context) -> list[str]:
        """Undo publishes, those from before Clear only if ``earlier``; returns what became of each.

        Raises:
            PaimonError: an undo failed in a way that a retry, of which one is left, may not meet.
        """
        said, passing = [], None
        for one, publish in found:
            if not earlier and publish.snapshot.commit_user != operation_id(context):
                continue
            try:
                undone = one._undo(publish, context)
            except PaimonError as error:
                passing = passing if error.kind in REFUSALS else error
                said.append(f"{one.table} STAYS PUBLISHED as snapshot {publish.snapshot.id}, as its undo failed: "
                            f"{error.message}")  # fmt: skip
            else:
                said.append(f"{one.table} was published as snapshot {publish.snapshot.id} and undone by snapshot "
                            f"{undone['snapshot_after']}")  # fmt: skip
        for line in said:
            self.log.error("%s", line)
        if passing is not None and _has_tries_left(context):
            raise passing
        return said

    def _fail(self, message: str, said: Sequence[str], error: PaimonError, context: Context) -> NoReturn:
        message = ". ".join([message, *said])
        conflict = ConflictError(message, details=error.details)
        context["ti"].xcom_push(key=ERROR_KEY, value={**error_to_json(conflict), "kind": error.kind})
        raise AirflowFailException(f"{error.kind}: {message}") from None

    def _undo(self, publish: UndoablePublish, context: Context) -> dict[str, Any]:
        """Take back a publish; who let it be published lets the undo, too."""
        from airflow_paimon.core.requests.arguments import build_request
        from airflow_paimon.execution import run_operation

        hook = PaimonHook(self.paimon_conn_id)
        values = {"warehouse": hook.warehouse, "storage_options": hook.storage_options, "table": self.table,
                  "tag": publish.undo_tag, "keep_later": True, "undo_retention": self.undo_retention,
                  "writers_stopped": self.writers_stopped, "approved_by": self.approved_by,
                  "approved_at": self.approved_at, "reason": "not all tables of the pipeline could be published",
                  "requested_by": triggering_user(context) or self.requested_by, "four_eyes": self.four_eyes,
                  "skip_checks": True,  # main gets back what it had before this task
                  "operation_id": publish.snapshot.commit_user + UNDO_SUFFIX}  # fmt: skip
        return run_operation(build_request("rollback_to", values)).to_json()


def _has_tries_left(context: Context) -> bool:
    return context["ti"].try_number <= context["ti"].max_tries


def fails_for_good(error: AirflowException, context: Context) -> bool:
    """Whether no retry follows."""
    return isinstance(error, AirflowFailException) or not _has_tries_left(context)


class UndoTablesOperator(TableSetVersionOperator, EachTableOperator, RollbackOperator):
    """
    Give the main of several tables their earlier files back, in their order.

    A retry goes on where the first try stopped; a table that is refused ends it, and those before it stay undone.

    When all are undone, each table set that the publishes had made a version of gets a new one, with the tables as they
    are then; the results have them in ``details.table_set``.

    :param tables: one dict for each table, with arguments of
        :class:`~airflow_paimon.operators.branch.RollbackOperator` (templated)
    :param table_set: a set that also gets a new version (templated)
    """

    template_fields: Sequence[str] = (*RollbackOperator.template_fields, "tables", "table_set")
    tag: Any

    @keeps_arguments
    def __init__(self, *, tables: Any, table_set: str | None = None, **kwargs: Any) -> None:
        super().__init__(**{"table": "", **kwargs, "deferrable": False})

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Undo all tables; returns the results."""
        with self._airflow_errors(context):
            if operation_id(context) not in self._writers():
                self._check_versions(context)
        return super().execute(context)

    def _set_names(self, context: Context) -> list[str]:
        """Return the sets that have the publishes to undo, too."""
        from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
        from airflow_paimon.core.table_sets.versions import sets_made_by

        hook, users = PaimonHook(self.paimon_conn_id), set()
        for one in self._each():
            users |= {p.snapshot.commit_user for p in undoable_publishes(one._main()) if p.undo_tag == one.tag}
        return list(dict.fromkeys([*super()._set_names(context), *sets_made_by(hook.get_catalog(), users)]))
