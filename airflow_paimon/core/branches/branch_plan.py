"""Plans that create, copy and delete a branch (pure); a rename is a copy and a deletion.

Other engines load a branch by its latest schema, and read that again for a commit. So a branch is complete before its
first schema is put, and a deletion begins with its schemas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.plan import Action, Delete, DeleteFolders, HeadIs, Plan, PutNew, Replace
from airflow_paimon.core.requests.requests import CreateBranch
from airflow_paimon.core.table.branch_record import (
    CREATING,
    DELETED,
    DELETING,
    READY,
    BranchRecord,
    branch_record_path,
    snapshot_key,
)
from airflow_paimon.core.table.options import CHAIN_BRANCHES, PROTECTIVE_OPTIONS
from airflow_paimon.core.table.paths import (
    EARLIEST,
    LATEST,
    MAIN,
    BranchPaths,
    protective_tag,
    published_tag,
)
from airflow_paimon.core.table.properties import DETAILS_PROPERTY, OPERATION_PROPERTY, RESCALE


def protection_text(record: BranchRecord) -> str:
    """Say who protected a branch and why: ``protected by ann (month-end audit)``."""
    by = f"protected by {record.protected_by}" if record.protected_by else "protected"
    return f"{by} ({record.reason})" if record.reason else by


DROPPED_ON_BRANCH = (
    "tag.num-retained-max", "tag.default-time-retained", "partition.expiration-time", "changelog.num-retained.min",
    "changelog.num-retained.max",
)  # fmt: skip
"""Options of a table that a branch of it does not take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSource:
    """The base of a new branch. ``snapshot_bytes`` is the snapshot file byte for byte, or made from the tag.

    ``is_chain_part``: the source is the snapshot or the delta branch of a chain table.
    """

    branch: str
    schemas: Mapping[int, bytes]
    schema: TableSchema
    latest_schema_id: int
    snapshot: Snapshot | None = None
    snapshot_bytes: bytes = b""
    tag: Tag | None = None
    is_chain_part: bool = False


@dataclass(frozen=True, slots=True)
class Parent:
    """The branch, other than main, whose changes a new branch begins with: its record, if any, and which snapshot."""

    record: BranchRecord | None
    snapshot: Snapshot


def base_schema(schema: TableSchema, base: Snapshot) -> TableSchema:
    """Return the schema of a branch's base. A rescale's snapshot has that of before the option ``bucket`` followed it:
    Paimon's writers would refuse its files, or put a key into a second bucket.
    """
    if base.properties.get(OPERATION_PROPERTY) != RESCALE:
        return schema
    details = base.values(DETAILS_PROPERTY, dict)
    before, option = details.get("option_before"), details.get("option")
    if option is None or schema.options.get("bucket") != str(before):
        return schema
    return replace(schema, options={**schema.options, "bucket": str(option)})


def branch_schema(source: BranchSource, now_ms: int) -> TableSchema:
    """Return the branch's own schema version: the source's columns and options, plus those that prevent expiry.

    Its id is above all ids of the source, so that no engine mistakes one for the other.
    """
    schema_id = max(source.latest_schema_id, *source.schemas) + 1
    options = branch_options(source.schema.options)
    if source.is_chain_part:
        # read as it is stored, not as a chain; with chain-table.enabled no engine's compaction drops deletes
        options = {k: v for k, v in options.items() if k not in CHAIN_BRANCHES} | {"chain-table.enabled": "true"}
    return replace(source.schema, id=schema_id, options=options, time_millis=now_ms, version=source.schema.next_version)


def branch_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a branch of a table with these."""
    return {k: v for k, v in options.items() if k not in DROPPED_ON_BRANCH} | dict(PROTECTIVE_OPTIONS)


def is_protective(schema: TableSchema) -> bool:
    """Whether a branch's schema prevents automatic expiry of its snapshots by every engine."""
    keys = ("write-only", "snapshot.num-retained.min", "snapshot.time-retained")
    return all(schema.options.get(k) == PROTECTIVE_OPTIONS[k] for k in keys)


def _protect(branch: str, source: BranchSource, known: Tag | None) -> tuple[Action, ...]:
    """Plan the protective tag, which must exist before any file is shared.

    ``known``: the existing tag of that name. On the same snapshot it is used; on another one it is stale, or belongs to
    a concurrent creator: then this tag gets a unique name, as another branch's protection must not be removed.
    """
    if source.snapshot is None or (known is not None and known.snapshot.identity == source.snapshot.identity):
        return ()
    name = protective_tag(branch) if known is None else published_tag(branch, source.snapshot.id)
    reason = f"keeps the files of snapshot {source.snapshot.id} of {source.branch} while branch {branch} lives"
    path, data = BranchPaths(source.branch).tag(name), Tag(name=name, snapshot=source.snapshot).to_bytes()
    return (PutNew(path=path, data=data, reason=reason, same_ok=True),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePlan:
    """The steps of a creation. The source is checked again before ``schemas``, and that the lock is there.

    ``lock`` puts the record with state ``creating``: two creators exclude each other, and our commits are refused.
    ``record``: that one. ``protective_path``: the tag that protects the base; an earlier try may have set it, so that
    it is in no step. ``outline``: the plan without its actions.
    """

    record: BranchRecord
    protective_path: str | None
    outline: Plan
    lock: PutNew | Replace
    protect: tuple[Action, ...]
    files: tuple[Action, ...]
    schemas: tuple[Action, ...]
    finish: tuple[Action, ...]

    @property
    def branch(self) -> str:
        return self.record.branch

    def full_plan(self, before: Iterable[Action] = (), after: Iterable[Action] = ()) -> Plan:
        """Return the creation as one plan, for people and for the dry run."""
        actions = (*before, self.lock, *self.protect, *self.files, *self.schemas, *self.finish, *after)
        return replace(self.outline, actions=actions)


def plan_create_branch(
    operation: str,
    table: str,
    source: BranchSource,
    record: BranchRecord,
    known: Tag | None,
    *,
    written: bool,
) -> CreatePlan:
    """Plan the branch, and the tag that protects its base; ``known``: see ``_protect``.

    ``record``: in state ``creating``. ``written``: the creation was interrupted, and there are commits on top of the
    base.

    The branch's own schema version is put first: with it other engines can load the branch, without automatic expiry.
    The older versions, needed only to read older files, follow.
    """
    paths, head = BranchPaths(record.branch), source.snapshot
    precondition = HeadIs.of(source.branch, head, source.schema.id)
    summary = {
        "branch": record.branch,
        "from_branch": source.branch,
        "from_tag": record.from_tag,
        "snapshot_id": record.snapshot_id,
    }
    path, protect = branch_record_path(record.branch), _protect(record.branch, source, known)
    tag = BranchPaths(source.branch).tag(protective_tag(record.branch)) if head is not None else None
    return CreatePlan(
        record=record,
        protective_path=protect[0].path if protect else tag,
        outline=Plan(operation=operation, table=table, preconditions=(precondition,), summary=summary),
        lock=PutNew(path=path, data=record.to_bytes(), same_ok=True, reason="marks the branch as being created"),
        protect=protect,
        files=tuple(_snapshot_actions(paths, source, written=written)),
        schemas=tuple(_put_schemas(record, f"schema of {source.branch}")),
        finish=(_ready(record, record.in_state(READY)),),
    )


def _ready(creating: BranchRecord, ready: BranchRecord) -> Replace:
    data, expected = ready.to_bytes(), creating.to_bytes()
    return Replace(path=branch_record_path(ready.branch), data=data, expected=expected, reason="the branch is ready")


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
        reason = "the tag that it starts from, without its retention"
        actions.append(PutNew(path=paths.tag(source.tag.name), data=plain, same_ok=True, reason=reason))
    if not written:
        hint = str(head.id).encode()
        actions.append(PutNew(path=paths.latest_hint, data=hint, same_ok=True, reason="hint for readers"))
    return actions


def _branch_schemas(source: BranchSource, now_ms: int) -> dict[int, bytes]:
    """Return the schemas of a new branch by id."""
    schemas = dict(source.schemas)
    if source.snapshot is not None:
        own = branch_schema(source, now_ms)
        schemas[own.id] = own.to_bytes()
    return schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBranch:
    """What was read of a branch. ``record``: its record, in state ``ready``; ``record_bytes``: as it is stored.

    ``files``: all of its files by path, None for a content that nobody compares. ``schemas``: its schema files by id,
    also those that an interrupted deletion has deleted. ``head``: its newest snapshot id.
    """

    record: BranchRecord
    record_bytes: bytes | None
    files: Mapping[str, bytes | None]
    schemas: Mapping[int, bytes] = field(default_factory=dict)
    head: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The deletion of a branch, for its record and its newest snapshot as ``stored`` has them.

    ``lock`` marks it as being deleted, and after ``hide`` no engine can commit any more: then the branch is looked at
    for new commits. If there are any, ``schemas_back`` and ``record_back`` restore it; otherwise it can't be undone
    after ``seal``, and ``remove``, ``folders`` and ``end`` delete the rest. ``copied_to``: the branch that has all of
    it. ``is_under_way``: an interrupted deletion was sealed. ``outline``: the plan without its actions.
    """

    stored: StoredBranch
    outline: Plan
    lock: PutNew | Replace
    hide: tuple[Action, ...]
    seal: Replace
    remove: tuple[Delete, ...]
    folders: DeleteFolders
    end: Action
    schemas_back: tuple[PutNew, ...]
    record_back: Delete | Replace
    copied_to: str | None
    is_under_way: bool

    @property
    def branch(self) -> str:
        return self.stored.record.branch

    @property
    def head(self) -> int | None:
        return self.stored.head

    @property
    def rest(self) -> tuple[Action, ...]:
        """The remaining steps once the branch is hidden."""
        return self.seal, *self.remove, self.folders, self.end

    @property
    def undo(self) -> tuple[Action, ...]:
        """The steps that restore a hidden branch."""
        return *self.schemas_back, self.record_back

    def full_plan(self) -> Plan:
        """Return the deletion as one plan, for people and for the dry run."""
        return replace(self.outline, actions=(self.lock, *self.hide, *self.rest))


def plan_delete_branch(
    operation: str,
    table: str,
    branch: StoredBranch,
    protective: Mapping[str, bytes],
    for_others: Sequence[PutNew] = (),
    *,
    since: str | None = None,
    successor: BranchRecord | None = None,
    copied_to: str | None = None,
    is_under_way: bool = False,
) -> Removal:
    """Plan the deletion of a branch's metadata; no data file is touched.

    ``protective``: the tags that retain its files, by path. ``for_others``: tags that other branches need in their
    place. ``since``: when the deletion began. ``successor``: the record of the branch that takes over its name.
    """
    record, recorded, files = branch.record, branch.record_bytes, branch.files
    name, path, paths = record.branch, branch_record_path(record.branch), BranchPaths(record.branch)
    deleting = replace(
        record.in_state(DELETING, peer=copied_to), head=branch.head, schemas=_schema_texts(branch.schemas), since=since
    )
    deleted = replace(record.in_state(DELETED, peer=copied_to), since=since)
    known = {paths.schema(i): data for i, data in sorted(branch.schemas.items())}
    hints = (paths.latest_hint, paths.earliest_hint)  # they go whatever they say, as a commit rewrites them
    left = {f: None if f in hints else data for f, data in sorted(files.items()) if f not in known}
    kept = f"protected files of the deleted branch {name}"
    return Removal(
        stored=branch,
        outline=Plan(operation=operation, table=table, summary={"branch": name}),
        lock=lock(path, deleting.to_bytes(), recorded, "marks the branch as being deleted"),
        hide=(
            *(Delete(path=f, expected=d, reason="no engine can load the branch any more") for f, d in known.items()),
            *for_others,
        ),
        seal=Replace(
            path=path,
            data=deleted.to_bytes(),
            expected=deleting.to_bytes(),
            reason="from here on the deletion can't be undone",
        ),
        remove=(
            *(Delete(path=p, expected=data, reason=kept) for p, data in sorted(protective.items())),
            *(Delete(path=f, expected=data, reason=f"belongs to branch {name}") for f, data in left.items()),
        ),
        folders=DeleteFolders(path=paths.root.rstrip("/"), reason="the branch's empty folders"),
        end=_record_action(path, successor, "the branch's record", deleted.to_bytes()),
        schemas_back=tuple(_put_schemas(deleting, "the branch got new commits")),
        record_back=_record_action(
            path, record if record.outlives_changes else None, "the branch is restored", deleting.to_bytes()
        ),
        copied_to=copied_to,
        is_under_way=is_under_way,
    )


def lock(path: str, data: bytes, recorded: bytes | None, reason: str) -> PutNew | Replace:
    """Write a record in the place of the one that is known, None: there is none."""
    if recorded is None:
        return PutNew(path=path, data=data, reason=reason)
    return Replace(path=path, data=data, expected=recorded, reason=reason)


def _record_action(path: str, record: BranchRecord | None, reason: str, marked: bytes | None) -> Delete | Replace:
    """Write a record, or delete it if the branch gets none. ``marked``: what this operation has put there before."""
    if record is None:
        return Delete(path=path, expected=marked, reason=reason)
    return Replace(path=path, data=record.to_bytes(), expected=marked, reason=reason)


def plan_copy_branch(
    operation: str,
    table: str,
    branch: StoredBranch,
    to_branch: str,
    *,
    copied: Collection[str],
    protect: Sequence[Action],
    since: str,
    recorded: bytes | None,
) -> CreatePlan:
    """Plan a branch that has all files of another one, schemas last. Its record names that one until that is gone.

    ``branch``: the other one. ``copied``: the paths of what an interrupted try has copied. ``protect``: the protective
    tags. ``since``: when this try began. ``recorded``: the record that an interrupted try has left.
    """
    name, old, new = branch.record.branch, BranchPaths(branch.record.branch), BranchPaths(to_branch)
    copies: list[Action] = []
    for path, data in sorted(branch.files.items()):
        assert data is not None
        target, reason = new.root + path.removeprefix(old.root), f"copy of {path}"
        if is_history(old, path):
            copies.append(PutNew(path=target, data=data, same_ok=True, reason=reason))
        elif not path.startswith(old.schema_dir) and target not in copied:
            copies.append(Replace(path=target, data=data, reason=reason))
    record = replace(branch.record, branch=to_branch)
    creating = replace(record.in_state(CREATING, peer=name), since=since, schemas=_schema_texts(branch.schemas))
    return CreatePlan(
        record=creating,
        protective_path=None,
        outline=Plan(operation=operation, table=table, summary={"branch": name, "to_branch": to_branch}),
        lock=lock(branch_record_path(to_branch), creating.to_bytes(), recorded, "marks the branch as made by a rename"),
        protect=tuple(protect),
        files=tuple(copies),
        schemas=tuple(_put_schemas(creating, f"schema of {name}")),
        finish=(_ready(creating, record.in_state(READY, peer=name)),),
    )


def is_history(paths: BranchPaths, file: str) -> bool:
    """Whether a branch's file is neither a schema, a hint, the progress of a consumer, nor half written."""
    name = file.rpartition("/")[2]
    hint = name in (LATEST, EARLIEST) or name.startswith(".")
    return not hint and not file.startswith((f"{paths.schema_dir}/", f"{paths.consumer_dir}/"))


def plan_completion(record: BranchRecord, recorded: bytes | None) -> list[Action]:
    """Plan the end of a branch's making: all but its schemas is there. ``recorded``: its record, as stored."""
    ready = record.in_state(READY) if record.outlives_changes else None
    end = _record_action(branch_record_path(record.branch), ready, "the branch is ready", recorded)
    return [*_put_schemas(record, "the branch is to be complete"), end]


def _schema_texts(schemas: Mapping[int, bytes]) -> dict[str, str]:
    """Return schema files as a record keeps them."""
    return {str(i): data.decode() for i, data in sorted(schemas.items())}


def saved_schemas(record: BranchRecord) -> dict[int, bytes]:
    """Return the schema files that a record keeps."""
    return {int(i): text.encode() for i, text in record.schemas.items()}


def _put_schemas(record: BranchRecord, reason: str) -> list[PutNew]:
    """Put the schemas that a record keeps, the latest first: it determines how other engines treat the branch."""
    paths = BranchPaths(record.branch)
    return [
        PutNew(path=paths.schema(i), data=data, same_ok=True, reason=reason)
        for i, data in sorted(saved_schemas(record).items(), reverse=True)
    ]


def new_branch_record(
    request: CreateBranch, source: BranchSource, now_iso: str, retention: str | None, parent: Parent | None
) -> BranchRecord:
    """Return the new branch's record in the state ``creating``."""
    head = source.snapshot
    new = BranchRecord(
        branch=request.branch,
        created_at=now_iso,
        from_branch=source.branch or MAIN,
        from_tag=source.tag.name if source.tag else None,
        snapshot_id=head.id if head else None,
        identity=head.identity if head else None,
        owner=request.owner,
        reason=request.reason,
        operation_id=request.operation_id,
        schema_id=source.latest_schema_id,
        state=CREATING,
        retention=retention,
        protected=request.protected,
        protected_by=request.owner if request.protected else None,
    )
    new = replace(new, schemas=_schema_texts(_branch_schemas(source, new.created_ms or 0)))
    if parent is None:
        return replace(new, family=new.family_name)
    known = parent.record
    earlier = known.came_from if known is not None else ()
    family = known.family_name if known is not None else snapshot_key(parent.snapshot)
    return replace(new, family=family, came_from=(*earlier, snapshot_key(parent.snapshot)))
