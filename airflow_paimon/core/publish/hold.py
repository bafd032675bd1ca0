"""Holds: what a publish or rollback takes its files from is kept by a root of its own until its snapshot is there.

Between the look at a branch and the snapshot on main somebody may delete the branch, or expire the snapshot that is
gone back to, and then clean up: no root would name the files that main gets. So a hold is put first, and only then is
it checked that what it holds is still there (docs/contributing/deletion.md, Two looks miss nothing). It is no tag:
another branch's snapshot id among main's tags would mislead Paimon's expiry.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.commit.put import delete_files, put_new
from airflow_paimon.core.errors import ConflictError, FormatError, NotFoundError, PaimonError
from airflow_paimon.core.format.snapshot import RESTORE, Snapshot, load_json_object, snapshot_from_json
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope, recorded_scope
from airflow_paimon.core.table.paths import PRIVATE_DIR, before_dot
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

HOLDS_DIR = f"{PRIVATE_DIR}/holds"
PUBLISHED_DIR = f"{PRIVATE_DIR}/published"
_ONLY = "partitions"
_LEFT_AFTER_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The content of a hold: a snapshot of a branch."""

    branch: str
    snapshot: Snapshot

    def to_bytes(self) -> bytes:
        return json.dumps({"branch": self.branch, "snapshot": self.snapshot.to_json()}, indent=2).encode()


def parse_hold(data: bytes, name: str) -> Hold:
    """Parse a hold; ``name`` is its path, for messages.

    Raises:
        FormatError: truncated, or not what ``Hold.to_bytes`` writes.
    """
    raw = load_json_object(data, name)
    branch, snapshot = raw.get("branch"), raw.get("snapshot")
    if not isinstance(branch, str) or not isinstance(snapshot, dict):
        raise FormatError(f"{name} is corrupt: it lacks branch or snapshot; {RESTORE}, or delete it")
    return Hold(branch=branch, snapshot=snapshot_from_json(snapshot, name))


def put_hold(source: Table, wanted: Snapshot) -> str:
    """Hold a snapshot of a branch, and return the hold's path. Holds of killed processes go after a week.

    Raises:
        ConflictError: the snapshot, and each tag on it, is gone already; nothing is held.
    """
    path = f"{HOLDS_DIR}/{uuid.uuid4()}.json"
    put_new(source, path, Hold(branch=source.branch_name, snapshot=wanted).to_bytes())
    if not _is_there(source, wanted):
        delete_files(source, [path])
        raise _gone(source, wanted)
    _drop_left(source, path)
    return path


@contextmanager
def while_there(source: Table, wanted: Snapshot) -> Iterator[None]:
    """Tell what is missing because somebody takes the branch's snapshot away meanwhile from damage.

    Paimon's own rollback deletes what it takes back at once, and asks for no hold. Who deletes a branch and makes it
    anew takes away its columns as well.

    Raises:
        ConflictError: in place of the error of a file that is missing, if the snapshot is gone, too.
    """
    try:
        yield
    except (FormatError, NotFoundError) as error:
        if _is_there(source, wanted):
            raise
        raise _gone(source, wanted) from error


def _is_there(source: Table, wanted: Snapshot) -> bool:
    now = source.find_snapshot(wanted.id)
    there = now is not None and now.identity == wanted.identity
    return there or any(t.snapshot.identity == wanted.identity for t in source.tags())


def _gone(source: Table, wanted: Snapshot) -> ConflictError:
    return ConflictError(
        f"{source.label}: snapshot {wanted.id} is gone: the branch was deleted, rolled back by another engine, or the "
        f"snapshot has expired meanwhile; nothing was changed"
    )


def drop_hold(table: Table, path: str) -> None:
    """Delete a hold. A failure leaves it for a week: it keeps files, and harms nothing."""
    try:
        delete_files(table, [path])
    except PaimonError as error:
        log.info("%s: %s was left behind (%s)", table.label, path, error.message)


def _drop_left(table: Table, own: str) -> None:
    infos = {f"{HOLDS_DIR}/{i.name}": i.modified_ms for i in table.store.list(HOLDS_DIR) if not i.is_dir}
    now = infos.get(own)
    left = [p for p, put in infos.items() if now is not None and put is not None and put < now - _LEFT_AFTER_MS]
    if left:
        delete_files(table, left)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedMark:
    """A note that a snapshot of a branch, or some partitions of it, was published, or may have been."""

    snapshot: int
    scope: PartitionScope = WHOLE


def mark_published(source: Table, wanted: Snapshot, user: str, scope: PartitionScope = WHOLE) -> str:
    """Note, beside the branch, which of its snapshots is being published, and by which commit user. Returns its path.

    Main's snapshots, and the tags on them, may go before the branch is published again
    (docs/contributing/publishing.md, Tables without keys are merged by file).
    """
    path = f"{_marks(source)}{uuid.uuid4()}.json"
    note = {"snapshot": wanted.id, "identity": wanted.identity, "user": user}
    note |= {} if scope.is_whole else {_ONLY: scope.json}
    put_new(source, path, json.dumps(note).encode())
    return path


def supersede_marks(source: Table, newest: str, number: int, scope: PartitionScope = WHOLE) -> None:
    """Delete the branch's other notes of these partitions, but of later snapshots that it has: the newest note says as
    much, and a later snapshot that it lacks was rolled back, or is of a deleted branch of its name.

    A failure leaves them, which is harmless.
    """
    try:
        others = [
            (p, raw)
            for p, raw in _read_marks(source, _marks(source))
            if p != newest and scope.covers(_scope_of(source, raw))
        ]
        delete_files(source, [p for p, raw in others if raw["snapshot"] <= number or not _has(source, raw)])
    except PaimonError as error:
        log.info("%s: older notes of publishes were left behind (%s)", source.label, error.message)


def published_marks(branch: Table, own: str | None) -> list[PublishedMark]:
    """Return the snapshots of the branch, also of its time under another name, that were published, or may have been.
    ``own``: leave out what this commit user has noted, which is known not to have landed.

    Raises:
        FormatError: a note is damaged.
    """
    found: list[PublishedMark] = []
    for path, raw in _read_marks(branch, f"{PUBLISHED_DIR}/"):
        number: int = raw["snapshot"]
        if own is not None and raw.get("user") == own:
            continue
        then = branch.find_snapshot(number)
        if then.identity == raw.get("identity") if then is not None else path.startswith(_marks(branch)):
            found.append(PublishedMark(snapshot=number, scope=_scope_of(branch, raw)))
    return found


def _scope_of(branch: Table, mark: dict[str, Any]) -> PartitionScope:
    return recorded_scope(branch.schema(), mark.get(_ONLY), branch.label)


def _marks(branch: Table) -> str:
    """What the paths of a branch's notes begin with, and those of no other branch."""
    return f"{PUBLISHED_DIR}/{before_dot(branch.branch_name)}."


def _has(branch: Table, mark: dict[str, Any]) -> bool:
    then = branch.find_snapshot(mark["snapshot"])
    return then is not None and then.identity == mark.get("identity")


def _read_marks(branch: Table, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in branch.store.names(PUBLISHED_DIR):
        path = f"{PUBLISHED_DIR}/{name}"
        if not (path.startswith(prefix) and name.endswith(".json")) or name.startswith("."):
            continue
        try:
            raw = load_json_object(branch.store.read(path), f"{branch.name}: {path}")
        except NotFoundError:  # deleted meanwhile
            continue
        if not isinstance(raw.get("snapshot"), int):
            raise FormatError(f"{branch.name}: {path} has no snapshot; {RESTORE}, or delete it")
        yield path, raw
