"""Whose a branch is, why it exists, how long it is to live, and whether it is protected: ``alter_branch``, and the
refusals of the operations that would take a protected branch away or publish it.

All of it is in the branch's record (``core.table.branch_record``).
"""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_paimon.core.branches.branch_plan import lock, protection_text
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.plan import Action, Delete, Plan, PutNew, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import AlterBranch
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.branch_record import BranchRecord, branch_record_path, read_branch_record, require_ready
from airflow_paimon.core.table.made_by import truncated
from airflow_paimon.core.table.options import requested_retention
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BRANCH_FORCED_PROPERTY,
    BRANCH_OWNER_PROPERTY,
    BRANCH_PROTECTED_BY_PROPERTY,
    BRANCH_REASON_PROPERTY,
    CAME_FROM_PROPERTY,
    FAMILY_PROPERTY,
)
from airflow_paimon.core.table.table import Table

_MAX_WORDS = 1000


def refuse_protected(table: Table, branch: str, verb: str, *, force: bool) -> BranchRecord | None:
    """Refuse to ``verb`` a protected branch unless ``force``. Returns the branch's record.

    The record counts even where it no longer fits the branch: another engine's expiry doesn't end a protection.

    Raises:
        UnsafeOperationError: names who protected the branch, and why.
    """
    record = read_branch_record(table, branch)
    if record is None or not record.protected or force:
        return record
    raise UnsafeOperationError(
        f"{table.name}: branch {branch!r} is {protection_text(record)}. To {verb} it nevertheless, give force "
        f"(--force); alter_branch with unprotect ends the protection",
        code="branch-protected",
        details={"branch": branch, "protected_by": record.protected_by, "reason": record.reason},
    )


def changed_meanwhile(table: Table, name: str) -> ConflictError:
    """Return the error for a branch whose record another operation has changed meanwhile."""
    return ConflictError(f"{table.name}: branch {name!r} is being changed by another operation; run it again")


def stored_record(table: Table, name: str) -> bytes | None:
    """Return a branch's record without verifying it."""
    return read_if_exists(table.store, branch_record_path(name))


def holds_lock(table: Table, name: str, action: Action) -> bool:
    """Whether a branch's record is still the one written by this operation: no other one is changing the branch."""
    return isinstance(action, Replace | PutNew) and stored_record(table, name) == action.data


def take_lock(table: Table, branch: str, action: Action) -> None:
    """Mark a branch, unless another operation has changed its record.

    Raises:
        ConflictError: it has.
    """
    try:
        execute(table, [action])
    except (AlreadyExistsError, ConflictError) as error:
        raise changed_meanwhile(table, branch) from error


def checked_retention(text: str | None, table: str) -> str | None:
    """Return the retention to record; None = the branch doesn't expire.

    Raises:
        InvalidInputError: it is neither a duration greater than 0 nor ``forever``.
    """
    return None if text is None or requested_retention(text, f"{table}: retention") is None else text


def alter_branch(context: Context, request: AlterBranch) -> OperationResult:
    """Change owner, reason, retention or protection of a branch; what is not given stays.

    A branch of another engine gets a record; its retention counts from then.

    Raises:
        NotFoundError: no such branch. ConflictError: it is being created, renamed or deleted.
    """
    name, table = request.branch, context.table
    if name == MAIN:
        raise InvalidInputError(f"{table.name}: main has no owner, retention or protection")
    view = table.branch(name).require()
    recorded = stored_record(table, name)
    known = require_ready(view)
    before = known or BranchRecord(branch=name, created_at=context.now_iso, known_origin=False)
    after = _altered(before, request, table.name)
    if after == before:
        return context.result(None, branch=name, changed=False, details={"branch": ownership_details(before)})
    reason = "owner, reason, retention and protection of the branch"
    action = lock(branch_record_path(name), after.to_bytes(), recorded, reason)
    plan = Plan(operation=request.operation, table=table.name, actions=(action,), summary={"branch": name})
    if not request.dry_run:
        _write(table, view, action)
    details = {"before": ownership_details(before), "branch": ownership_details(after)}
    return context.result(plan, branch=name, changed=True, details=details)


def ownership_details(record: BranchRecord) -> dict[str, object]:
    """Return what people want to know of a branch's record."""
    return {
        "owner": record.owner,
        "reason": record.reason,
        "retention": record.retention,
        "protected": record.protected,
        "protected_by": record.protected_by,
    }


def publish_properties(record: BranchRecord | None) -> dict[str, str]:
    """Return the snapshot properties that say whose branch was published, that its protection was overridden, to which
    family it belongs, and what it came from.
    """
    if record is None:
        return {}
    said = {BRANCH_OWNER_PROPERTY: record.owner, BRANCH_REASON_PROPERTY: record.reason}
    if record.protected:
        said |= {BRANCH_PROTECTED_BY_PROPERTY: record.protected_by or "unknown", BRANCH_FORCED_PROPERTY: "true"}
    out = {key: truncated(value, _MAX_WORDS) for key, value in said.items() if value}
    if record.known_origin:
        out[FAMILY_PROPERTY] = record.family_name
        out |= {CAME_FROM_PROPERTY: json.dumps(record.came_from)} if record.came_from else {}
    return out


def _altered(record: BranchRecord, request: AlterBranch, table: str) -> BranchRecord:
    if request.protect and request.unprotect:
        raise InvalidInputError(f"{table}: alter_branch takes protect or unprotect, not both")
    if request.protected_by and (request.unprotect or not (request.protect or record.protected)):
        raise InvalidInputError(f"{table}: alter_branch: protected_by belongs to protect")
    out = replace(record, owner=request.owner or record.owner, reason=request.reason or record.reason)
    if request.retention is not None:
        out = replace(out, retention=checked_retention(request.retention, table))
    if request.unprotect:
        return replace(out, protected=False, protected_by=None)
    if request.protect and not record.protected:
        return replace(out, protected=True, protected_by=request.protected_by or out.owner)
    return replace(out, protected_by=request.protected_by or out.protected_by)


def _write(table: Table, view: Table, action: Replace | PutNew) -> None:
    """Write the record unless another operation has changed it, and take it back where it finds the branch gone.

    A deletion that marked the branch in between finds this record, stops, and restores the branch; one that is past
    that has removed the schemas, and is finished by running it again.
    """
    name = view.branch_name
    take_lock(table, name, action)
    there, marked = view.exists(), holds_lock(table, name, action)
    if marked and not there:
        reason = "the branch was deleted or renamed meanwhile"
        execute(table, [Delete(path=action.path, expected=action.data, reason=reason)])
    if not (there and marked):
        raise changed_meanwhile(table, name)
