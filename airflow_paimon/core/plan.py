"""Plans: printable values that list the actions of an operation, the reason for each, and its preconditions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Protocol


class Identified(Protocol):
    """A snapshot."""

    @property
    def id(self) -> int: ...
    @property
    def identity(self) -> str: ...


class FoundHead(Protocol):
    """A branch as an attempt to commit finds it: ``commit.conditions.HeadState``."""

    @property
    def head(self) -> Identified | None: ...
    @property
    def schema(self) -> Any: ...
    def conflict(self, why: str, **details: Any) -> Exception: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadIs:
    """The branch has still this snapshot (None: none), and this schema unless it is None. A plan shows by it what it is
    made of; a commit that depends on just this head has it as a condition.

    ``identity`` None: as far as the id tells. ``why``: what the conflict says.
    """

    branch: str
    snapshot_id: int | None
    identity: str | None = None
    schema_id: int | None = None
    why: str = ""

    @classmethod
    def of(cls, branch: str, head: Identified | None, schema_id: int | None = None, why: str = "") -> HeadIs:
        number, identity = (None, None) if head is None else (head.id, head.identity)
        return cls(branch=branch, snapshot_id=number, identity=identity, schema_id=schema_id, why=why)

    def check(self, at: FoundHead) -> None:
        """Check it on the head of a commit; raises ``ConflictError`` if it doesn't hold."""
        now = HeadIs.of(self.branch, at.head)
        same = now.snapshot_id == self.snapshot_id and self.identity in (None, now.identity)
        if not same or self.schema_id not in (None, at.schema.id):
            other = " (another one: it was rolled back since)" if now.snapshot_id == self.snapshot_id else ""
            why = f"{self.branch} is at snapshot {now.snapshot_id}, not at {self.snapshot_id}{other} as expected"
            raise at.conflict(self.why or why, expected_snapshot=self.snapshot_id, snapshot=now.snapshot_id)

    def to_json(self) -> dict[str, Any]:
        return {"branch": self.branch, "snapshot_id": self.snapshot_id, "identity": self.identity,
                "schema_id": self.schema_id}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PutNew:
    """Create a file that must not exist. ``same_ok``: an existing file with the same bytes counts as done."""

    path: str
    data: bytes
    reason: str
    same_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Write a file, replacing an existing one. ``expected``: only where it has this content; None where it is a hint,
    where nobody else writes it, or where all who write it write the same.
    """

    path: str
    data: bytes
    reason: str
    expected: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete one file; a missing file is not an error. ``expected``: only where it has this content; None only where
    nobody else ever puts another file there, as its name holds a uuid or it is a hint.
    """

    path: str
    reason: str
    expected: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFolders:
    """Delete a folder with the folders below it, as far as nothing is in them."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTag:
    """A commit tags a snapshot before it publishes. The tag's creation time does not count into ``plan_id``."""

    path: str
    snapshot_id: int
    retained: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceBucket:
    """A commit removes data files (by name) from a bucket and adds others, by reference."""

    path: str
    delete: tuple[str, ...]
    add: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPartition:
    """A commit removes a whole partition from a branch. ``path`` is ``branch: partition``."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildIndexes:
    """A commit gives the buckets of a partition new hash indexes. ``path`` is ``branch: partition``; ``partition`` in
    canonical form.
    """

    path: str
    branch: str
    partition: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPartition:
    """A compaction merges the files of a partition completely. ``path`` is ``branch: partition``; ``partition`` a text,
    empty for a table without partitions.
    """

    path: str
    branch: str
    partition: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCatalog:
    """The catalog gets the columns and options of main's newest schema. ``path``: the file of that schema."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSnapshot:
    """A commit publishes a snapshot under an id that must be free. Its uuid and time do not count into ``plan_id``."""

    path: str
    schema_id: int
    reason: str


FileAction = PutNew | Replace | Delete | DeleteFolders
"""Actions that ``execute`` carries out, on one file or folder each."""
CommitAction = SetTag | ReplaceBucket | DropPartition | RebuildIndexes | CompactPartition | UpdateCatalog | PutSnapshot
"""Actions that are no file of their own: a plan lists them, and a commit, or the catalog, carries them out."""
Action = FileAction | CommitAction


def _identity(action: Action) -> dict[str, Any]:
    """Return the kind and the values of an action, contents as a digest, without the reason (which is for people)."""
    values = {f.name: getattr(action, f.name) for f in dataclasses.fields(action) if f.name != "reason"}
    plain = {k: hashlib.sha256(v).hexdigest() if isinstance(v, bytes) else v for k, v in values.items()}
    return {"action": type(action).__name__, **plain}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ordered actions with a reason each. Falsy when there is nothing to do.

    ``summary`` holds plain JSON values for people and for the dry run; it is part of ``plan_id``.
    """

    operation: str
    table: str
    preconditions: tuple[HeadIs, ...] = ()
    actions: tuple[Action, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.actions)

    @property
    def plan_id(self) -> str:
        """A digest of the actions and preconditions: the same inputs, including ``now``, give the same id."""
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
        """Return the plan as a dry run prints it, without file contents."""
        return {
            "operation": self.operation,
            "plan_id": self.plan_id,
            "preconditions": [p.to_json() for p in self.preconditions],
            "actions": [{"action": type(a).__name__, "path": a.path, "reason": a.reason} for a in self.actions],
            **self.summary,
        }
