"""Plans that create, delete and rename a branch (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.branches.lineage import Lineage, lineage_path, rename_path
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.tag import Tag
from airflow_paimon.core.plan import Action, Delete, DeleteTree, Plan, Precondition, PutNew, Replace
from airflow_paimon.core.table.paths import EARLIEST, LATEST, MAIN, BranchPaths, protective_tag, published_tag

PROTECTIVE_OPTIONS: Mapping[str, str] = {
    "write-only": "true",
    "snapshot.num-retained.min": "2147483647",
    "snapshot.num-retained.max": "2147483647",
    "snapshot.time-retained": "36500 d",
    "tag.automatic-creation": "none",
}
"""What keeps every engine from expiring a branch that shares files: a tag alone does not stop Java there (measured)."""

_DROPPED_ON_BRANCH = (
    "tag.num-retained-max",
    "tag.default-time-retained",
    "partition.expiration-time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSource:
    """What a new branch starts from. ``snapshot_bytes`` is the snapshot file as it lies there, or made from the tag."""

    branch: str
    schemas: Mapping[int, bytes]
    schema: TableSchema
    latest_schema_id: int
    snapshot: Snapshot | None = None
    snapshot_bytes: bytes = b""
    tag: Tag | None = None


def branch_schema(source: BranchSource, now_ms: int) -> TableSchema:
    """Give the branch's own schema version: the source's columns and options, plus what keeps its files.

    Its id is above all of the source's, so that no engine ever takes one for the other.
    """
    options = {k: v for k, v in source.schema.options.items() if k not in _DROPPED_ON_BRANCH}
    options.update(PROTECTIVE_OPTIONS)
    schema_id = max(source.latest_schema_id, *source.schemas) + 1
    return replace(source.schema, id=schema_id, options=options, time_millis=now_ms, version=3)


def is_protective(schema: TableSchema) -> bool:
    """Whether a branch's schema keeps every engine from expiring its snapshots by itself."""
    keys = ("write-only", "snapshot.num-retained.min", "snapshot.time-retained")
    return all(schema.options.get(k) == PROTECTIVE_OPTIONS[k] for k in keys)


def plan_protect(operation: str, table: str, branch: str, source: BranchSource, known: Tag | None) -> Plan:
    """Plan the protective tag: it comes before anything is shared.

    ``known``: the tag of that name, if there is one. On the same snapshot it serves; on another one it is stale, or of
    a creator at the same moment: ours then gets a name of its own, as nothing may take away what protects another's.
    """
    if source.snapshot is None:
        return Plan(operation=operation, table=table)
    if known is not None and known.snapshot.identity == source.snapshot.identity:
        return Plan(operation=operation, table=table)
    name = protective_tag(branch) if known is None else published_tag(branch, source.snapshot.id)
    reason = f"keeps the files of snapshot {source.snapshot.id} of {source.branch} while branch {branch} lives"
    action = PutNew(
        path=BranchPaths(source.branch).tag(name),
        data=Tag(name=name, snapshot=source.snapshot).to_bytes(),
        reason=reason,
        same_ok=True,
    )
    return Plan(operation=operation, table=table, actions=(action,))


def plan_create_branch(operation: str, table: str, source: BranchSource, lineage: Lineage, now_ms: int) -> Plan:
    """Plan the branch itself: lineage, schemas, snapshot, tag, hint, in that order.

    A crash in between leaves an empty branch that every engine can read, and the lineage that says how to go on.
    """
    paths, head = BranchPaths(lineage.branch), source.snapshot
    actions: list[Action] = [
        Replace(path=lineage_path(lineage.branch), data=lineage.to_bytes(), reason="says where the branch came from")
    ]
    for schema_id, data in sorted(source.schemas.items()):
        reason = f"schema {schema_id} of {source.branch}"
        actions.append(PutNew(path=paths.schema(schema_id), data=data, same_ok=True, reason=reason))
    if head is not None:
        actions += _shared_part(paths, source, head, now_ms)
    precondition = Precondition(
        branch=source.branch,
        snapshot_id=head.id if head else None,
        identity=head.identity if head else None,
        schema_id=source.schema.id,
    )
    summary = {
        "branch": lineage.branch,
        "from_branch": source.branch,
        "from_tag": lineage.from_tag,
        "snapshot_id": lineage.snapshot_id,
    }
    return Plan(
        operation=operation, table=table, preconditions=(precondition,), actions=tuple(actions), summary=summary
    )


def _shared_part(paths: BranchPaths, source: BranchSource, head: Snapshot, now_ms: int) -> list[Action]:
    """What only a branch that starts from a snapshot has: its own schema version, the snapshot, the tag, the hint."""
    own = branch_schema(source, now_ms)
    reason = "the branch's own options: nothing expires here by itself"
    actions: list[Action] = [PutNew(path=paths.schema(own.id), data=own.to_bytes(), same_ok=True, reason=reason)]
    reason = f"snapshot {head.id} of {source.branch}, byte for byte"
    actions.append(PutNew(path=paths.snapshot(head.id), data=source.snapshot_bytes, same_ok=True, reason=reason))
    if source.tag is not None:
        plain = Tag(name=source.tag.name, snapshot=head).to_bytes()
        reason = "the tag it starts from, without its retention"
        actions.append(PutNew(path=paths.tag(source.tag.name), data=plain, same_ok=True, reason=reason))
    return [*actions, Replace(path=paths.latest_hint, data=str(head.id).encode(), reason="hint for readers")]


def plan_delete_branch(
    operation: str, table: str, branch: str, files: Sequence[str], protective: Sequence[str]
) -> Plan:
    """Plan the deletion of a branch's metadata; no data file is touched.

    The schema goes last: a branch without one breaks orphan cleaning for the whole table. ``protective`` are the paths
    of the tags that kept its files.
    """
    paths = BranchPaths(branch)
    schema_dir = f"{paths.schema_dir}/"
    last = sorted((f for f in files if f.startswith(schema_dir)), reverse=True)
    first = sorted(f for f in files if not f.startswith(schema_dir))
    actions: list[Action] = [Delete(path=f, reason=f"belongs to branch {branch}") for f in (*first, *last)]
    actions.append(DeleteTree(path=paths.root.rstrip("/"), reason="the branch's empty folders"))
    actions.append(Delete(path=lineage_path(branch), reason="the branch's lineage"))
    actions += [Delete(path=p, reason=f"protected files of branch {branch}, which is gone") for p in protective]
    return Plan(operation=operation, table=table, actions=tuple(actions), summary={"branch": branch})


def plan_rename_branch(
    operation: str,
    table: str,
    branch: str,
    to_branch: str,
    files: Mapping[str, bytes],
    lineage: Lineage | None,
    protective: Mapping[str, bytes],
) -> tuple[Plan, Plan]:
    """Plan a rename in two parts: copy the metadata as bytes, schemas first; then delete the old folder.

    ``protective``: content of the protective tags by path. A journal stands from the first action to the last.
    """
    old, new = BranchPaths(branch).root, BranchPaths(to_branch).root
    journal, said = rename_path(to_branch), json.dumps({"from": branch}).encode()
    copies: list[Action] = [Replace(path=journal, data=said, reason="says that a rename is under way")]
    for path, data in sorted(protective.items()):
        target = path.replace(protective_tag(branch), protective_tag(to_branch))
        reason = f"keeps the shared files under the name {to_branch}"
        copies.append(PutNew(path=target, data=data, same_ok=True, reason=reason))
    if lineage is not None:
        moved = replace(lineage, branch=to_branch)
        copies.append(Replace(path=lineage_path(to_branch), data=moved.to_bytes(), reason="lineage under the new name"))
    for path in sorted(files, key=lambda f: (not f.startswith(f"{old}schema/"), f)):
        target = new + path.removeprefix(old)
        copies.append(
            Replace(path=target, data=files[path], reason=f"copy of {path}")
            if path.endswith((LATEST, EARLIEST))
            else PutNew(path=target, data=files[path], same_ok=True, reason=f"copy of {path}")
        )
    summary = {"branch": branch, "to_branch": to_branch}
    gone = plan_delete_branch(operation, table, branch, list(files), sorted(protective))
    end = Delete(path=journal, reason="the rename is done")
    copy = Plan(operation=operation, table=table, actions=tuple(copies), summary=summary)
    return copy, replace(gone, actions=(*gone.actions, end), summary=summary)


def lineage_for(
    branch: str, source: BranchSource, now_iso: str, *, owner: str | None, reason: str | None, operation_id: str | None
) -> Lineage:
    """Give what the new branch's lineage will say."""
    head = source.snapshot
    return Lineage(
        branch=branch,
        created_at=now_iso,
        from_branch=source.branch or MAIN,
        from_tag=source.tag.name if source.tag else None,
        snapshot_id=head.id if head else None,
        identity=head.identity if head else None,
        owner=owner,
        reason=reason,
        operation_id=operation_id,
        schema_id=source.latest_schema_id if head is None else None,
    )
