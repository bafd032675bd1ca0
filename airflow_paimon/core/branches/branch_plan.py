"""Plans that create, delete and rename a branch (pure).

Other engines see a branch by its schemas: they load it by the latest one, and a commit reads it again. So a branch is
complete before its first schema is put, and its schemas are deleted before anything else of it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.tag import Tag
from airflow_paimon.core.plan import Action, Delete, DeleteTree, Plan, Precondition, PutNew, Replace
from airflow_paimon.core.table.lineage import CREATING, DELETED, DELETING, READY, RENAMING, Lineage, lineage_path
from airflow_paimon.core.table.lost_history import UNLIMITED_RETENTION
from airflow_paimon.core.table.paths import (
    EARLIEST,
    LATEST,
    MAIN,
    SCHEMA_PREFIX,
    BranchPaths,
    numbered,
    protective_tag,
    published_tag,
)

PROTECTIVE_OPTIONS: Mapping[str, str] = {
    "write-only": "true",
    "snapshot.num-retained.min": "2147483647",
    "snapshot.num-retained.max": "2147483647",
    "snapshot.time-retained": UNLIMITED_RETENTION,
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
    """Return the branch's own schema version: the source's columns and options, plus what keeps its files.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePlan:
    """The steps of a creation. Between ``protect`` and ``fill`` the source is checked again, before ``show`` the claim.

    ``claim`` puts the record with state ``creating``: two creators exclude each other, and our commits are refused.
    """

    claim: Plan
    protect: Plan
    fill: Plan
    show: Plan
    finish: Plan

    def whole(self, before: Iterable[Action] = ()) -> Plan:
        """Return the creation as one plan, for people and for the dry run."""
        steps = (self.claim, self.protect, self.fill, self.show, self.finish)
        return replace(self.fill, actions=(*before, *(a for step in steps for a in step.actions)))


def plan_create_branch(
    operation: str, table: str, source: BranchSource, record: Lineage, now_ms: int, protect: Plan, *, written: bool
) -> CreatePlan:
    """Plan the branch itself. ``written``: it was interrupted, and has commits on top of its base already.

    The branch's own schema version is put first: from then on other engines can load the branch, and nothing of it
    expires by itself. The older versions, by which only older files are read, follow.
    """
    paths, head = BranchPaths(record.branch), source.snapshot
    precondition = Precondition(
        branch=source.branch,
        snapshot_id=head.id if head else None,
        identity=head.identity if head else None,
        schema_id=source.schema.id,
    )
    summary = {
        "branch": record.branch,
        "from_branch": source.branch,
        "from_tag": record.from_tag,
        "snapshot_id": record.snapshot_id,
    }
    empty = Plan(operation=operation, table=table, preconditions=(precondition,), summary=summary)
    path = lineage_path(record.branch)
    claim = PutNew(path=path, data=record.to_bytes(), same_ok=True, reason="says that the branch is being created")
    ready = Replace(path=path, data=record.in_state(READY).to_bytes(), reason="the branch is ready")
    return CreatePlan(
        claim=replace(empty, actions=(claim,)),
        protect=protect,
        fill=replace(empty, actions=tuple(_snapshot_actions(paths, source, written=written))),
        show=replace(empty, actions=tuple(_schema_actions(paths, source, now_ms))),
        finish=replace(empty, actions=(ready,)),
    )


def _snapshot_actions(paths: BranchPaths, source: BranchSource, *, written: bool) -> list[Action]:
    head = source.snapshot
    if head is None:
        return []
    reason = f"snapshot {head.id} of {source.branch}, byte for byte"
    actions: list[Action] = [
        PutNew(path=paths.snapshot(head.id), data=source.snapshot_bytes, same_ok=True, reason=reason)
    ]
    if source.tag is not None:
        plain = Tag(name=source.tag.name, snapshot=head).to_bytes()
        reason = "the tag it starts from, without its retention"
        actions.append(PutNew(path=paths.tag(source.tag.name), data=plain, same_ok=True, reason=reason))
    if not written:
        hint = str(head.id).encode()
        actions.append(PutNew(path=paths.latest_hint, data=hint, same_ok=True, reason="hint for readers"))
    return actions


def _schema_actions(paths: BranchPaths, source: BranchSource, now_ms: int) -> list[Action]:
    """The schemas, the latest first: the first that is put decides how other engines treat the branch."""
    schemas = dict(source.schemas)
    reasons = {i: f"schema {i} of {source.branch}" for i in schemas}
    if source.snapshot is not None:
        own = branch_schema(source, now_ms)
        schemas[own.id] = own.to_bytes()
        reasons[own.id] = "the branch's own options: nothing expires here by itself"
    latest = max(schemas)
    order = [latest, *(i for i in sorted(schemas) if i != latest)]
    return [PutNew(path=paths.schema(i), data=schemas[i], same_ok=True, reason=reasons[i]) for i in order]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePlan:
    """The steps of a deletion. After ``hide`` no engine can commit any more: then the branch is looked at again.

    If it was written meanwhile, ``undo`` brings it back; else ``remove`` and ``end`` delete the rest.
    """

    hide: Plan
    remove: Plan
    end: Plan
    undo: Plan

    def rest(self) -> Plan:
        """Return what is left to do once the branch is hidden."""
        return replace(self.remove, actions=(*self.remove.actions, *self.end.actions))

    def whole(self) -> Plan:
        """Return the deletion as one plan, for people and for the dry run."""
        return replace(self.remove, actions=(*self.hide.actions, *self.rest().actions))


def plan_delete_branch(
    operation: str,
    table: str,
    record: Lineage,
    files: Sequence[str],
    schemas: Mapping[int, bytes],
    protective: Sequence[str],
    *,
    head: int | None = None,
    since: str | None = None,
    successor: Lineage | None = None,
) -> DeletePlan:
    """Plan the deletion of a branch's metadata; no data file is touched.

    ``record``: the branch's, as it is to be if the deletion is undone. ``schemas`` are its schema files, ``protective``
    the paths of the tags that keep its files. ``since``: when this began. ``successor``: the record of the branch that
    takes its name.
    """
    name, path, paths = record.branch, lineage_path(record.branch), BranchPaths(record.branch)
    empty = Plan(operation=operation, table=table, summary={"branch": name})
    saved = {str(i): data.decode() for i, data in sorted(schemas.items())}
    deleting = replace(record.in_state(DELETING), head=head, schemas=saved, since=since)
    deleted = replace(record.in_state(DELETED), since=since)
    known = [paths.schema(i) for i in sorted(schemas)]
    hide: list[Action] = [Replace(path=path, data=deleting.to_bytes(), reason="says that the branch is being deleted")]
    hide += [Delete(path=f, reason="no engine loads the branch any more") for f in known]
    remove: list[Action] = [
        Replace(path=path, data=deleted.to_bytes(), reason="from here on the deletion can't be undone")
    ]
    remove += [Delete(path=p, reason=f"protected files of branch {name}, which is gone") for p in protective]
    remove += [Delete(path=f, reason=f"belongs to branch {name}") for f in sorted(set(files) - set(known))]
    end = (
        DeleteTree(path=paths.root.rstrip("/"), reason="the branch's empty folders"),
        _record_action(path, successor, "the branch's record"),
    )
    undo: list[Action] = [
        PutNew(path=paths.schema(i), data=data, same_ok=True, reason="the branch was written")
        for i, data in sorted(schemas.items(), reverse=True)
    ]
    undo.append(_record_action(path, record if record.known_origin else None, "the branch is back"))
    return DeletePlan(
        hide=replace(empty, actions=tuple(hide)),
        remove=replace(empty, actions=tuple(remove)),
        end=replace(empty, actions=end),
        undo=replace(empty, actions=tuple(undo)),
    )


def _record_action(path: str, record: Lineage | None, reason: str) -> Action:
    """Write a record, or delete it where the branch is to have none."""
    return (
        Delete(path=path, reason=reason)
        if record is None
        else Replace(path=path, data=record.to_bytes(), reason=reason)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamePlan:
    """The steps of a rename. After ``hide`` no engine commits to the old branch: what came until then is copied, too.

    ``undo`` leaves two branches: for the case that both were written while the rename was interrupted. ``withdraw``
    removes the new branch: for the case that somebody else deletes the old one at the same moment.
    """

    claim: Plan
    copy: Plan
    hide: Plan
    remove: Plan
    undo: Plan
    withdraw: Plan
    both_written: bool

    def whole(self) -> Plan:
        """Return the rename as one plan, for people and for the dry run."""
        steps = (self.claim, self.copy, self.hide, self.remove)
        return replace(self.copy, actions=tuple(a for step in steps for a in step.actions))


def plan_rename_branch(
    operation: str,
    table: str,
    record: Lineage,
    to_branch: str,
    files: Mapping[str, bytes],
    there: Mapping[str, bytes],
    protective: Mapping[str, tuple[str, bytes] | None],
    *,
    since: str | None,
    resumed: bool,
) -> RenamePlan:
    """Plan a rename: copy everything under the new name, schemas last; hide the old branch; remove what is left of it.

    ``record``: the old branch's, in state ``ready``. ``files``: content of its files; ``there``: of those that an
    interrupted rename copied, by path. ``protective``: path under the new name and content of each protective tag,
    None where that stands already. ``since``: when the rename began; ``resumed``: it was interrupted.
    """
    name = record.branch
    old, new = BranchPaths(name), BranchPaths(to_branch)
    paths = lineage_path(name), lineage_path(to_branch)
    empty = Plan(operation=operation, table=table, summary={"branch": name, "to_branch": to_branch})
    moved = replace(record, branch=to_branch)
    begun = (
        replace(moved.in_state(CREATING, peer=name), since=since),
        replace(record.in_state(RENAMING, peer=to_branch), since=since),
    )
    claim: tuple[Action, ...] = (
        PutNew(path=paths[1], data=begun[0].to_bytes(), same_ok=resumed, reason="says that a rename makes the branch"),
        Replace(path=paths[0], data=begun[1].to_bytes(), reason="says that the branch is being renamed"),
    )
    hide = [Delete(path=f, reason="no engine loads the old name any more") for f in _schema_files(old, files)]
    remove: list[Action] = [_record_action(paths[1], moved if moved.known_origin else None, "the new branch is ready")]
    remove += [Delete(path=p, reason=f"protected files under the name {name}") for p in sorted(protective)]
    remove += [Delete(path=f, reason=f"was copied to {to_branch}") for f in sorted(files)]
    remove.append(DeleteTree(path=old.root.rstrip("/"), reason="the old branch's empty folders"))
    remove.append(Delete(path=paths[0], reason="the old branch's record"))
    undo: list[Action] = [
        PutNew(path=old.root + f.removeprefix(new.root), data=there[f], same_ok=True, reason="both branches stay")
        for f in reversed(_schema_files(new, there))
        if old.root + f.removeprefix(new.root) not in files
    ]
    undo += [
        _record_action(paths[1], moved if moved.known_origin else None, "both branches stay"),
        _record_action(paths[0], record if record.known_origin else None, "both branches stay"),
    ]
    copies = tuple(_copies(record, to_branch, files, there, protective))
    withdraw: list[Action] = [Delete(path=a.path, reason="the branch was not renamed") for a in reversed(copies)]
    withdraw.append(DeleteTree(path=new.root.rstrip("/"), reason="the new branch's empty folders"))
    withdraw.append(Delete(path=paths[1], reason="the branch was not renamed"))
    return RenamePlan(
        claim=replace(empty, actions=claim),
        copy=replace(empty, actions=copies),
        hide=replace(empty, actions=tuple(hide)),
        remove=replace(empty, actions=tuple(remove)),
        undo=replace(empty, actions=tuple(undo)),
        withdraw=replace(empty, actions=tuple(withdraw)),
        both_written=any(action.path in there for action in copies),
    )


def _schema_files(paths: BranchPaths, files: Iterable[str]) -> list[str]:
    """The schema files among a branch's files, by id."""
    folder = f"{paths.schema_dir}/"
    names = [f.removeprefix(folder) for f in files if f.startswith(folder)]
    return [paths.schema(i) for i in numbered(names, SCHEMA_PREFIX)]


def _copies(
    record: Lineage,
    to_branch: str,
    files: Mapping[str, bytes],
    there: Mapping[str, bytes],
    protective: Mapping[str, tuple[str, bytes] | None],
) -> Iterable[Action]:
    """Copy tags that protect, then all but the schemas, then the schemas, the latest first."""
    old, new = BranchPaths(record.branch), BranchPaths(to_branch)
    for target, data in sorted(tag for tag in protective.values() if tag is not None):
        reason = f"keeps the shared files under the name {to_branch}"
        yield PutNew(path=target, data=data, same_ok=True, reason=reason)
    schemas = _schema_files(old, files)
    order = [*sorted(files.keys() - set(schemas)), *schemas[-1:], *schemas[:-1]]
    for path in order:
        target, reason = new.root + path.removeprefix(old.root), f"copy of {path}"
        hint = path.endswith((f"/{LATEST}", f"/{EARLIEST}")) or path.startswith(old.consumer_dir)
        if not hint and there.get(target) != files[path]:
            yield PutNew(path=target, data=files[path], same_ok=True, reason=reason)
        elif hint and target not in there:
            yield Replace(path=target, data=files[path], reason=reason)


def lineage_for(
    branch: str, source: BranchSource, now_iso: str, *, owner: str | None, reason: str | None, operation_id: str | None
) -> Lineage:
    """Return the new branch's record as it is while the branch is created."""
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
        schema_id=source.latest_schema_id,
        state=CREATING,
    )
