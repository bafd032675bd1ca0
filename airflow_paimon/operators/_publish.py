"""What operators do that publish a branch, besides building their request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import TYPE_CHECKING, Any

from airflow_paimon.arguments import as_list
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import SnapshotRef, approved_head
from airflow_paimon.core.requests.requests import PublishBranch
from airflow_paimon.operators._base import PaimonOperator
from airflow_paimon.operators._diff_upstream import diff_text, diff_upstream

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook


class PublishingOperator(PaimonOperator):
    """Publishes a branch: takes the answer of an approval, and the diff that was looked at."""

    undo_retention: str
    approved_by: str | None
    approved_at: str | None
    requested_by: str | None
    four_eyes: bool | str
    branch: str
    writers_stopped: bool | str
    approval_task_id: str | None
    diff: Mapping[str, Any] | str | None
    _diff: str | None = None

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        if self.approval_task_id is not None:
            self._take_approval(self.approval_task_id, context)
        request = super()._request(hook, context)
        assert isinstance(request, PublishBranch)
        expected = request.expected_branch_snapshot
        seen = None if expected is None else SnapshotRef.named(expected).id
        self._diff = diff_text(self.diff) or diff_upstream(self, context, request.table, request.branch, seen)
        return request

    def _value(self, spec: Field[Any]) -> Any:
        return None if spec.name == "diff" else super()._value(spec)  # the request names its file

    def _texts(self) -> dict[str, str]:
        return {} if self._diff is None else {"diff": self._diff}

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
        approved = {
            "approved_by": answer.get("approved_by"),
            "approved_at": answer.get("answered_at"),
            "expected_branch_snapshot": approved_head(answer, "branch"),
            "approved_main_snapshot": approved_head(answer, "main"),
        }
        for name, value in approved.items():
            if getattr(self, name) is None:
                setattr(self, name, value)


class MergingOperator(PublishingOperator):
    """Publishes all of a branch, or some partitions, of which a template may not render to none."""

    partitions: Any

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        if self.partitions != () and not as_list("partitions", self.partitions):
            raise InvalidInputError(
                f"{self.table}: partitions is empty, so a template, or a task's result, named none; nothing was "
                f"published. Leave the argument out to publish the whole branch"
            )
        return super()._request(hook, context)
