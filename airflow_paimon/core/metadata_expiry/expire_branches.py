"""expire_branches: deletes branches whose time is over and whose commits main has; lists the others and says why."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from airflow_paimon.core.branches.delete import check_deletable_branch, gather_removal, refuse_legal_hold, remove_branch
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.timestamp import utc_text
from airflow_paimon.core.metadata_expiry.ages import duration_ms
from airflow_paimon.core.metadata_expiry.metadata_expiry_plan import (
    BranchAge,
    BranchRules,
    expires_soon,
    expiry_reason,
    why_kept,
    why_unpublished,
)
from airflow_paimon.core.plan import Delete, Plan
from airflow_paimon.core.publish.partial_publish import is_partial
from airflow_paimon.core.publish.undoable_publishes import is_fully_published, is_undone
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ExpireBranches
from airflow_paimon.core.table.branch_record import (
    DELETED,
    BranchRecord,
    matching_branch_record,
    read_branch_record,
    recorded_branches,
)
from airflow_paimon.core.table.history import difference, last_shared_snapshot, publish_target
from airflow_paimon.core.table.paths import MAIN, STAGING_BRANCH_PREFIX, BranchPaths, protects
from airflow_paimon.core.table.properties import BRANCH_IDENTITY_PROPERTY, BRANCH_PROPERTY
from airflow_paimon.core.table.table import Table


def expire_branches(context: Context, request: ExpireBranches) -> OperationResult:
    """Delete the branches whose retention is over, or that the request's ages apply to, as ``delete_branch`` does.

    Kept, and listed with the reason: protected ones, those with commits that main doesn't have, those that a table
    option or another branch needs, and those that another operation is changing.

    Raises:
        InvalidInputError: an age is not a duration greater than 0, or the operation id was used for another request.
    """
    rules = _rules(request)
    with attempt_of(context, commits=False):
        return _expire_branches(context, request, rules)


def _expire_branches(context: Context, request: ExpireBranches, rules: BranchRules) -> OperationResult:
    table = context.table
    expired: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    later: list[dict[str, Any]] = []
    soon: list[dict[str, Any]] = []
    records = (read_branch_record(table, name) for name in recorded_branches(table))
    half_gone = [r.branch for r in records if r is not None and r.state == DELETED]  # only the record is left
    for name in sorted({*table.branch_names(), *half_gone}):
        age = _age(table, name)
        if age is None or name.startswith(STAGING_BRANCH_PREFIX):
            continue
        owner = age.record.owner if age.record is not None else None
        if rules.owner is not None and not (owner is not None and fnmatchcase(owner, rules.owner)):
            continue
        due, about = expiry_reason(age, rules, context.now_ms), _described(age)
        if due is not None:
            why = _expire(context, rules, age)
            (expired if why is None else kept).append({**about, "why": due if why is None else why})
            continue
        if (end := expires_soon(age, rules, context.now_ms)) is not None:
            soon.append(about | {"expires_at": utc_text(end)})
        if age.record is not None and age.record.retention:
            later.append(about)
    actions = tuple(
        Delete(path=BranchPaths(str(one["branch"])).root.rstrip("/"), reason=str(one["why"])) for one in expired
    )
    plan = Plan(operation=request.operation, table=table.name, actions=actions, summary={"kept": len(kept)})
    details = {"expired": expired, "kept": kept, "later": later, "expiring_soon": soon}
    return context.result(plan, branch=MAIN, changed=bool(expired), details=details)


def _rules(request: ExpireBranches) -> BranchRules:
    return BranchRules(
        older_than=_millis(request, "older_than"),
        idle_for=_millis(request, "idle_for"),
        owner=request.owner,
        drop_unpublished=request.drop_unpublished,
        notify_before=_millis(request, "notify_before"),
    )


def _millis(request: ExpireBranches, name: str) -> int | None:
    text = getattr(request, name)
    if text is None:
        return None
    millis = duration_ms(text, name)
    if millis <= 0:
        raise InvalidInputError(f"{request.table}: {name} must be greater than 0, e.g. '30 d', got {text!r}")
    return millis


def _age(table: Table, name: str) -> BranchAge | None:
    """Read how old a branch is; None for an empty folder, which a disk can keep."""
    view, record = table.branch(name), read_branch_record(table, name)
    if record is None and not view.exists():
        return None
    ids = view.snapshot_ids()
    head = view.find_snapshot(ids[-1]) if ids else None  # also of a branch that is half deleted
    return BranchAge(name=name, record=record, head=head)


def _described(age: BranchAge) -> dict[str, Any]:
    record = age.record
    expires = record.expires_ms if record is not None else None
    return {
        "branch": age.name,
        "owner": record.owner if record is not None else None,
        "reason": record.reason if record is not None else None,
        "created_at": record.created_at if record is not None else None,
        "expires_at": None if expires is None else utc_text(expires),
        "last_commit_at": None if age.head is None else utc_text(age.head.time_millis),
        "head": None if age.head is None else age.head.id,
    }


def _expire(context: Context, rules: BranchRules, age: BranchAge) -> str | None:
    """Delete a branch whose time is over; return why it stays, None if it is gone (or would be)."""
    table, record = context.table, age.record
    fits = record is not None and (not record.known_origin or matching_branch_record(table, age.name) is not None)
    why = why_kept(record, fits=fits)
    if why is not None or record is None:
        return why
    try:
        removal = gather_removal(table, age.name, context.now_iso, context.request.operation)
        check_deletable_branch(table, age.name)
        refuse_legal_hold(table, age.name)
        if record.state != DELETED:
            commits, target = _commits(table, age, record), publish_target(table, table.branch(age.name))
            why = why_unpublished(
                len(commits),
                on_main=_on_main(target, age.name, record, commits[-1]) if commits else None,
                drop=rules.drop_unpublished,
            )
        if why is None and not context.request.dry_run:
            # As it was when its expiry was decided? remove_branch looks again before it deletes.
            if (
                removal.head != (None if age.head is None else age.head.id)
                or removal.stored.record_bytes is None
                or BranchRecord.parse(removal.stored.record_bytes, age.name) != record
            ):
                raise ConflictError(
                    f"{table.name}: branch {age.name!r} was changed while it was checked and stays; the next run "
                    "checks it again"
                )
            remove_branch(table, removal)
    except (ConflictError, UnsafeOperationError, NotFoundError) as error:
        return error.message
    return why


def _commits(table: Table, age: BranchAge, record: BranchRecord) -> list[Snapshot]:
    """The branch's own commits: those after its base."""
    view = table.branch(age.name)
    base = record.snapshot_id
    if not record.known_origin:
        shared = last_shared_snapshot(table, view)
        base = shared.id if shared is not None else None
    return view.snapshots([i for i in view.snapshot_ids() if base is None or i > base])


def _on_main(table: Table, name: str, record: BranchRecord, head: Snapshot) -> bool | None:
    """Whether main has the branch's commits: it holds their files, or a publish of them that nothing has undone.

    None = they were published, and what became of that can't be told.
    """
    view, base, now = table.branch(name), _base(table, name, record), table.latest_snapshot()
    if base is not None and now is not None:
        changed = difference(table, base, head).buckets
        if difference(table, now, head).buckets.isdisjoint(changed):  # main has the same files there
            return True
    known = [*(t.snapshot for t in table.tags() if protects(t.name) == name), *table.snapshots()]
    publishes = {s.id: s for s in known if s.properties.get(BRANCH_PROPERTY) == name}
    if not any(map(is_partial, publishes.values())):
        publishes = {i: s for i, s in publishes.items() if s.properties.get(BRANCH_IDENTITY_PROPERTY) == head.identity}
    undone = {number: is_undone(table, number) for number in publishes}
    standing = [s for number, s in publishes.items() if undone[number] is False]
    if is_fully_published(table, view, base, head, standing):
        return True
    perhaps = [s for number, s in publishes.items() if not undone[number]]
    return None if len(perhaps) > len(standing) and is_fully_published(table, view, base, head, perhaps) else False


def _base(table: Table, name: str, record: BranchRecord) -> Snapshot | None:
    view = table.branch(name)
    base = view.find_snapshot(record.snapshot_id) if record.known_origin and record.snapshot_id is not None else None
    return base or last_shared_snapshot(table, view)
