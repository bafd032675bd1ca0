"""Operators for branches and tags: create, delete, rename, correct, compare, publish, roll back.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments
from airflow_paimon.operators._corrections import CorrectingOperator, PlanningOperator
from airflow_paimon.operators._publish import MergingOperator, PublishingOperator
from airflow_paimon.settings import SAMPLE

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
    "PlanCorrectionOperator",
    "RebaseBranchOperator",
    "RenameBranchOperator",
    "RenameTagOperator",
    "ReplaceMainOperator",
    "ReplaceTagOperator",
    "RollbackOperator",
]


class CreateBranchOperator(PaimonOperator):
    """
    Create a branch from a tag, from a snapshot, or empty.

    The files that it shares with main are protected from expiry.

    :param branch: Name of the new branch (templated)
    :param tag: Start from this tag of the source branch; without tag and snapshot the branch is empty (templated)
    :param snapshot: Start from this snapshot of the source branch (templated)
    :param from_branch: Source branch (templated)
    :param if_exists: What to do if the branch exists; skip accepts only one with the same base; ``fail``, ``skip`` or
        ``replace`` (templated)
    :param branch_owner: Owner, recorded with the branch (templated)
    :param reason: Reason, recorded with the branch (templated)
    :param retention: Retention, e.g. ``14 d``, or ``forever``; expire_branches deletes the branch afterwards
        (templated)
    :param protected: Refuse to delete, rename, replace or publish the branch without ``force`` (templated)
    :param force: With ``if_exists`` replace: replace a protected branch too (templated)
    """

    operation = "create_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str, tag: str | None = None, snapshot: int | str | None = None, from_branch: str = "main",
        if_exists: str = "fail", branch_owner: str | None = None, reason: str | None = None,
        retention: str | None = None, protected: bool | str = False, force: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class AlterBranchOperator(PaimonOperator):
    """
    Change a branch's owner, reason, retention or protection.

    What is left out stays.

    :param branch: Branch to change; only what is given changes (templated)
    :param branch_owner: New owner (templated)
    :param reason: New reason (templated)
    :param retention: Retention from the branch's creation on, e.g. ``14 d``, or ``forever`` (templated)
    :param protect: From now on refuse to delete, rename, replace or publish the branch without ``force`` (templated)
    :param protected_by: Who protects it; by default its owner (templated)
    :param unprotect: End the protection (templated)
    """

    operation = "alter_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, branch_owner: str | None = None, reason: str | None = None,
        retention: str | None = None, protect: bool | str = False, protected_by: str | None = None,
        unprotect: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DeleteBranchOperator(PaimonOperator):
    """
    Delete a branch other than main.

    Its protective tag is deleted, too. Refused for branches that table options refer to.

    :param branch: Branch to delete (templated)
    :param expected_branch_snapshot: Refuse (conflict) unless the branch's head is this snapshot: ID, or ID:IDENTITY,
        which excludes another snapshot that has the same id (templated)
    :param if_missing: What to do if the branch does not exist; ``fail`` or ``skip`` (templated)
    :param force: Delete a protected branch too (templated)
    """

    operation = "delete_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, expected_branch_snapshot: int | str | None = None, if_missing: str = "fail",
        force: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RebaseBranchOperator(PaimonOperator):
    """
    Rebase a branch: put its changes on a new branch of main's head.

    The branch and main stay as they are. A key, or without keys a file, that both sides changed is a conflict, and
    no branch is created. The new branch gets the owner, the reason, the retention and the protection of the old one.

    :param branch: Branch whose changes are put onto main's head; it stays as it is (templated)
    :param to_branch: Name of the new branch that gets them (templated)
    :param expected_branch_snapshot: Refuse (conflict) unless the branch's head is this snapshot: ID, or ID:IDENTITY,
        which excludes another snapshot that has the same id (templated)
    :param keep_appended: Tables without keys: in partitions that the branch replaces, also keep the rows that main got
        since the branch was created (templated)
    :param on_overlap: Whose rows to take of keys that main and the branch both changed; fail is a conflict that lists
        them; ``fail``, ``branch`` or ``main`` (templated)
    """

    operation = "rebase_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, to_branch: str, expected_branch_snapshot: int | str | None = None,
        keep_appended: bool | str = False, on_overlap: str = "fail", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RenameBranchOperator(PaimonOperator):
    """
    Rename a branch.

    :param branch: Branch to rename (templated)
    :param to_branch: Its new name (templated)
    :param force: Rename a protected branch too (templated)
    """

    operation = "rename_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, to_branch: str, force: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CreateTagOperator(PaimonOperator):
    """
    Tag a snapshot of a branch.

    Its files stay until the tag is deleted or expires.

    :param tag: Name of the new tag (templated)
    :param branch: Branch to tag (templated)
    :param snapshot: Snapshot to tag; by default the latest (templated)
    :param timestamp: Tag the newest snapshot that was committed by then: an ISO time with an offset (templated)
    :param time_retained: Retention of the tag, e.g. ``7 d``; unlimited by default (templated)
    :param if_exists: What to do if the tag exists; skip accepts only one of the same snapshot; ``fail``, ``skip`` or
        ``replace`` (templated)
    :param hold: Put the tag under a legal hold, for this reason: nothing deletes it, or the branch that has it, until
        delete_tag ``release_hold``. With ``if_exists`` skip a tag that exists is held, too (templated)
    :param held_by: Who asked for the hold (templated)
    """

    operation = "create_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, branch: str = "main", snapshot: int | str | None = None, timestamp: str | None = None,
        time_retained: str | None = None, if_exists: str = "fail", hold: str | None = None, held_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ReplaceTagOperator(PaimonOperator):
    """
    Change the snapshot and the retention of a tag.

    Refused for the tags that this package sets itself, and for a tag that a branch or a table set needs or that is
    under a legal hold.

    :param tag: Tag that gets another snapshot and another retention (templated)
    :param branch: Branch that has the tag (templated)
    :param snapshot: Its new snapshot; by default the latest (templated)
    :param time_retained: Its new retention, from now on, e.g. ``7 d``; unlimited by default (templated)
    """

    operation = "replace_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, branch: str = "main", snapshot: int | str | None = None, time_retained: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RenameTagOperator(PaimonOperator):
    """
    Rename a tag of a branch.

    Its snapshot and retention stay. Refused for the tags that this package sets itself.

    :param tag: Tag to rename (templated)
    :param to_tag: Its new name (templated)
    :param branch: Branch that has the tag (templated)
    """

    operation = "rename_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, to_tag: str, branch: str = "main", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DeleteTagOperator(PaimonOperator):
    """
    Delete a tag of a branch.

    Refused for the tag that protects a branch, and for one under a legal hold.

    :param tag: Tag to delete (templated)
    :param branch: Branch that has the tag (templated)
    :param if_missing: What to do if the tag does not exist; ``fail`` or ``skip`` (templated)
    :param release_hold: Delete a tag that is under a legal hold, too: the hold ends with it (templated)
    """

    operation = "delete_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, branch: str = "main", if_missing: str = "fail", release_hold: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class MergeBranchOperator(MergingOperator):
    """
    Publish a branch onto main as one snapshot, and keep what main got since.

    Buckets that both sides changed are merged by key (tables without keys: by file); a key that both sides changed is a
    conflict.

    :param branch: Branch to publish onto main (templated)
    :param approval_task_id: A ``PublishApprovalOperator`` upstream with ``diff_task_id``: who approved, and the
        snapshots that were compared, come from its answer; refused unless it has approved this branch
    :param partitions: Publish only these partitions of the branch, e.g. dt=2025-01-01; the others stay on it
        (templated)
    :param tags: Copy the branch's own tags to main, those on a state that main then has (templated)
    :param revert_compaction: Tables without keys: revert a compaction of main that has merged files that the branch
        changed (templated)
    :param keep_appended: Tables without keys: in partitions that the branch replaces, also keep the rows that main got
        since the branch was created (templated)
    :param on_overlap: Whose rows to take of keys that main and the branch both changed; fail is a conflict that lists
        them; ``fail``, ``branch`` or ``main`` (templated)
    :param approved_by: Who approved, recorded in the snapshot's properties (templated)
    :param requested_by: Who asked for it, recorded in the snapshot's properties; by default the user who triggered the
        run (templated)
    :param four_eyes: Refuse unless another person than ``requested_by`` approved (``approved_by``); the Paimon
        connection's ``four_eyes`` and the table's option ask for it, too (templated)
    :param skip_checks: Continue although a check that the table requires is missing or failed; the snapshot's
        properties record it (templated)
    :param expected_main_snapshot: Refuse (conflict) unless main's head is this snapshot: ID, or ID:IDENTITY, which
        excludes another snapshot that has the same id (templated)
    :param undo_retention: Retention of the undo tag on main's previous head, e.g. ``7 d``, or ``forever`` (templated)
    :param approved_at: When it was approved, ISO with an offset, recorded in the snapshot's properties (templated)
    :param reason: Reason, recorded in the snapshot's properties, in addition to the branch's own reason (templated)
    :param changelog: Tables with a changelog-producer: auto emits the changes to streaming readers, and reads the
        replaced buckets and their replacements for it; none emits nothing; ``auto`` or ``none`` (templated)
    :param expected_branch_snapshot: Refuse (conflict) unless the branch's head is this snapshot: ID, or ID:IDENTITY,
        which excludes another snapshot that has the same id (templated)
    :param approved_main_snapshot: Main's head as the approver saw it, ID or ID:IDENTITY: refuse (conflict) if main has
        since changed what this publish replaces (templated)
    :param diff: The result of the ``DiffBranchesOperator`` that was looked at, of which the audit keeps totals and
        samples; left out, that of the task upstream that compared the branch (templated)
    :param writers_stopped: Confirm that no writer stays open during the publish, so that high sequence numbers are
        harmless (templated)
    :param force: Publish a protected branch too (templated)
    :param tag_conflict: What to do if main has a tag of the same name on another snapshot; rename renames main's to
        NAME.main-DATE; ``fail``, ``keep-main`` or ``rename`` (templated)
    """

    operation = "merge_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, approval_task_id: str | None = None, partitions: Sequence[str] | str = (),
        tags: bool | str = False, revert_compaction: bool | str = False, keep_appended: bool | str = False,
        on_overlap: str = "fail", approved_by: str | None = None, requested_by: str | None = None,
        four_eyes: bool | str = False, skip_checks: bool | str = False, expected_main_snapshot: int | str | None = None,
        undo_retention: str = "7 d", approved_at: str | None = None, reason: str | None = None, changelog: str = "auto",
        expected_branch_snapshot: int | str | None = None, approved_main_snapshot: int | str | None = None,
        diff: Mapping[str, Any] | str | None = None, writers_stopped: bool | str = False, force: bool | str = False,
        tag_conflict: str = "fail", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class FastForwardOperator(PublishingOperator):
    """
    Publish a branch onto main; refused if main changed since the branch was created.

    :param branch: Branch to publish onto main (templated)
    :param approval_task_id: A ``PublishApprovalOperator`` upstream with ``diff_task_id``: who approved, and the
        snapshots that were compared, come from its answer; refused unless it has approved this branch
    :param discard_main: Continue if main changed since the branch was created: main loses those changes (templated)
    :param tags: Copy the branch's own tags to main, those on a state that main then has (templated)
    :param approved_by: Who approved, recorded in the snapshot's properties (templated)
    :param requested_by: Who asked for it, recorded in the snapshot's properties; by default the user who triggered the
        run (templated)
    :param four_eyes: Refuse unless another person than ``requested_by`` approved (``approved_by``); the Paimon
        connection's ``four_eyes`` and the table's option ask for it, too (templated)
    :param skip_checks: Continue although a check that the table requires is missing or failed; the snapshot's
        properties record it (templated)
    :param expected_main_snapshot: Refuse (conflict) unless main's head is this snapshot: ID, or ID:IDENTITY, which
        excludes another snapshot that has the same id (templated)
    :param undo_retention: Retention of the undo tag on main's previous head, e.g. ``7 d``, or ``forever`` (templated)
    :param approved_at: When it was approved, ISO with an offset, recorded in the snapshot's properties (templated)
    :param reason: Reason, recorded in the snapshot's properties, in addition to the branch's own reason (templated)
    :param changelog: Tables with a changelog-producer: auto emits the changes to streaming readers, and reads the
        replaced buckets and their replacements for it; none emits nothing; ``auto`` or ``none`` (templated)
    :param expected_branch_snapshot: Refuse (conflict) unless the branch's head is this snapshot: ID, or ID:IDENTITY,
        which excludes another snapshot that has the same id (templated)
    :param approved_main_snapshot: Main's head as the approver saw it, ID or ID:IDENTITY: refuse (conflict) if main has
        since changed what this publish replaces (templated)
    :param diff: The result of the ``DiffBranchesOperator`` that was looked at, of which the audit keeps totals and
        samples; left out, that of the task upstream that compared the branch (templated)
    :param writers_stopped: Confirm that no writer stays open during the publish, so that high sequence numbers are
        harmless (templated)
    :param force: Publish a protected branch too (templated)
    :param tag_conflict: What to do if main has a tag of the same name on another snapshot; rename renames main's to
        NAME.main-DATE; ``fail``, ``keep-main`` or ``rename`` (templated)
    """

    operation = "fast_forward"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, approval_task_id: str | None = None, discard_main: bool | str = False,
        tags: bool | str = False, approved_by: str | None = None, requested_by: str | None = None,
        four_eyes: bool | str = False, skip_checks: bool | str = False, expected_main_snapshot: int | str | None = None,
        undo_retention: str = "7 d", approved_at: str | None = None, reason: str | None = None, changelog: str = "auto",
        expected_branch_snapshot: int | str | None = None, approved_main_snapshot: int | str | None = None,
        diff: Mapping[str, Any] | str | None = None, writers_stopped: bool | str = False, force: bool | str = False,
        tag_conflict: str = "fail", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ReplaceMainOperator(PublishingOperator):
    """
    Replace the whole state of main by that of a branch: rows, columns, options, and the branch's tags.

    The branch and its jobs stay as they are. Another ``replace_main`` with the branch that ``keep_old_as`` names
    undoes it: rows, columns and options. A ``rollback_to`` to the undo tag restores the rows only.

    :param branch: Branch to publish onto main (templated)
    :param approval_task_id: A ``PublishApprovalOperator`` upstream with ``diff_task_id``: who approved, and the
        snapshots that were compared, come from its answer; refused unless it has approved this branch
    :param discard_main: Continue if main changed since the branch was created: main loses those changes (templated)
    :param keep_old_as: Keep main as it was, rows, columns and options, as a branch of this name (templated)
    :param options: Whose table options and comment main gets; main keeps its own options of expiry; ``branch`` or
        ``main`` (templated)
    :param option: Further table option for main, e.g. bucket=8 (templated)
    :param move_consumer: Consumer of the branch that continues on main after this publish; it must have read everything
        (templated)
    :param readers_stopped: Confirm that main has no readers during the publish: columns may get narrower types shortly
        before their rows (templated)
    :param approved_by: Who approved, recorded in the snapshot's properties (templated)
    :param requested_by: Who asked for it, recorded in the snapshot's properties; by default the user who triggered the
        run (templated)
    :param four_eyes: Refuse unless another person than ``requested_by`` approved (``approved_by``); the Paimon
        connection's ``four_eyes`` and the table's option ask for it, too (templated)
    :param skip_checks: Continue although a check that the table requires is missing or failed; the snapshot's
        properties record it (templated)
    :param expected_main_snapshot: Refuse (conflict) unless main's head is this snapshot: ID, or ID:IDENTITY, which
        excludes another snapshot that has the same id (templated)
    :param undo_retention: Retention of the undo tag on main's previous head, e.g. ``7 d``, or ``forever`` (templated)
    :param approved_at: When it was approved, ISO with an offset, recorded in the snapshot's properties (templated)
    :param reason: Reason, recorded in the snapshot's properties, in addition to the branch's own reason (templated)
    :param changelog: Tables with a changelog-producer: auto emits the changes to streaming readers, and reads the
        replaced buckets and their replacements for it; none emits nothing; ``auto`` or ``none`` (templated)
    :param expected_branch_snapshot: Refuse (conflict) unless the branch's head is this snapshot: ID, or ID:IDENTITY,
        which excludes another snapshot that has the same id (templated)
    :param approved_main_snapshot: Main's head as the approver saw it, ID or ID:IDENTITY: refuse (conflict) if main has
        since changed what this publish replaces (templated)
    :param diff: The result of the ``DiffBranchesOperator`` that was looked at, of which the audit keeps totals and
        samples; left out, that of the task upstream that compared the branch (templated)
    :param writers_stopped: Confirm that no writer stays open during the publish, so that high sequence numbers are
        harmless (templated)
    :param force: Publish a protected branch too (templated)
    :param tag_conflict: What to do if main has a tag of the same name on another snapshot; rename renames main's to
        NAME.main-DATE; ``fail``, ``keep-main`` or ``rename`` (templated)
    """

    operation = "replace_main"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, approval_task_id: str | None = None, discard_main: bool | str = False,
        keep_old_as: str | None = None, options: str = "branch", option: Sequence[str] | str = (),
        move_consumer: Sequence[str] | str = (), readers_stopped: bool | str = False, approved_by: str | None = None,
        requested_by: str | None = None, four_eyes: bool | str = False, skip_checks: bool | str = False,
        expected_main_snapshot: int | str | None = None, undo_retention: str = "7 d", approved_at: str | None = None,
        reason: str | None = None, changelog: str = "auto", expected_branch_snapshot: int | str | None = None,
        approved_main_snapshot: int | str | None = None, diff: Mapping[str, Any] | str | None = None,
        writers_stopped: bool | str = False, force: bool | str = False, tag_conflict: str = "fail", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RollbackOperator(PaimonOperator):
    """
    Roll a branch back to the live files of an earlier snapshot or tag, as a new snapshot.

    To undo a publish, give ``tag="airflow-paimon-undo-..."`` (the publish's ``details`` name it) and ``keep_later``.

    :param branch: Branch to roll back (templated)
    :param tag: Roll back to the live files of this tag (templated)
    :param snapshot: Roll back to the live files of this snapshot (templated)
    :param timestamp: Roll back to the newest snapshot that was committed by then: an ISO time with an offset
        (templated)
    :param watermark: Roll back to the newest snapshot whose watermark is not later: an ISO time with an offset
        (templated)
    :param keep_later: Undo a publish: restore only what it changed, and keep later changes, also of other keys; refuse
        (conflict) if the same keys (tables without keys: files) have changed again (templated)
    :param writers_stopped: Confirm that no writer stays open during the rollback, so that dynamic buckets may lose or
        regain keys (templated)
    :param approved_by: Who approved, recorded in the snapshot's properties (templated)
    :param requested_by: Who asked for it, recorded in the snapshot's properties; by default the user who triggered the
        run (templated)
    :param four_eyes: Refuse unless another person than ``requested_by`` approved (``approved_by``); the Paimon
        connection's ``four_eyes`` and the table's option ask for it, too (templated)
    :param skip_checks: Continue although a check that the table requires is missing or failed; the snapshot's
        properties record it (templated)
    :param expected_main_snapshot: Refuse (conflict) unless main's head is this snapshot: ID, or ID:IDENTITY, which
        excludes another snapshot that has the same id (templated)
    :param undo_retention: Retention of the undo tag on main's previous head, e.g. ``7 d``, or ``forever`` (templated)
    :param approved_at: When it was approved, ISO with an offset, recorded in the snapshot's properties (templated)
    :param reason: Reason, recorded in the snapshot's properties, in addition to the branch's own reason (templated)
    :param changelog: Tables with a changelog-producer: auto emits the changes to streaming readers, and reads the
        replaced buckets and their replacements for it; none emits nothing; ``auto`` or ``none`` (templated)
    """

    operation = "rollback_to"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", tag: str | None = None, snapshot: int | str | None = None,
        timestamp: str | None = None, watermark: str | None = None, keep_later: bool | str = False,
        writers_stopped: bool | str = False, approved_by: str | None = None, requested_by: str | None = None,
        four_eyes: bool | str = False, skip_checks: bool | str = False, expected_main_snapshot: int | str | None = None,
        undo_retention: str = "7 d", approved_at: str | None = None, reason: str | None = None, changelog: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DiffBranchesOperator(PaimonOperator):
    """
    Compare the rows of two branches, or of a branch and its base.

    ``details`` have counts and samples per partition.

    :param branch: Branch to compare, or a version of one: BRANCH@VERSION (templated)
    :param against: Branch to compare with, ``base`` for the branch point, or a version of a branch: BRANCH@VERSION (a
        tag or a snapshot id of it) (templated)
    :param partitions: Only these partitions, e.g. dt=2025-01-01 (templated)
    :param sample: Sample rows per partition and kind of change (templated)
    :param mask: Column whose values no sample shows, in addition to the table option airflow-paimon.masked-columns; and
        to the Paimon connection's ``masked_columns`` (templated)
    """

    operation = "diff_branches"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, against: str = "base", partitions: Sequence[str] | str = (),
        sample: int | str = SAMPLE, mask: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class PlanCorrectionOperator(PlanningOperator):
    """
    Plan a correction from metadata alone: what it will read and write, and what conflicts with it.

    Takes the arguments of ``correct_branch``, and runs nothing. Fails as the correction would, where the table or the
    request make that certain. See :doc:`/howto/plan-a-correction`.

    :param branch: Branch that will be corrected; if it doesn't exist yet, or none is given, ``from_branch`` as it is
        now (templated)
    :param from_branch: Branch that it will be made from, of a chain table the snapshot or delta branch (templated)
    :param sql: Statements or the name of a file ending in ``.sql`` beside the DAG, as correct_branch will get them
        (templated)
    :param function: module:name that correct_branch will get; it is not called; ship its module with
        ``spark_options={"py_files": ...}`` (templated)
    :param view: Additional input table for the SQL, name=db.table[$branch_b][@VERSION] (templated)
    :param mode: For a SELECT: overwrite or upsert; ``overwrite`` or ``upsert`` (templated)
    :param partitions: For a SELECT: partition to overwrite, e.g. dt=2025-01-01 (templated)
    """

    operation = "plan_correction"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, from_branch: str = "main", sql: str | None = None,
        function: str | None = None, view: Sequence[str] | str = (), mode: str = "overwrite",
        partitions: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CorrectBranchOperator(CorrectingOperator):
    """
    Correct a branch by UPDATE, DELETE, MERGE or INSERT statements, or by the rows of a query or a function.

    :param branch: Branch to write (templated)
    :param sql: UPDATE, DELETE, MERGE or INSERT statements on the view branch, separated by semicolons and committed
        together, or one SELECT, or the name of a file ending in ``.sql`` beside the DAG with them; they see the views
        branch, main and those of ``view`` (templated)
    :param function: module:name, called as name(spark, views) and returning a DataFrame; ship its module with
        ``spark_options={"py_files": ...}`` (templated)
    :param view: Additional input table for the SQL, name=db.table[$branch_b][@VERSION] (templated)
    :param restricted_sql: Refuse SQL, in rules as well, that reaches beyond the tables, as paths of files and calls of
        Java do; left out, this is on for SQL that is a template or comes from a form, unless the Paimon connection's
        ``forms`` say otherwise (templated)
    :param all_rows: Confirm an UPDATE or DELETE without WHERE, or an INSERT OVERWRITE of the whole table (templated)
    :param mode: For a SELECT: overwrite replaces the partitions with its rows; upsert inserts or updates rows by
        primary key; ``overwrite`` or ``upsert`` (templated)
    :param partitions: For a SELECT: partition to overwrite, e.g. dt=2025-01-01 (templated)
    :param engine: Who runs the statement: this package, or Paimon's own Spark connector, which takes one UPDATE,
        DELETE, MERGE or INSERT; ``embedded`` or ``connector`` (templated)
    """

    operation = "correct_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, sql: str | None = None, function: str | None = None,
        view: Sequence[str] | str = (), restricted_sql: bool | str | None = None, all_rows: bool | str = False,
        mode: str = "overwrite", partitions: Sequence[str] | str = (), engine: str = "embedded", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
