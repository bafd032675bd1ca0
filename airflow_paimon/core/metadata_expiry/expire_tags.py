"""expire_tags: takes away tags past their retention, and deletes the files that nothing else needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_paimon.core.branches.retention_tags import keep_tag_needed
from airflow_paimon.core.branches.tags import check_deletable
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.metadata_expiry.expire_snapshots import chosen_branches, every_branch
from airflow_paimon.core.metadata_expiry.expiry import Choice, run_expiry, time_before
from airflow_paimon.core.metadata_expiry.root_values import TAG, Root, Roots
from airflow_paimon.core.metadata_expiry.tag_expiry_plan import TagRule, expired_tags
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.expiry_requests import ExpireTags
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.paths import KEEP_TAG_PREFIX, TAG_PREFIX
from airflow_paimon.core.table.table import Table


def expire_tags(context: Context, request: ExpireTags) -> OperationResult:
    """Expire tags of a branch, or of all branches, except those that a branch, an undo or a keep relies on.

    A tag ``airflow-paimon-keep-...`` goes as soon as it has done its work.

    Raises:
        InvalidInputError: the time is naive or in the future. FormatError: something can't be read. ConflictError: see
            ``run_expiry``.
    """
    table = context.table
    branches = chosen_branches(table, request)
    cutoff_ms = time_before(request.older_than, context.now_ms, table.name)
    if request.include_unlimited and cutoff_ms is None:
        raise InvalidInputError(f"{table.name}: include_unlimited needs older_than")
    rule = TagRule(
        at=context.now_local,
        older_than=None if cutoff_ms is None else datetime.fromtimestamp(cutoff_ms / 1000),
        prefix=request.prefix or "",
        include_unlimited=request.include_unlimited,
    )

    def choose(roots: Roots) -> Choice:
        return _choice(table, roots, branches or every_branch(roots), rule)

    with attempt_of(context, request.branch, commits=False):
        expired = run_expiry(context, choose, operations_since_ms=context.now_ms)
    head = table.branch(request.branch).latest_snapshot_id()
    return context.result(
        expired.plan, branch=request.branch, changed=expired.changed, before=head, after=head, details=expired.details
    )


def _choice(table: Table, roots: Roots, branches: Sequence[str], rule: TagRule) -> Choice:
    dead: list[Root] = []
    needed: dict[str, dict[str, str]] = {}
    for branch in branches:
        view = table.branch(branch)
        tags = roots.of(branch, TAG)
        spent = [r for r in tags if r.name.startswith(rule.prefix) and _is_spent(view, r)]
        for root in (*spent, *expired_tags(tags, rule, _file_times(view) if rule.include_unlimited else {})):
            assert root.tag is not None
            try:
                check_deletable(view, root.tag)
                dead.append(root)
            except UnsafeOperationError as error:
                needed.setdefault(branch, {})[root.name] = error.message
    expired: dict[str, list[str]] = {}
    for root in dead:
        expired.setdefault(root.branch, []).append(root.name)
    report = {"expired": expired, "needed": needed}
    return Choice(dead=tuple(dead), reason="its retention has passed, or it is older than asked for", report=report)


def _is_spent(view: Table, root: Root) -> bool:
    """Whether it is a tag that kept files which came back, and has done its work."""
    tag = root.tag
    return tag is not None and tag.name.startswith(KEEP_TAG_PREFIX) and keep_tag_needed(view, tag) is None


def _file_times(view: Table) -> dict[str, datetime]:
    """When the tags' files were written, by the storage's clock; without those that the storage doesn't know."""
    return {
        info.name.removeprefix(TAG_PREFIX): datetime.fromtimestamp(info.modified_ms / 1000)
        for info in view.store.list(view.paths.tag_dir)
        if info.modified_ms is not None and info.name.startswith(TAG_PREFIX)
    }
