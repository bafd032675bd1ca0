"""The trash: metadata files that an expiry has taken away, kept until the grace time is over.

``_airflow_paimon/trash/<branch>/<kind>-<name>-<digest>.json`` holds the content of a snapshot, tag or long-lived
changelog. The entry is put before the file is deleted, and deleted after the last file that only it names. While it
lies there its files stay, so that readers finish and the file can be put back.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import RESTORE, load_json_object
from airflow_paimon.core.table.paths import PRIVATE_DIR

TRASH_DIR = f"{PRIVATE_DIR}/trash"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashEntry:
    """A file that was taken away. ``kind``: ``snapshot``, ``tag`` or ``changelog``; ``name``: snapshot id or tag name.

    ``path``: where it was; ``content``: its bytes. ``unlinked_ms``: when it was taken away by the clock of the machine
    that did it, ``put_ms``: by the storage's, as far as that is known (epoch milliseconds); the grace time is counted
    from the latter.
    ``reaping``: the grace time is over, and some of the files that only it names may be gone.
    """

    branch: str
    kind: str
    name: str
    path: str
    content: bytes
    unlinked_ms: int
    operation_id: str | None = None
    reaping: bool = False
    put_ms: int | None = field(default=None, compare=False, repr=False)

    @property
    def gone_since_ms(self) -> int:
        """When the grace time began."""
        return self.unlinked_ms if self.put_ms is None else self.put_ms

    @property
    def trash_path(self) -> str:
        """Where the entry lies; two files that had one path have two entries."""
        digest = hashlib.sha256(self.content).hexdigest()[:16]
        return f"{TRASH_DIR}/{self.branch}/{self.kind}-{self.name}-{digest}.json"

    def to_bytes(self) -> bytes:
        raw = {
            "kind": self.kind,
            "name": self.name,
            "branch": self.branch,
            "path": self.path,
            "unlinked_ms": self.unlinked_ms,
            "operation_id": self.operation_id,
            "reaping": self.reaping,
            "content": self.content.decode(),
        }
        return json.dumps(raw, indent=2, ensure_ascii=False).encode()


def parse_trash(data: bytes, name: str) -> TrashEntry:
    """Parse a trash entry; ``name`` is its path, for messages.

    Raises:
        FormatError: truncated, or not what ``TrashEntry.to_bytes`` writes.
    """
    raw = load_json_object(data, name)
    texts = {key: raw.get(key) for key in ("branch", "kind", "name", "path", "content")}
    wrong = sorted(key for key, value in texts.items() if not isinstance(value, str))
    unlinked: Any = raw.get("unlinked_ms")
    if wrong or not isinstance(unlinked, int):
        raise FormatError(f"{name} is corrupt: it lacks {', '.join(wrong) or 'unlinked_ms'}; {RESTORE}")
    operation_id = raw.get("operation_id")
    return TrashEntry(
        branch=str(texts["branch"]),
        kind=str(texts["kind"]),
        name=str(texts["name"]),
        path=str(texts["path"]),
        content=str(texts["content"]).encode(),
        unlinked_ms=unlinked,
        operation_id=operation_id if isinstance(operation_id, str) else None,
        reaping=raw.get("reaping") is True,
    )
