"""Distinguishes a branch that never had a snapshot from one that lost them all, whose ids must not restart at 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_paimon.core.format.schema import parse_schema
from airflow_paimon.core.format.snapshot import parse_snapshot
from airflow_paimon.core.format.tag import parse_tag
from airflow_paimon.core.table.options import UNLIMITED_RETENTION
from airflow_paimon.core.table.paths import (
    BRANCH_DIR,
    BRANCH_PREFIX,
    MAIN,
    SCHEMA_PREFIX,
    SNAPSHOT_PREFIX,
    STAGING_BRANCH_PREFIX,
    TAG_PREFIX,
    BranchPaths,
    numbered,
)

if TYPE_CHECKING:
    from airflow_paimon.core.store import Store


def proof_of_snapshots(store: Store, branch: str) -> str | None:
    """Return the evidence that a branch without snapshots had some; None without evidence. Costs two or three listings.

    A tag is evidence, unless another branch of the table has automatic tags: Paimon puts those tags on main. So
    are a hint and, on a branch, the option that was set together with its first snapshot.
    """
    paths = BranchPaths(branch)
    if not store.names(paths.schema_dir):
        return None  # it doesn't exist, or is being created or deleted
    for path in (paths.latest_hint, paths.earliest_hint):
        if store.exists(path) and store.read(path).strip().isdigit():
            return f"the hint {path}"
    names = sorted(n for n in store.names(paths.tag_dir) if n.startswith(TAG_PREFIX))
    strange = _tagged_by_branches(store) if names and branch == MAIN else set()
    for name in names:
        tag = parse_tag(store.read(f"{paths.tag_dir}/{name}"), name.removeprefix(TAG_PREFIX))
        if tag.snapshot.identity not in strange:
            return f"tag {tag.name!r} on snapshot {tag.snapshot.id}"
    if branch != MAIN and not branch.startswith(STAGING_BRANCH_PREFIX):
        options = _options(store, branch)
        if options.get("snapshot.time-retained") == UNLIMITED_RETENTION and options.get("write-only") == "true":
            return "its options, which were set together with its first snapshot"
    return None


def _options(store: Store, branch: str) -> dict[str, str]:
    paths = BranchPaths(branch)
    ids = numbered(store.names(paths.schema_dir), SCHEMA_PREFIX)
    return dict(parse_schema(store.read(paths.schema(ids[-1])), paths.schema(ids[-1])).options) if ids else {}


def _tagged_by_branches(store: Store) -> set[str]:
    """Identities of the snapshots of branches that may have put tags on main (``tag.automatic-creation``)."""

    found = set()
    for entry in store.list(BRANCH_DIR):
        branch = entry.name.removeprefix(BRANCH_PREFIX)
        if branch == entry.name or _options(store, branch).get("tag.automatic-creation", "none") == "none":
            continue
        paths = BranchPaths(branch)
        for number in numbered(store.names(paths.snapshot_dir), SNAPSHOT_PREFIX):
            found.add(parse_snapshot(store.read(paths.snapshot(number)), paths.snapshot(number)).identity)
    return found
