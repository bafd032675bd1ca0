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
    "AlterBranchOperator", "CorrectBranchOperator", "CreateBranchOperator", "CreateTagOperator", "DeleteBranchOperator",
    "DeleteTagOperator", "DiffBranchesOperator", "FastForwardOperator", "MergeBranchOperator", "PlanCorrectionOperator",
    "RebaseBranchOperator", "RenameBranchOperator", "RenameTagOperator", "ReplaceMainOperator", "ReplaceTagOperator",
    "RollbackOperator",
]


class CreateBranchOperator(PaimonOperator):
    """Create a branch from a tag, from a snapshot, or empty."""

    operation = "create_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str, tag: str | None = None, snapshot: int | str | None = None, from_branch: str = "main",
        if_exists: str = "fail", branch_owner: str | None = None, reason: str | None = None,
        retention: str | None = None, protected: bool | str = False, force: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class AlterBranchOperator(PaimonOperator):
    """Change a branch's owner, reason, retention or protection."""

    operation = "alter_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, branch_owner: str | None = None, reason: str | None = None,
        retention: str | None = None, protect: bool | str = False, protected_by: str | None = None,
        unprotect: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DeleteBranchOperator(PaimonOperator):
    """Delete a branch other than main."""

    operation = "delete_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, expected_branch_snapshot: int | str | None = None, if_missing: str = "fail",
        force: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RebaseBranchOperator(PaimonOperator):
    """Rebase a branch: put its changes on a new branch of main's head."""

    operation = "rebase_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, to_branch: str, expected_branch_snapshot: int | str | None = None,
        keep_appended: bool | str = False, on_overlap: str = "fail", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RenameBranchOperator(PaimonOperator):
    """Rename a branch."""

    operation = "rename_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, to_branch: str, force: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CreateTagOperator(PaimonOperator):
    """Tag a snapshot of a branch."""

    operation = "create_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, branch: str = "main", snapshot: int | str | None = None, timestamp: str | None = None,
        time_retained: str | None = None, if_exists: str = "fail", hold: str | None = None, held_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ReplaceTagOperator(PaimonOperator):
    """Change the snapshot and the retention of a tag."""

    operation = "replace_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, branch: str = "main", snapshot: int | str | None = None, time_retained: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RenameTagOperator(PaimonOperator):
    """Rename a tag of a branch."""

    operation = "rename_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, to_tag: str, branch: str = "main", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DeleteTagOperator(PaimonOperator):
    """Delete a tag of a branch."""

    operation = "delete_tag"

    @keeps_arguments
    def __init__(
        self, *, tag: str, branch: str = "main", if_missing: str = "fail", release_hold: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class MergeBranchOperator(MergingOperator):
    """Publish a branch onto main as one snapshot, and keep what main got since."""

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
    """Publish a branch onto main; refused if main changed since the branch was created."""

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
    """Replace the whole state of main by that of a branch: rows, columns, options, and the branch's tags."""

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
    """Roll a branch back to the live files of an earlier snapshot or tag, as a new snapshot."""

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
    """Compare the rows of two branches, or of a branch and its base."""

    operation = "diff_branches"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, against: str = "base", partitions: Sequence[str] | str = (),
        sample: int | str = SAMPLE, mask: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class PlanCorrectionOperator(PlanningOperator):
    """Plan a correction from metadata alone: what it will read and write, and what conflicts with it."""

    operation = "plan_correction"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, from_branch: str = "main", sql: str | None = None,
        function: str | None = None, view: Sequence[str] | str = (), mode: str = "overwrite",
        partitions: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CorrectBranchOperator(CorrectingOperator):
    """Correct a branch by UPDATE, DELETE, MERGE or INSERT statements, or by the rows of a query or a function."""

    operation = "correct_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, sql: str | None = None, function: str | None = None,
        view: Sequence[str] | str = (), restricted_sql: bool | str | None = None, all_rows: bool | str = False,
        mode: str = "overwrite", partitions: Sequence[str] | str = (), engine: str = "embedded", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
