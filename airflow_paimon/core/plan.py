"""Plans: printable values that say what an operation will do, why, and what it relied on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """What must still hold when the plan is executed. None for ``snapshot_id`` = the branch has no snapshot."""

    branch: str
    snapshot_id: int | None
    identity: str | None = None
    schema_id: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "branch": self.branch,
            "snapshot_id": self.snapshot_id,
            "identity": self.identity,
            "schema_id": self.schema_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PutNew:
    """Put a file that must not be there. ``same_ok``: the very same bytes there already count as done."""

    path: str
    data: bytes
    reason: str
    same_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Write a file, replacing what is there."""

    path: str
    data: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete one file; a missing one is fine."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTree:
    """Delete a folder with all that is in it."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTag:
    """A commit tags a snapshot before it publishes; when the tag was made depends on the moment, so it is no part."""

    path: str
    snapshot_id: int
    retained: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceBucket:
    """A commit takes data files (by name) out of a bucket and puts others in, by reference."""

    path: str
    delete: tuple[str, ...]
    add: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPartition:
    """A commit takes a whole partition out of a branch. ``path`` is ``branch: partition``."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSnapshot:
    """A commit publishes a snapshot under an id that must be free. Its uuid and time belong to the moment."""

    path: str
    schema_id: int
    reason: str


FileAction = PutNew | Replace | Delete | DeleteTree
"""What ``execute`` carries out, one file or folder each."""
CommitAction = SetTag | ReplaceBucket | DropPartition | PutSnapshot
"""What the committer does; a plan lists it, and executing the plan means to commit."""
Action = FileAction | CommitAction


def _identity(action: Action) -> dict[str, Any]:
    """Say what an action does: its kind and its values, contents as a digest. The reason is for people."""
    values = {f.name: getattr(action, f.name) for f in dataclasses.fields(action) if f.name != "reason"}
    plain = {k: hashlib.sha256(v).hexdigest() if isinstance(v, bytes) else v for k, v in values.items()}
    return {"action": type(action).__name__, **plain}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ordered actions with a reason each. Falsy when there is nothing to do.

    ``summary`` holds plain JSON values for people and for the dry run; it counts into ``plan_id``.
    """

    operation: str
    table: str
    preconditions: tuple[Precondition, ...] = ()
    actions: tuple[Action, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.actions)

    @property
    def plan_id(self) -> str:
        """Identify what the plan does and relies on: the same inputs, ``now`` among them, give the same id."""
        canonical = json.dumps(self._identity(), sort_keys=True, default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "table": self.table,
            "preconditions": [p.to_json() for p in self.preconditions],
            "actions": [_identity(a) for a in self.actions],
            "summary": self.summary,
        }

    def to_json(self) -> dict[str, Any]:
        """Return what a dry run prints: no file contents."""
        return {
            "operation": self.operation,
            "plan_id": self.plan_id,
            "preconditions": [p.to_json() for p in self.preconditions],
            "actions": [{"action": type(a).__name__, "path": a.path, "reason": a.reason} for a in self.actions],
            **self.summary,
        }
