"""What a correction runbook needs around the operations: its plan, a correction that Clear can repeat, the approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.sdk.execution_time.hitl import HITLUser
from airflow.sdk.timezone import utcnow

from airflow_paimon._compat import WAITS_FOR_ANSWER, BranchMixIn
from airflow_paimon.arguments import StrictTemplates, as_list
from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsafeOperationError
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.options import parse_boolean
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.links import ApprovalLink, TableLink, approval_url, store_links
from airflow_paimon.notify import (
    asks_four_eyes,
    choose_approvers,
    choose_notifiers,
    four_eyes_note,
    reminder_lead,
    send,
)
from airflow_paimon.operators.branch import CorrectBranchOperator
from airflow_paimon.settings import CONN_ID
from airflow_paimon.task_run import in_airflows_terms, operation_id, triggering_user

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context

    from airflow_paimon.core.requests.requests import ReplayBranch, Request
    from airflow_paimon.core.table.table import Table

__all__ = ["CorrectFromBaseOperator", "PublishApprovalOperator", "branch_owner"]

_SUBJECT = "Publish the branch?"
_SHOWN_COMMITS, _SHOWN_SQL = 5, 4000
_TO_BASE = "-base"
"""Ends the operation id of the rollback that comes before a correction."""


def branch_owner(context: Context) -> str:
    """Name the DAG run as the owner of the branch that it makes."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}"


class CorrectFromBaseOperator(CorrectBranchOperator):
    """
    Correct a branch that this DAG run made, always starting from the branch's base.

    Clear runs a correction again, and ``amount / 100`` must not be applied to what it gave the first time. So when an
    earlier run of this task has written the branch, it first gets its base's files back, as a new snapshot.

    Takes what :class:`~airflow_paimon.operators.branch.CorrectBranchOperator` takes. The owner in the branch's record
    must be :func:`branch_owner`; a branch of somebody else, or with somebody else's commits, is refused. A dry run
    leaves the branch as it is.
    """

    def _prepare(self, hook: PaimonHook, request: Request, context: Context) -> None:
        assert isinstance(request, CorrectBranch)
        start_from_base(hook.get_table(request.table), request, context, self.log)


def start_from_base(
    main: Table, request: CorrectBranch | ReplayBranch, context: Context, log: Any, *, goes_on: bool = False
) -> None:
    """Roll the branch back to its base, if an earlier operation of this task has written it.

    ``goes_on``: what will be done goes on from what the earlier one left, so only the branch's owner is checked.

    Raises:
        UnsafeOperationError: the branch belongs to somebody else, or holds somebody else's commits.
    """
    from airflow_paimon.core.requests.arguments import build_request
    from airflow_paimon.core.table.branch_record import matching_branch_record
    from airflow_paimon.execution import run_operation

    view = main.branch(request.branch).require()
    record = matching_branch_record(main, request.branch)
    if record is None or record.snapshot_id is None or record.owner != branch_owner(context):
        owner = f"it belongs to {record.owner}" if record is not None else "its record was deleted"
        raise UnsafeOperationError(
            f"{view.label} was not made by this run ({owner}). Trigger the DAG again with the name of a branch that "
            "doesn't exist yet"
        )
    base, mine = record.snapshot_id, operation_id(context)
    later = view.snapshots([i for i in view.snapshot_ids() if i > base])
    if goes_on or not later or _is_by(later[-1].commit_user, mine):
        return
    own = [operation_id(context, tries) for tries in range(context["ti"].max_tries + 1)]
    foreign = [s for s in later if not any(_is_by(s.commit_user, one) for one in own)]
    if foreign:
        raise UnsafeOperationError(
            f"{view.label}: snapshot {foreign[0].id} was committed by {foreign[0].commit_user!r}, not by this "
            f"task, so it can't start over without dropping it. Trigger the DAG again with another branch name"
        )
    log.info("%s was written by an earlier run of this task; its base is snapshot %s", view.label, base)
    values = {
        "warehouse": request.warehouse,
        "storage_options": request.storage_options,
        "table": request.table,
        "branch": request.branch,
        "snapshot": base,
        "writers_stopped": True,  # only tries of this task have written it
        "operation_id": mine + _TO_BASE,
        "dry_run": request.dry_run,
    }
    back = run_operation(build_request("rollback_to", values))
    if back.dry_run:
        log.info("A dry run doesn't go back to it: the plan is made on what the branch has")


def _is_by(user: str, operation: str) -> bool:
    """Whether a commit is of this operation, or of one of its steps."""
    return user == operation or user.startswith(f"{operation}-")


class PublishApprovalOperator(StrictTemplates, ApprovalOperator, BranchMixIn):
    """
    Airflow's approval as a fork: one task downstream goes on when it is approved, another one when it is rejected.

    With ``diff_task_id`` the approver reads that task's diff as ``data_correction`` shows it, and the publish operators
    take the answer by ``approval_task_id``: who approved, and which snapshots.

    Returns ``{"approved", "approved_by", "answered_at", "four_eyes"}``; ``approved_by`` is None if none was needed,
    or when ``response_timeout`` answered with ``defaults``. With ``diff_task_id`` also ``{"table", "branch",
    "branch_snapshot", "branch_identity", "main_snapshot", "main_identity"}``.

    :param subject: the question in a line; with ``diff_task_id`` it may be left out, and names the branch and the table
        (templated)
    :param diff_task_id: a ``DiffBranchesOperator`` upstream, whose result is shown below ``body``, with who triggered
        the run and the statements that made the branch. ``table`` may be left out then, and ``paimon_conn_id`` is
        ``[paimon] conn_id``
    :param check_task_id: a ``CheckBranchOperator`` upstream, whose result is shown before the diff
    :param on_approve: the task downstream that approval leads to (templated)
    :param on_reject: the task downstream that rejection leads to (templated)
    :param required: whether to ask at all; otherwise it counts as approved, without an approver. With the connection's
        ``four_eyes``, or the option of ``table``, it is asked always (templated)
    :param table: the table in question, for the link to its page and for messages (templated)
    :param paimon_conn_id: connection of type ``paimon`` whose extras ``notify`` and ``approvers`` count; none when left
        out (templated)
    :param notify: which of the connection's notifiers hear that the question waits, and how it was answered; all of
        them when left out (templated)
    :param approvers: ids of the users who may answer, some of the connection's; when left out all of those, or
        everybody if it has none (templated)
    :param remind_before: how long before ``response_timeout`` ends the notifiers hear of the question again, such as
        ``"6 h"``; ``"never"``; when left out the connection's ``remind_before``, or a quarter of the time (templated).
        Until then the task waits in the triggerer, on Airflow 3.3 as well
    :param four_eyes: the user who triggered the run can't approve it, only reject; after such an approval it is
        requested again; the connection's ``four_eyes`` and the option of ``table`` ask for it too (templated)
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "on_approve", "on_reject", "required", "table",
                                      "paimon_conn_id", "notify", "approvers", "remind_before",
                                      "four_eyes")  # fmt: skip
    operator_extra_links = (ApprovalLink(), TableLink())

    def __init__(
        self,
        *,
        on_approve: str,
        on_reject: str,
        diff_task_id: str | None = None,
        check_task_id: str | None = None,
        subject: str | None = None,
        required: bool | str = True,
        table: str | None = None,
        paimon_conn_id: str | None = None,
        notify: Sequence[str] | str | None = None,
        approvers: Sequence[str] | str | None = None,
        remind_before: str | None = None,
        four_eyes: bool | str = False,
        **kwargs: Any,
    ) -> None:
        if subject is None and diff_task_id is None:
            raise InvalidInputError("PublishApprovalOperator takes a subject, or diff_task_id, from which it makes one")
        super().__init__(subject=subject or _SUBJECT, **kwargs)
        self.on_approve = on_approve
        self.on_reject = on_reject
        self.diff_task_id = diff_task_id
        self.check_task_id = check_task_id
        self.required = required
        self.table = table
        self.paimon_conn_id = CONN_ID if diff_task_id and paimon_conn_id is None else paimon_conn_id
        self.notify = notify
        self.approvers = approvers
        self.remind_before = remind_before
        self.four_eyes = four_eyes

    def execute(self, context: Context) -> Any:
        """Ask, or go on at once."""
        with in_airflows_terms(context):
            self._show_diff(context)
        store_links(self, context)
        with in_airflows_terms(context):
            required = parse_boolean(self.required, "required") or self._is_four_eyes_required()
            if self._needs_four_eyes():
                self.body = f"{self.body or ''}\n\n{four_eyes_note(required, triggering_user(context))}".lstrip()
        self.log.info("%s", f"{self.subject}\n\n{self.body or ''}".rstrip())
        if required:
            lead = self._choose_people(context)
            return super().execute(context) if lead is None else self._ask_with_reminder(context, lead)
        self.log.info("Approval is switched off: going on")
        none = {"approved": True, "approved_by": None, "answered_at": None, "four_eyes": False}
        return self._follow(context, none | self._approval_subject(context))

    def _show_diff(self, context: Context) -> None:
        """Put the checks and the diff of the tasks upstream below the body, and name what is asked."""
        if self.diff_task_id is None:
            return
        from airflow_paimon.shown.diff_markdown import render_review

        about, diff = self._approval_subject(context), _result_of(context, self.diff_task_id, "diff_branches")
        checked = _result_of(context, self.check_task_id, "check_branch_data") if self.check_task_id else None
        review = render_review({"check": checked, "diff": diff})
        parts = (self.body, self._approval_text(context, about), *review)
        self.body = "\n\n".join(part for part in parts if part)
        self.table = self.table or about["table"]
        if self.subject == _SUBJECT:
            self.subject = f"Publish branch {about['branch']} of {about['table']}?"

    def _approval_text(self, context: Context, about: Mapping[str, Any]) -> str:
        """Show who triggered the run, and the statements that made the branch's commits, as far as they are kept."""
        from airflow_paimon.core.publish.audit_properties import change_of, readable_snapshots
        from airflow_paimon.core.table.history import branch_point
        from airflow_paimon.shown.markdown import escape, requester_line, sql_block

        lines = [requester_line(triggering_user(context))]
        assert self.paimon_conn_id is not None, "with a diff there is one"
        main = PaimonHook(self.paimon_conn_id).get_table(about["table"])
        branch = main.branch(about["branch"])
        base = branch_point(main, branch)
        ids = [i for i in branch.snapshot_ids() if base is not None and base.id < i <= about["branch_snapshot"]]
        made = [change_of(one, _SHOWN_SQL) for one in readable_snapshots(branch, ids[-_SHOWN_COMMITS:])]
        lines += [f"- Function: {escape(one['function'])}" for one in made if one.get("function")]
        return "\n\n".join(["\n".join(lines), *(sql_block(one["sql"]) for one in made if one.get("sql"))])

    def _approval_subject(self, context: Context) -> dict[str, Any]:
        """Return what is approved: the branch and the snapshots that were compared."""
        if self.diff_task_id is None:
            return {}
        diff = _result_of(context, self.diff_task_id, "diff_branches")
        found, heads = diff["details"], ("branch_snapshot", "branch_identity", "main_snapshot", "main_identity")
        return {"table": diff["table"], "branch": found["branch"], **{name: found[name] for name in heads}}

    def _ask_with_reminder(self, context: Context, lead: timedelta) -> Any:
        assert self.response_timeout is not None
        until = utcnow() + self.response_timeout
        try:
            super().execute(context)
        except WAITS_FOR_ANSWER:  # until the end; but this task is to run once before
            self._wait(context, until - lead, None, "remind", {"until": until.isoformat()})

    def _wait(self, context: Context, until: datetime, defaults: list[str] | None, then: str, kept: Any = None) -> None:
        trigger = HITLTrigger(ti_id=context["ti"].id, options=self.options, params=self.serialized_params,
                              defaults=defaults, multiple=self.multiple, timeout_datetime=until)  # fmt: skip
        self.defer(trigger=trigger, method_name=then, kwargs=kept)

    def remind(self, context: Context, event: dict[str, Any], until: str) -> Any:
        """Take the answer, or notify again and wait for the rest of the time."""
        if event.get("error_type") != "timeout":
            return self.execute_complete(context, event)
        end = datetime.fromisoformat(until)
        if end > utcnow():
            left = f"still waits for an answer, until {end:%Y-%m-%d %H:%M} UTC"
            self._notify(context, self._message(context, "reminder", left, {"until": until}))
        self._wait(context, end, self.defaults, "execute_complete")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Take the answer."""
        answer = HITLOperator.execute_complete(self, context=context, event=event)
        user = answer["responded_by_user"]
        said = {
            "approved": answer["chosen_options"] == [self.APPROVE],
            "approved_by": (user.get("name") or user.get("id")) if user else None,
            "answered_at": answer["responded_at"].isoformat(),
            "four_eyes": self._needs_four_eyes(),
            **self._approval_subject(context),
        }
        if said["approved"] and user and self._is_own_request(context, user):
            who = said["approved_by"]
            self.log.warning("%s triggered this run, so another user has to approve it: asking again", who)
            return self.execute(context)
        word, by = ("approved" if said["approved"] else "rejected"), said["approved_by"] or "none: no answer in time"
        self._notify(context, self._message(context, "answered", f"{word} by {by}", said))
        return self._follow(context, said)

    def _needs_four_eyes(self) -> bool:
        return parse_boolean(self.four_eyes, "four_eyes") or self._is_four_eyes_required()

    def _is_four_eyes_required(self) -> bool:
        """Whether the connection or the table asks for four eyes, whatever the DAG says."""
        if not self.paimon_conn_id:
            return False
        return asks_four_eyes(PaimonHook(self.paimon_conn_id), [self.table] if self.table else [])

    def _is_own_request(self, context: Context, user: Mapping[str, Any]) -> bool:
        """Whether whoever triggered the run approves it, although that takes somebody else."""
        with in_airflows_terms(context):
            requester = (triggering_user(context) or "").casefold()
            return self._needs_four_eyes() and requester in {str(user.get(k) or "").casefold() for k in ("id", "name")}

    def _notify(self, context: Context, message: dict[str, Any]) -> None:
        try:
            send(self._chosen_notifiers(), message, context)
        except PaimonError as error:  # the question and its answer stand all the same
            self.log.warning("The notifiers were not called (%s): %s", message["event"], error.message)

    def _choose_people(self, context: Context) -> timedelta | None:
        """Say who hears of the question as soon as it is there, and who may answer it; returns when to remind."""
        with in_airflows_terms(context):
            notifiers = self._chosen_notifiers()
            hook = PaimonHook(self.paimon_conn_id) if self.paimon_conn_id else None
            configured = hook.approvers if hook else []
            names = choose_approvers(configured, _names("approvers", self.approvers), str(self.paimon_conn_id))
            lead = reminder_lead(hook.remind_before if hook else None, self.remind_before, self.response_timeout)
        until = f" within {self.response_timeout}" if self.response_timeout else ""
        message = self._message(context, "waiting", f"waits for an answer{until}", {})
        # Airflow calls its notifiers when the question is there.
        self.notifiers = [*self.notifiers, cast(Any, partial(send, notifiers, message))]
        if names is not None:
            self.assigned_users = [HITLUser(id=name, name=name) for name in names]
        return lead if notifiers else None

    def _chosen_notifiers(self) -> list[BaseNotifier]:
        if not self.paimon_conn_id:
            return []
        configured = PaimonHook(self.paimon_conn_id).notify
        return choose_notifiers(configured, _names("notify", self.notify), self.paimon_conn_id)

    def _message(self, context: Context, event: str, what: str, answer: dict[str, Any]) -> dict[str, Any]:
        url = approval_url(context["ti"])
        return {"event": event, "subject": self.subject, "url": url, "table": self.table, "approved": None,
                "approved_by": None, "until": None, **answer, "text": f"{self.subject}: {what}. {url}"}  # fmt: skip

    def _follow(self, context: Context, answer: dict[str, Any]) -> dict[str, Any]:
        self.log.info("Answer: %s", answer)
        # Skipping ends the task at once: what it returned would be lost.
        context["ti"].xcom_push(key="return_value", value=answer)
        self.do_branch(context, self.on_approve if answer["approved"] else self.on_reject)
        return answer


def _result_of(context: Context, task_id: str, operation: str) -> Mapping[str, Any]:
    """Return the result of a task upstream.

    Raises:
        InvalidInputError: it has none, or is another operation.
    """
    found = context["ti"].xcom_pull(task_ids=task_id)
    if not isinstance(found, Mapping) or found.get("operation") != operation:
        raise InvalidInputError(f"Task {task_id!r} has no result of {operation}; name a task upstream that has one")
    return found


def _names(name: str, value: Any) -> list[str] | None:
    """Return the names that a form gives; None when it leaves them to the connection."""
    return None if value is None or value in ("", "None") else as_list(name, value)
