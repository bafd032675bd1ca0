"""Where a branch of ours came from: ``_airflow_paimon/branches/<branch>.json``.

A hint that is verified against the table before anything relies on it: another engine can drop a branch and create
another one of the same name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.table.paths import MAIN, PRIVATE_DIR
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """``identity`` is the base snapshot's (``Snapshot.identity``); None for a branch created empty.

    ``schema_id``: the newest schema that an empty branch was to get.
    """

    branch: str
    created_at: str
    from_branch: str = MAIN
    from_tag: str | None = None
    snapshot_id: int | None = None
    identity: str | None = None
    owner: str | None = None
    reason: str | None = None
    operation_id: str | None = None
    schema_id: int | None = None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False).encode()

    def same_base(self, other: Lineage) -> bool:
        """Whether both say: made from this very snapshot of this branch."""
        mine = (self.from_branch, self.snapshot_id, self.identity)
        return mine == (other.from_branch, other.snapshot_id, other.identity)


def lineage_path(branch: str) -> str:
    return f"{PRIVATE_DIR}/branches/{branch}.json"


def rename_path(to_branch: str) -> str:
    """Where a rename that is under way says which branch is becoming ``to_branch``."""
    return f"{PRIVATE_DIR}/renames/{to_branch}.json"


def read_rename(table: Table, to_branch: str) -> str | None:
    """The branch that a cut-off rename was turning into ``to_branch``; None when there is no such journal."""
    try:
        return str(json.loads(table.store.read(rename_path(to_branch)))["from"])
    except (NotFoundError, ValueError, KeyError, TypeError):
        return None


def read_lineage(table: Table, branch: str) -> Lineage | None:
    """Read a branch's lineage. None when there is none or when it is unreadable: every table works without it."""
    try:
        raw: Any = json.loads(table.store.read(lineage_path(branch)))
        known = {k: raw[k] for k in Lineage.__dataclass_fields__ if k in raw}
        return Lineage(**known)
    except (NotFoundError, ValueError, TypeError, FormatError):
        return None


def is_unfinished(view: Table, lineage: Lineage) -> bool:
    """Whether a branch that has no snapshot was to get one, or more schemas than it has."""
    return lineage.snapshot_id is not None or view.schema_ids()[-1] < (lineage.schema_id or 0)


def verified_lineage(table: Table, branch: str) -> Lineage | None:
    """Give the lineage only if the branch that is there now does start from that snapshot."""
    lineage = read_lineage(table, branch)
    if lineage is None:
        return None
    view = table.branch(branch)
    ids = view.snapshot_ids()
    if lineage.snapshot_id is None:
        return lineage
    try:
        base = view.snapshot(lineage.snapshot_id) if lineage.snapshot_id in ids else None
    except (NotFoundError, FormatError):
        return None
    return lineage if base is not None and base.identity == lineage.identity else None
