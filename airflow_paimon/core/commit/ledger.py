"""Makes a retry return the first try's result: ``_airflow_paimon/operations/<hash of the operation id>.json``.

The entry is put if absent before the first commit and says where each branch stood; a later try looks for the commit
behind that point. Without an entry nothing was committed under the id (or somebody removed our folder).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass

from airflow_paimon.core.commit.committer import CommitIdentity, execute, put_new
from airflow_paimon.core.errors import AlreadyExistsError, FormatError, InvalidInputError, NotFoundError
from airflow_paimon.core.plan import Delete, Plan
from airflow_paimon.core.requests.base import Request
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table

_NOT_PART_OF_IT = frozenset({"storage_options", "operation_id", "warehouse"})


def request_hash(request: Request) -> str:
    """Identify what is asked, whoever asks and with whichever credentials."""
    values = {f.name: getattr(request, f.name) for f in dataclasses.fields(request) if f.name not in _NOT_PART_OF_IT}
    text = json.dumps({"operation": request.operation, **values}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def commit_identity(operation_id: str | None, branch: str, step: str, partition: str = "") -> CommitIdentity:
    """Give the commit user and the stable 63-bit commit identifier of one step (docs/design.md, Retries)."""
    if operation_id is None:
        return CommitIdentity()
    digest = hashlib.sha256("\0".join((branch, partition, step)).encode()).digest()
    return CommitIdentity(user=operation_id, identifier=int.from_bytes(digest[:8], "big") >> 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """``head`` is the written branch's newest snapshot id when the operation was first tried (0 = none)."""

    operation_id: str
    request: str
    branch: str
    head: int
    first_try: bool

    def guard(self, identity: CommitIdentity) -> CommitIdentity:
        """Let a commit look for one that another try of the operation makes meanwhile."""
        return dataclasses.replace(identity, since=self.head, retry_mark=_retried_path(self.operation_id))


def _path(operation_id: str) -> str:
    return f"{PRIVATE_DIR}/operations/{hashlib.sha256(operation_id.encode()).hexdigest()[:32]}.json"


def _retried_path(operation_id: str) -> str:
    """A mark that a second try found the entry. From then on it stays, for the first try may be the one that ends."""
    return f"{PRIVATE_DIR}/retried/{hashlib.sha256(operation_id.encode()).hexdigest()[:32]}"


def open_ledger(table: Table, operation_id: str, request: str, branch: str) -> LedgerEntry:
    """Enter the operation, or find the entry of its first try.

    Raises:
        InvalidInputError: the id was used for another request.
    """
    head = table.branch(branch).latest_snapshot_id() or 0
    entry = {"operation_id": operation_id, "request": request, "branch": branch, "head": head}
    path = _path(operation_id)
    try:
        put_new(table, path, json.dumps(entry, indent=2).encode())
        return LedgerEntry(operation_id=operation_id, request=request, branch=branch, head=head, first_try=True)
    except AlreadyExistsError:
        pass
    try:
        found = json.loads(table.store.read(path))
        known = LedgerEntry(
            operation_id=str(found["operation_id"]),
            request=str(found["request"]),
            branch=str(found["branch"]),
            head=int(found["head"]),
            first_try=False,
        )
    except (ValueError, KeyError, TypeError, NotFoundError) as error:
        raise FormatError(
            f"{table.name}: the journal {path} is unreadable; look whether operation {operation_id!r} "
            f"landed, then delete it",
            table=table.name,
        ) from error
    if known.request != request or known.operation_id != operation_id:
        raise InvalidInputError(
            f"{table.name}: operation id {operation_id!r} was used for another request; give a new one",
            table=table.name,
        )
    with contextlib.suppress(AlreadyExistsError):
        put_new(table, _retried_path(operation_id), b"")
    return known


def forget(table: Table, operation_id: str) -> None:
    """Remove the entry of an operation whose first try was refused before it committed, unless there is another try."""
    if table.store.exists(_retried_path(operation_id)):
        return
    action = Delete(path=_path(operation_id), reason="the operation was refused before it committed")
    execute(table, Plan(operation="forget", table=table.name, actions=(action,)))


def name_part(operation_id: str) -> str:
    """Make an operation id fit for a tag name: readable, at most 100 characters, still unique."""
    clean = re.sub(r"[^A-Za-z0-9_.-]+", "-", operation_id).strip("-.")
    digest = hashlib.sha256(operation_id.encode()).hexdigest()[:8]
    return clean if clean == operation_id and len(clean) <= 100 else f"{clean[:90].rstrip('-.')}-{digest}"
