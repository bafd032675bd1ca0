"""Operators for branches and tags: create, delete, rename, correct, compare, publish, roll back."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import Field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_paimon.arguments import as_list
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.requests.requests import CorrectBranch, DiffBranches, PublishBranch
from airflow_paimon.links import UndoLink
from airflow_paimon.operators._approval import with_requester
from airflow_paimon.operators._base import PaimonOperator, SqlOrFunctionOperator, keeps_arguments
from airflow_paimon.operators._diff_upstream import diff_text, diff_upstream
from airflow_paimon.settings import SAMPLE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = [
    "AlterBranchOperator",
    "CorrectBranchOperator",
    "CreateBranchOperator",
    "CreateTagOperator",
    "DeleteBranchOperator",
    "DeleteTagOperator",
    "DiffBranchesOperator",
    "FastForwardOperator",
    "MergeBranchOperator",
    "RebaseBranchOperator",
    "RenameBranchOperator",
    "RenameTagOperator",
    "ReplaceMainOperator",
    "ReplaceTagOperator",
    "RollbackOperator",
]


class CreateBranchOperator(PaimonOperator):
    """
    Create a branch from a tag, from a snapshot, or empty; the files that it shares are protected from expiry.

    :param branch: name of the new branch (templated)
    :param tag: start from this tag of the source branch (templated)
    :param snapshot: start from this snapshot of the source branch (templated)
    :param from_branch: the source branch (templated)
    :param if_exists: ``fail``, ``skip`` (only when the branch has the base asked for) or ``replace`` (templated)
    :param branch_owner: kept in the branch's lineage; ``owner`` is Airflow's (templated)
    :param reason: kept in the branch's lineage (templated)
    :param retention: how long the branch is to live, such as ``14 d``; ``forever`` or left out: until it is deleted
        (templated)
    :param protected: deleting, renaming, replacing and publishing it need ``force`` (templated)
    :param force: with ``if_exists="replace"``: replace a protected branch too (templated)
    """

    operation = "create_branch"
    attribute_names: ClassVar[dict[str, str]] = {"owner": "branch_owner"}

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str,
        tag: str | None = None,
        snapshot: int | str | None = None,
        from_branch: str = "main",
        if_exists: str = "fail",
        branch_owner: str | None = None,
        reason: str | None = None,
        retention: str | None = None,
        protected: bool | str = False,
        force: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class AlterBranchOperator(PaimonOperator):
    """
    Change a branch's owner, reason, retention or protection; what is left out stays.

    :param branch: the branch (templated)
    :param branch_owner: its new owner (templated)
    :param reason: its new reason (templated)
    :param retention: how long it is to live from its creation, such as ``14 d``, or ``forever`` (templated)
    :param protect: from now on deleting, renaming, replacing and publishing it need ``force`` (templated)
    :param protected_by: who protects it; its owner when left out (templated)
    :param unprotect: end the protection (templated)
    """

    operation = "alter_branch"
    attribute_names: ClassVar[dict[str, str]] = {"owner": "branch_owner"}

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        branch_owner: str | None = None,
        reason: str | None = None,
        retention: str | None = None,
        protect: bool | str = False,
        protected_by: str | None = None,
        unprotect: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DeleteBranchOperator(PaimonOperator):
    """
    Delete a branch and its protective tag. Refused for main and for branches that table options refer to.

    :param branch: the branch (templated)
    :param expected_branch_snapshot: conflict unless the branch's head is this snapshot (templated)
    :param if_missing: ``fail`` or ``skip`` (templated)
    :param force: delete a protected branch too (templated)
    """

    operation = "delete_branch"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        expected_branch_snapshot: int | str | None = None,
        if_missing: str = "fail",
        force: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RebaseBranchOperator(PaimonOperator):
    """
    Put a branch's changes on a new branch that begins with main's head; the branch and main stay as they are.

    A key, or without keys a file, that both sides changed: conflict, and nothing is made.

    :param branch: the branch whose changes are taken (templated)
    :param to_branch: the new branch; it gets the owner, the reason, the retention and the protection of the other one
        (templated)
    :param expected_branch_snapshot: conflict unless the branch's head is this snapshot (templated)
    :param keep_appended: in tables without keys: keep the rows that main got meanwhile in partitions that the branch
        replaces, beside the branch's rows; otherwise they are a conflict (templated)
    :param on_overlap: whose rows to take of keys that both sides changed: ``branch`` or ``main``; ``fail``: they are a
        conflict, which lists them (templated)
    """

    operation = "rebase_branch"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        to_branch: str,
        expected_branch_snapshot: int | str | None = None,
        keep_appended: bool | str = False,
        on_overlap: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RenameBranchOperator(PaimonOperator):
    """
    Rename a branch.

    :param branch: the branch (templated)
    :param to_branch: its new name (templated)
    :param force: rename a protected branch too (templated)
    """

    operation = "rename_branch"

    @keeps_arguments
    def __init__(self, *, branch: str | None = None, to_branch: str, force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class CreateTagOperator(PaimonOperator):
    """
    Tag a snapshot: its files stay until the tag is deleted or its time is over.

    :param tag: name of the new tag (templated)
    :param branch: the branch to tag (templated)
    :param snapshot: the snapshot; the latest when left out (templated)
    :param timestamp: instead of the snapshot, the newest one committed by this time, such as
        ``2026-11-21T02:00:00+00:00`` (templated)
    :param time_retained: how long the tag lives, such as ``7 d``; for ever when left out (templated)
    :param if_exists: ``fail``, ``skip`` (only when the tag is of the same snapshot) or ``replace`` (templated)
    :param hold: put the tag under a legal hold, for this reason: nothing deletes it, or the branch that has it, before
        ``release_hold``; with ``if_exists="skip"`` also a tag that exists (templated)
    :param held_by: who asked for the hold (templated)
    """

    operation = "create_tag"

    @keeps_arguments
    def __init__(
        self,
        *,
        tag: str,
        branch: str = "main",
        snapshot: int | str | None = None,
        timestamp: str | None = None,
        time_retained: str | None = None,
        if_exists: str = "fail",
        hold: str | None = None,
        held_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ReplaceTagOperator(PaimonOperator):
    """
    Give a tag that exists another snapshot and another retention. Refused for the tags that this package sets itself,
    and for a tag that a branch or a table set needs or that is under a legal hold.

    :param tag: the tag (templated)
    :param branch: the branch that has it (templated)
    :param snapshot: its new snapshot; the latest when left out (templated)
    :param time_retained: how long it lives from now on, such as ``7 d``; for ever when left out (templated)
    """

    operation = "replace_tag"

    @keeps_arguments
    def __init__(
        self,
        *,
        tag: str,
        branch: str = "main",
        snapshot: int | str | None = None,
        time_retained: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RenameTagOperator(PaimonOperator):
    """
    Rename a tag; its snapshot and retention stay. Refused for the tags that this package sets itself.

    :param tag: the tag (templated)
    :param to_tag: its new name (templated)
    :param branch: the branch that has it (templated)
    """

    operation = "rename_tag"

    @keeps_arguments
    def __init__(self, *, tag: str, to_tag: str, branch: str = "main", **kwargs: Any) -> None:
        super().__init__(**kwargs)


class DeleteTagOperator(PaimonOperator):
    """
    Delete a tag. Refused for the tag that protects a living branch, and for one under a legal hold.

    :param tag: the tag (templated)
    :param branch: the branch that has it (templated)
    :param if_missing: ``fail`` or ``skip`` (templated)
    :param release_hold: delete a tag under a legal hold, too: the hold ends with it (templated)
    """

    operation = "delete_tag"

    @keeps_arguments
    def __init__(
        self,
        *,
        tag: str,
        branch: str = "main",
        if_missing: str = "fail",
        release_hold: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class _PublishOperator(PaimonOperator):
    """What the operators that change main's history share."""

    operator_extra_links = (*PaimonOperator.operator_extra_links, UndoLink())
    undo_retention: str
    approved_by: str | None
    approved_at: str | None
    requested_by: str | None
    four_eyes: bool | str

    @keeps_arguments
    def __init__(
        self,
        *,
        expected_main_snapshot: int | str | None = None,
        undo_retention: str = "7 d",
        approved_by: str | None = None,
        approved_at: str | None = None,
        requested_by: str | None = None,
        reason: str | None = None,
        four_eyes: bool | str = False,
        skip_checks: bool | str = False,
        changelog: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        return with_requester(super()._request(hook, context), hook, context)


class _PublishBranchOperator(_PublishOperator):
    """What merge and fast-forward share."""

    branch: str
    writers_stopped: bool | str
    approval_task_id: str | None
    diff: Mapping[str, Any] | str | None
    _diff: str | None = None

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        approval_task_id: str | None = None,
        expected_branch_snapshot: int | str | None = None,
        approved_main_snapshot: int | str | None = None,
        diff: Mapping[str, Any] | str | None = None,
        rewrite: bool | str = False,
        writers_stopped: bool | str = False,
        force: bool | str = False,
        tags: bool | str = False,
        tag_conflict: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        if self.approval_task_id is not None:
            self._take_approval(self.approval_task_id, context)
        request = super()._request(hook, context)
        assert isinstance(request, PublishBranch)
        seen = request.expected_branch_snapshot
        self._diff = diff_text(self.diff) or diff_upstream(self, context, request.table, request.branch, seen)
        return request

    def _value(self, spec: Field[Any]) -> Any:
        return None if spec.name == "diff" else super()._value(spec)  # the request names its file

    def _texts(self) -> dict[str, str]:
        return {} if self._diff is None else {"diff": self._diff}

    def _run_here(self, request: Request) -> dict[str, Any]:
        if self._diff is None:
            return super()._run_here(request)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "diff.json"
            file.write_text(self._diff, encoding="utf-8")
            return super()._run_here(replace(request, diff=str(file)))  # type: ignore[call-arg]

    def _take_approval(self, task_id: str, context: Context) -> None:
        """Fill the arguments that are left out with what a ``PublishApprovalOperator`` upstream returned.

        Raises:
            UnsafeOperationError: it has not approved this branch of this table.
        """
        answer = context["ti"].xcom_pull(task_ids=task_id)
        if not isinstance(answer, Mapping) or not answer.get("approved"):
            raise UnsafeOperationError(
                f"{self.table}: task {task_id!r} has not approved the publish of {self.branch!r}"
            )
        about = (answer.get("table", self.table), answer.get("branch", self.branch))
        if about != (self.table, self.branch):
            raise UnsafeOperationError(
                f"{self.table}: task {task_id!r} has approved the publish of branch {about[1]!r} of {about[0]}, not of "
                f"branch {self.branch!r}"
            )
        for name, key in _OF_APPROVAL.items():
            if getattr(self, name) is None:
                setattr(self, name, answer.get(key))


_OF_APPROVAL = {
    "approved_by": "approved_by",
    "approved_at": "answered_at",
    "expected_branch_snapshot": "branch_snapshot",
    "approved_main_snapshot": "main_snapshot",
}
"""Arguments of a publish, and where an approval says them."""


class MergeBranchOperator(_PublishBranchOperator):
    """
    Publish a branch onto main as one snapshot, and keep what main got since. Buckets that both sides changed are merged
    by key (tables without keys: by file); a key that both sides changed is a conflict.

    :param branch: the branch to publish (templated)
    :param partitions: publish only these partitions of the branch, such as ``dt=2025-01-01``; the others stay on it
        for a later publish (templated)
    :param approval_task_id: a ``PublishApprovalOperator`` upstream with ``diff_task_id``: who approved, and the
        snapshots that were compared, come from its answer; refused unless it has approved this branch
    :param expected_main_snapshot: conflict unless main's head is this snapshot (templated)
    :param expected_branch_snapshot: conflict unless the branch's head is this snapshot (templated)
    :param approved_main_snapshot: main's head that the approver saw; conflict when main changed since in buckets that
        this publish replaces (templated)
    :param diff: the result of the ``DiffBranchesOperator`` that was looked at, of which the audit keeps totals and
        samples; left out, that of the task upstream that compared the branch (templated)
    :param undo_retention: how long the tag on main's previous head lives; ``forever`` for no end (templated)
    :param approved_by: kept in the snapshot's properties (templated)
    :param approved_at: when, ISO with an offset; kept there, too (templated)
    :param requested_by: kept in the snapshot's properties; whoever triggered the run, where Airflow knows (templated)
    :param reason: why; kept there, too, besides the branch's own reason (templated)
    :param four_eyes: refuse unless ``approved_by`` is somebody other than who asked for it; the Paimon connection's
        ``four_eyes`` asks for it too (templated)
    :param changelog: ``auto``: streaming readers of a table with a ``changelog-producer`` get the changes, for which
        both sides of the replaced buckets are read; ``none``: they get nothing (templated)
    :param rewrite: in tables without keys, take back a compaction of main that has merged files which the branch
        changed; runs as a Spark job, which is also the way to fold large buckets with appended rows (templated)
    :param writers_stopped: promise that no writer stays open over the publish (templated)
    :param force: publish a protected branch too (templated)
    :param skip_checks: publish although a check that the table requires is missing or failed; the snapshot says so
        (templated)
    :param tags: main gets the branch's own tags on states that main has then (templated)
    :param tag_conflict: for a tag that main has on another snapshot: ``fail``, ``keep-main``, or ``rename``, which
        keeps main's as ``NAME.main-DATE`` (templated)
    :param keep_appended: in tables without keys: keep the rows that main got meanwhile in partitions that the branch
        replaces, beside the branch's rows; otherwise they are a conflict (templated)
    :param on_overlap: whose rows to take of keys that both sides changed: ``branch`` or ``main``; ``fail``: they are a
        conflict, which lists them (templated)
    """

    operation = "merge_branch"
    partitions: Any

    @keeps_arguments
    def __init__(
        self,
        *,
        partitions: Sequence[str] | str = (),
        keep_appended: bool | str = False,
        on_overlap: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        if self.partitions != () and not as_list("partitions", self.partitions):
            raise InvalidInputError(
                f"{self.table}: partitions is empty, so a template, or a task's result, named none; nothing was "
                f"published. Leave the argument out to publish the whole branch"
            )
        return super()._request(hook, context)


class FastForwardOperator(_PublishBranchOperator):
    """
    Publish a branch onto main, strictly: refused when main changed since the branch point.

    :param branch: the branch to publish (templated)
    :param approval_task_id: a ``PublishApprovalOperator`` upstream with ``diff_task_id``: who approved, and the
        snapshots that were compared, come from its answer; refused unless it has approved this branch
    :param expected_main_snapshot: conflict unless main's head is this snapshot (templated)
    :param expected_branch_snapshot: conflict unless the branch's head is this snapshot (templated)
    :param approved_main_snapshot: main's head that the approver saw; conflict when main changed since in buckets that
        this publish replaces (templated)
    :param diff: the result of the ``DiffBranchesOperator`` that was looked at, of which the audit keeps totals and
        samples; left out, that of the task upstream that compared the branch (templated)
    :param undo_retention: how long the tag on main's previous head lives; ``forever`` for no end (templated)
    :param approved_by: kept in the snapshot's properties (templated)
    :param approved_at: when, ISO with an offset; kept there, too (templated)
    :param requested_by: kept in the snapshot's properties; whoever triggered the run, where Airflow knows (templated)
    :param reason: why; kept there, too, besides the branch's own reason (templated)
    :param four_eyes: refuse unless ``approved_by`` is somebody other than who asked for it; the Paimon connection's
        ``four_eyes`` asks for it too (templated)
    :param changelog: ``auto``: streaming readers of a table with a ``changelog-producer`` get the changes, for which
        both sides of the replaced buckets are read; ``none``: they get nothing (templated)
    :param rewrite: run as a Spark job, in which large buckets with appended rows are folded (templated)
    :param writers_stopped: promise that no writer stays open over the publish (templated)
    :param force: publish a protected branch too (templated)
    :param skip_checks: publish although a check that the table requires is missing or failed; the snapshot says so
        (templated)
    :param tags: main gets the branch's own tags on states that main has then (templated)
    :param tag_conflict: for a tag that main has on another snapshot: ``fail``, ``keep-main``, or ``rename``, which
        keeps main's as ``NAME.main-DATE`` (templated)
    :param discard_main: take the branch's state whole even if main changed since (templated)
    """

    operation = "fast_forward"

    @keeps_arguments
    def __init__(self, *, discard_main: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class ReplaceMainOperator(FastForwardOperator):
    """
    Give main the whole state of a branch: rows, columns, options, comment, and the tags that were made on it.

    The branch and its jobs go on as they are. The undo is another ``ReplaceMainOperator`` with ``branch`` = the branch
    that ``keep_old_as`` names: rows, columns and options; or a ``RollbackOperator`` to the undo tag: the rows.

    :param branch: the branch to publish (templated)
    :param approval_task_id: a ``PublishApprovalOperator`` upstream with ``diff_task_id``: who approved, and the
        snapshots that were compared, come from its answer; refused unless it has approved this branch
    :param keep_old_as: keep main as it was, rows, columns and options, as a branch of this name (templated)
    :param options: ``branch``: its options and comment, but main's own about expiry; ``main``: main's (templated)
    :param option: options that main gets besides, as ``["bucket=8"]`` (templated)
    :param tag_conflict: for a tag that main has on another snapshot: ``fail``, ``keep-main``, or ``rename``, which
        keeps main's as ``NAME.main-DATE`` (templated)
    :param tags: has no effect: main gets the tags in any case (templated)
    :param move_consumer: consumers of the branch that go on after this publish on main (templated)
    :param readers_stopped: promise that nobody reads main meanwhile, for columns of a narrower type (templated)
    :param discard_main: replace main even if it changed since the branch point (templated)
    :param expected_main_snapshot: conflict unless main's head is this snapshot (templated)
    :param expected_branch_snapshot: conflict unless the branch's head is this snapshot (templated)
    :param approved_main_snapshot: main's head that the approver saw; conflict when main changed since in buckets that
        this publish replaces (templated)
    :param diff: the result of the ``DiffBranchesOperator`` that was looked at, of which the audit keeps totals and
        samples; left out, that of the task upstream that compared the branch (templated)
    :param undo_retention: how long the tag on main's previous head lives; ``forever`` for no end (templated)
    :param approved_by: kept in the snapshot's properties (templated)
    :param approved_at: when, ISO with an offset; kept there, too (templated)
    :param requested_by: kept in the snapshot's properties; whoever triggered the run, where Airflow knows (templated)
    :param reason: why; kept there, too, besides the branch's own reason (templated)
    :param four_eyes: refuse unless ``approved_by`` is somebody other than who asked for it; the Paimon connection's
        ``four_eyes`` asks for it too (templated)
    :param changelog: ``auto``: streaming readers of a table with a ``changelog-producer`` get the changes, for which
        both sides of the replaced buckets are read; ``none``: they get nothing (templated)
    :param rewrite: run as a Spark job, in which large buckets with appended rows are folded (templated)
    :param writers_stopped: promise that no writer stays open over the publish (templated)
    :param force: publish a protected branch too (templated)
    :param skip_checks: publish although a check that the table requires is missing or failed; the snapshot says so
        (templated)
    """

    operation = "replace_main"

    @keeps_arguments
    def __init__(
        self,
        *,
        keep_old_as: str | None = None,
        options: str = "branch",
        option: Sequence[str] | str = (),
        move_consumer: Sequence[str] | str = (),
        readers_stopped: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RollbackOperator(_PublishOperator):
    """
    Give a branch the live files of an earlier snapshot or tag, as a new snapshot.

    The undo of a publish is ``tag="airflow-paimon-undo-..."`` (its result's ``details`` name it), with ``keep_later``.

    :param branch: the branch (templated)
    :param tag: go back to this tag (templated)
    :param snapshot: go back to this snapshot (templated)
    :param timestamp: go back to the newest snapshot committed by this time, such as ``2026-11-21T02:00:00+00:00``
        (templated)
    :param watermark: go back to the newest snapshot whose watermark is not later than this time (templated)
    :param keep_later: change back only the buckets that the publish changed; conflict where one changed again
        (templated)
    :param writers_stopped: promise that no writer stays open over the rollback, which dynamic buckets (``bucket=-1``)
        ask for when they lose or regain keys (templated)
    :param expected_main_snapshot: conflict unless main's head is this snapshot (templated)
    :param undo_retention: how long the tag on the previous head lives; ``forever`` for no end (templated)
    :param approved_by: kept in the snapshot's properties (templated)
    :param approved_at: when, ISO with an offset; kept there, too (templated)
    :param requested_by: kept in the snapshot's properties; whoever triggered the run, where Airflow knows (templated)
    :param reason: why; kept there, too (templated)
    :param four_eyes: refuse unless ``approved_by`` is somebody other than who asked for it; for main the Paimon
        connection's ``four_eyes`` and the table's option ask for it too, and so does the undo of what needed it
        (templated)
    :param skip_checks: go back although a check that the table requires is missing or failed for what comes back
        (``CheckBranchOperator`` with ``version``); the snapshot says so (templated)
    :param changelog: ``auto``: streaming readers of a table with a ``changelog-producer`` get the changes, for which
        both sides of the replaced buckets are read; ``none``: they get nothing (templated)
    """

    operation = "rollback_to"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str = "main",
        tag: str | None = None,
        snapshot: int | str | None = None,
        timestamp: str | None = None,
        watermark: str | None = None,
        keep_later: bool | str = False,
        writers_stopped: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DiffBranchesOperator(PaimonOperator):
    """
    Compare the rows of a branch with its base or with another branch: counts and samples per partition.

    :param branch: the branch to compare, or ``BRANCH@VERSION`` (templated)
    :param against: another branch, ``base`` for the branch point, or ``BRANCH@VERSION``: a tag or a snapshot id of a
        branch, such as what the same branch was before a correction (templated)
    :param partitions: only these partitions, such as ``["dt=2025-01-01"]`` (templated)
    :param sample: sample rows per partition and kind of change (templated)
    :param mask: columns whose values no sample shows, besides those of the table option
        ``airflow-paimon.masked-columns`` and of the Paimon connection's ``masked_columns`` (templated)
    """

    operation = "diff_branches"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        against: str = "base",
        partitions: Sequence[str] | str = (),
        sample: int | str = SAMPLE,
        mask: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        request = super()._request(hook, context)
        assert isinstance(request, DiffBranches)
        return replace(request, mask=(*request.mask, *hook.masks))


class CorrectBranchOperator(SqlOrFunctionOperator):
    """
    Change a branch by a statement, or write the rows of a query or a function into it.

    :param branch: the branch to write (templated)
    :param sql: one UPDATE, DELETE, MERGE or INSERT on the view ``branch``, or one SELECT, over the views ``branch``,
        ``main`` and those of ``view``: the text, or a file ending in ``.sql`` beside the DAG (templated)
    :param function: ``module:name`` instead of ``sql``, called with the Spark session and the views; ship its module
        with ``spark_options={"py_files": ...}`` (templated). Of the two, one must be None when they are rendered
    :param view: further views, as ``["name=db.table"]``, ``["name=db.table$branch_b@version"]`` (templated)
    :param restricted_sql: refuse SQL that reaches beyond the tables, as paths of files and calls of Java do; left out,
        this is on for SQL that is a template or comes from a form, unless the Paimon connection's ``forms`` say
        otherwise (templated)
    :param all_rows: confirms an UPDATE or DELETE without WHERE, and an INSERT OVERWRITE of the whole table (templated)
    :param mode: of a SELECT: ``overwrite``: the partitions become exactly its rows; ``upsert``: by key (templated)
    :param partitions: of a SELECT: the partitions to overwrite, such as ``["dt=2025-01-01"]`` (templated)
    :param engine: who runs a statement: ``embedded``, or ``connector``, Paimon's own Spark connector (templated)
    """

    operation = "correct_branch"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        sql: str | None = None,
        function: str | None = None,
        view: Sequence[str] | str = (),
        restricted_sql: bool | str | None = None,
        all_rows: bool | str = False,
        mode: str = "overwrite",
        partitions: Sequence[str] | str = (),
        engine: str = "embedded",
        **kwargs: Any,
    ) -> None:
        super().__init__(sql=sql, function=function, **kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        request = super()._request(hook, context)
        assert isinstance(request, CorrectBranch)
        if hook.four_eyes and not request.dry_run:
            from airflow_paimon.core.publish.approval import refuse_unapproved  # not for every DAG that is parsed

            refuse_unapproved(hook.get_table(request.table, request.branch), asked=True)
        return request
