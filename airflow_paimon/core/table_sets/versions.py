"""New versions of table sets: a tag of one name on each table, then the record that lists them; old versions expire.

The put of the record decides: it takes the number after the newest version's, if nobody else has. An operation that is
too late chooses its snapshots again. Tags that belong to no version are deleted by the next expiry, as those of expired
versions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from airflow_paimon.core.branches.tag_files import deletion
from airflow_paimon.core.branches.tags import check_deletable, check_held, plan_tag, set_tag
from airflow_paimon.core.catalogs import Catalog, open_catalog
from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.lost_races import wait_after_lost_race
from airflow_paimon.core.commit.put import execute, put_new, require_committable
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.plan import Delete, Plan, PutNew
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import SET_KEEP, SET_RETENTION, CreateTableSet
from airflow_paimon.core.table.history import retained_snapshot
from airflow_paimon.core.table.options import TableOptions, requested_duration
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_table, resolve_version, split_version
from airflow_paimon.core.table.table_sets import (
    VERSION_PREFIX,
    SetFolder,
    SetMember,
    TableSet,
    set_folder,
    set_names,
    version_file,
)

log = logging.getLogger(__name__)

_TRIES = 20

Pins = Mapping[str, SetMember]
"""By the table's name."""


@dataclass(frozen=True, slots=True)
class WritableSet:
    """One set of a warehouse, to be written."""

    warehouse: str
    storage_options: Mapping[str, Any] | None = field(repr=False)
    name: str
    catalog: Catalog = field(repr=False)

    @property
    def folder(self) -> SetFolder:
        return set_folder(self.catalog, self.name)

    @property
    def files(self) -> Table:
        """The set's folder as what the committer writes to."""
        return Table(self.folder.store, f"table set {self.name}")

    def table(self, name: str) -> Table:
        return open_table(self.warehouse, name, storage_options=self.storage_options)

    def check_member(self, name: str) -> None:
        """Check that a new version can have a table.

        Raises:
            NotFoundError: there is none. InvalidInputError: it names a branch. UnsupportedFeatureError: what its
                readers see lies on several branches.
        """
        view = self.table(name)
        if view.branch_name != MAIN:
            raise InvalidInputError(f"{view.label}: table sets have snapshots of main; name no branch")
        options = TableOptions(view.require().schema().options)
        if options.chain_table or options.fallback_branch or options.primary_branch:
            raise UnsupportedFeatureError(
                f"{view.name}: its readers see several branches (a chain table, or a fallback branch), and a table set "
                "pins main alone; leave it out"
            )
        require_committable(view)


def open_set(warehouse: str, name: str, storage_options: Mapping[str, Any] | None) -> WritableSet:
    """Open a set to write it.

    Raises:
        InvalidInputError: not a name. UnsupportedError: nothing can be put there safely.
    """
    found = WritableSet(warehouse, storage_options, name, open_catalog(warehouse, storage_options))
    require_committable(found.files)
    return found


# -- create_table_set --------------------------------------------------------------------------------------------------


def create_table_set(context: Context, request: CreateTableSet) -> OperationResult:
    """Make the next version of a set, and delete those that are over.

    Raises:
        NotFoundError: a table, a version of it, or any snapshot of it is missing. UnsupportedError: a table whose
            readers see several branches, or a catalog that keeps the warehouse. ConflictError: others make versions all
            the time.
    """
    if request.keep < 1:
        raise InvalidInputError(f"keep must be at least 1, got {request.keep}")
    retained_ms = _milliseconds(request.retention)
    table_set = open_set(request.warehouse, request.table_set, request.storage_options)
    named = _members(request.member)
    if context.table.name not in named:
        named = {context.table.name: None, **named}
    for name in named:
        table_set.check_member(name)

    def choose(_: TableSet | None) -> Pins:
        return {name: _pin(table_set.table(name), version) for name, version in named.items()}

    if request.dry_run:
        latest = table_set.folder.latest()
        made = _next(table_set, latest, choose(latest), None, context.now_ms)
        tags = [PutNew(path=f"{name}: tag-{made.tag}", data=b"", reason=f"names snapshot {pin.snapshot_id}")
                for name, pin in made.tables.items()]  # fmt: skip
        version = PutNew(path=version_file(made.number), data=b"", reason="makes the version visible")
        plan = Plan(operation=request.operation, table=context.table.name, actions=(*tags, version),
                    summary={"table_set": table_set.name})  # fmt: skip
        return context.result(plan, branch="main", changed=True, details={**made.to_json(), "expired": []})
    with attempt_of(context, commits=False) as tried:
        found = _version_of(table_set, request.operation_id) if tried.retried else None
        made = found or _make_version(table_set, choose, request.operation_id, context.now_ms)
    more: dict[str, Any] = {"expired": [], "replayed": True}
    if found is None:
        more = {"expired": _expire(table_set, request.keep, retained_ms, context.now_ms)}
    pin = made.tables.get(context.table.name)
    at = None if pin is None else pin.snapshot_id
    return context.result(None, branch="main", changed=True, before=at, after=at, details={**made.to_json(), **more})


def _members(texts: Sequence[str]) -> dict[str, int | str | None]:
    """Return the tables ``db.table`` of a request, each with its tag or snapshot id; None = its newest snapshot."""
    found: dict[str, int | str | None] = {}
    for text in texts:
        name, version = split_version(text)
        if name in found:
            raise InvalidInputError(f"{text}: {name} is named twice; a version of a table set has one snapshot of it")
        if isinstance(version, str) and version.startswith(VERSION_PREFIX):
            raise InvalidInputError(f"{text}: give a tag or a snapshot id of {name}, not a version of a table set")
        found[name] = version
    return found


def _pin(view: Table, version: int | str | None) -> SetMember:
    """Return the pin of a table's newest snapshot, or of a snapshot id (a tag may be all that is left of it) or a tag
    of main.

    Raises:
        NotFoundError: there is none.
    """
    found, snapshot = (
        (view, retained_snapshot(view, version)) if isinstance(version, int) else resolve_version(view, version)
    )
    if snapshot is None:
        raise NotFoundError(f"{view.name} has no snapshot yet, so that it can't be in a table set; write it first")
    if found.branch_name != view.branch_name:
        raise InvalidInputError(f"{view.name}@{version} is of branch {found.branch_name!r}; table sets pin main")
    return SetMember(snapshot.id, snapshot.identity)


# -- versions of a pipeline --------------------------------------------------------------------------------------------


def check_next_version(table_set: WritableSet, tables: Collection[str]) -> None:
    """Check, before tables are published or undone, that a version can have them, and the others of the newest one.

    Raises:
        UnsupportedError: a table can't be in a set. NotFoundError: a snapshot that the version would have is gone.
    """
    for table in tables:
        table_set.check_member(table)
    latest = table_set.folder.latest()
    for name, pin in ({} if latest is None else latest.tables).items():
        if name in tables:
            continue
        try:
            _pinned(table_set.table(name), pin)
        except ConflictError:
            assert latest is not None
            raise NotFoundError(
                f"Table set {table_set.name!r}: snapshot {pin.snapshot_id} of {name}, pinned by version "
                f"{latest.number}, was deleted with the tag {latest.tag!r} or the table, so no version can follow it. "
                "Nothing was published. Create a new version with create_table_set"
            ) from None


def make_published_version(
    table_set: WritableSet, published: Mapping[str, int | None], operation_id: str
) -> dict[str, Any]:
    """Make the version that has the tables of an operation, beside the others of the newest version; return what it
    has. A retry finds it. ``published``: the snapshot of each table, None = its newest.

    Raises:
        ConflictError: a snapshot has expired, or others make versions all the time.
    """
    if (found := _version_of(table_set, operation_id)) is not None:
        return found.to_json()
    now_ms = int(time.time() * 1000)
    pins = {name: _pin(table_set.table(name), snapshot_id) for name, snapshot_id in published.items()}

    def choose(latest: TableSet | None) -> Pins:
        return {**(latest.tables if latest else {}), **{n: _newer(table_set, latest, n, p) for n, p in pins.items()}}

    made = _make_version(table_set, choose, operation_id, now_ms)
    return {**made.to_json(), "expired": _expire(table_set, SET_KEEP, _milliseconds(SET_RETENTION), now_ms)}


def _newer(table_set: WritableSet, latest: TableSet | None, name: str, pin: SetMember) -> SetMember:
    """Return the later one of the pins of a publish and of the newest version: a table of a set never goes back."""
    before = latest.tables.get(name) if latest else None
    if before is None or before.snapshot_id <= pin.snapshot_id:
        return pin
    try:
        _pinned(table_set.table(name), before)
    except ConflictError:
        return pin
    return before


def sets_made_by(catalog: Catalog, operations: Collection[str]) -> list[str]:
    """Return the sets of which one of these operations has made a version; none where the catalog has no sets."""
    try:
        names = set_names(catalog)
    except UnsupportedCatalogError:
        return []
    found = []
    for name in names:
        with suppress(FormatError):  # a damaged record is no reason to undo nothing
            if any(one.operation_id in operations for one in set_folder(catalog, name).versions()):
                found.append(name)
    return found


# -- the next version --------------------------------------------------------------------------------------------------


def _make_version(
    table_set: WritableSet, choose: Callable[[TableSet | None], Pins], operation_id: str | None, now_ms: int
) -> TableSet:
    """Make the next version. ``choose`` returns its snapshots; it gets the newest version, and may be called again.

    Raises:
        ConflictError: snapshots expired, or others were faster, again and again.
    """
    lost = None
    for attempt in range(1, _TRIES + 1):
        latest = table_set.folder.latest()
        made = _next(table_set, latest, choose(latest), operation_id, now_ms)
        try:
            for name, pin in made.tables.items():
                _tag(table_set.table(name), made.tag, pin)
            put_new(table_set.files, version_file(made.number), made.to_bytes())
            if _is_newest_or_followed(table_set, made):
                return made
            execute(table_set.files, [Delete(path=version_file(made.number), reason="the number was another's")])
        except ConflictError as error:
            lost = error
        except AlreadyExistsError:
            if (found := _version_of(table_set, operation_id)) is not None:  # another try of this operation was faster
                return found
            wait_after_lost_race(attempt)
    raise lost or ConflictError(
        f"Table set {table_set.name!r}: other operations kept creating new versions; run it again when they have ended"
    )


def _next(
    table_set: WritableSet, latest: TableSet | None, pins: Pins, operation_id: str | None, now_ms: int
) -> TableSet:
    number = 1 if latest is None else latest.number + 1
    tag = table_set.folder.tag(number, pins)
    return TableSet(name=table_set.name, number=number, tables=pins, tag=tag, created_ms=now_ms,
                    operation_id=operation_id, previous=None if latest is None else latest.digest)  # fmt: skip


def _is_newest_or_followed(table_set: WritableSet, made: TableSet) -> bool:
    """Whether the version that was put just now took a new number, not that of one which others have made and expired
    while this operation slept.
    """
    following = table_set.folder.following(made.number)
    return following is None or following.previous == made.digest


def _version_of(table_set: WritableSet, operation_id: str | None) -> TableSet | None:
    """Find the newest version that an operation has made."""
    versions = [] if operation_id is None else reversed(table_set.folder.versions())
    return next((one for one in versions if one.operation_id == operation_id), None)


def _tag(view: Table, name: str, pin: SetMember) -> None:
    """Tag the snapshot. The tag may be there: of an earlier try, or one that makes the same version.

    Raises:
        ConflictError: the snapshot has expired, or the tag is on another one.
    """
    existing = view.find_tag(name)
    if existing is None:
        set_tag(view, plan_tag(view, Tag(name=name, snapshot=_pinned(view, pin))), datetime.now())
    elif existing.snapshot.identity != pin.identity:
        raise ConflictError(f"{view.name}: tag {name!r} is on snapshot {existing.snapshot.id} already")
    else:
        check_held(view, existing, None)


def _pinned(view: Table, pin: SetMember) -> Snapshot:
    found = view.find_snapshot(pin.snapshot_id)
    if found is None or found.identity != pin.identity:
        found = next((t.snapshot for t in view.tags() if t.snapshot.identity == pin.identity), None)
    if found is None:
        raise ConflictError(f"{view.name}: snapshot {pin.snapshot_id} expired before it was tagged")
    return found


# -- expiry ------------------------------------------------------------------------------------------------------------


def _milliseconds(retention: str) -> int:
    return int(requested_duration(retention, "retention").total_seconds() * 1000)


def expired_versions(versions: Sequence[TableSet], *, keep: int, retained_ms: int, now_ms: int) -> list[TableSet]:
    """Choose from all versions, ascending.

    The newest ``keep`` stay. An older one stays for ``retained_ms`` from when the next one took its place, not from
    when it was made: who began to read the newest version has as long to finish.
    """
    pairs = list(pairwise(versions))[: max(len(versions) - keep, 0)]
    return [one for one, following in pairs if following.created_ms < now_ms - retained_ms]


def _expire(table_set: WritableSet, keep: int, retained_ms: int, now_ms: int) -> list[int]:
    """Delete the versions that are over, then the tags that belong to none; return the numbers of these versions. What
    fails is left for next time.
    """
    try:
        versions = table_set.folder.versions()
        over = expired_versions(versions, keep=keep, retained_ms=retained_ms, now_ms=now_ms)
        gone = [one for one in over if _is_deletable(table_set, one)]
        files = [version_file(one.number) for one in gone]
        execute(table_set.files, [Delete(path=path, reason="the version has expired") for path in files])
        kept = [one for one in versions if one not in gone]
        for name in dict.fromkeys(name for one in versions for name in one.tables):
            view = table_set.table(name)
            known = [one.tag for one in gone if name in one.tables]  # the maker may call the warehouse otherwise
            for tag in dict.fromkeys([*known, *table_set.folder.left_over_tags(view, kept)]):
                _delete_tag(view, tag)
        return [one.number for one in gone]
    except (StorageError, OutcomeUnknownError, FormatError) as error:
        log.warning("Table set %s: old versions could not be deleted (%s)", table_set.name, error)
        return []


def _is_deletable(table_set: WritableSet, version: TableSet) -> bool:
    """Whether nothing needs a tag of the version, such as a legal hold: it stays together with its tags."""
    try:
        for name in version.tables:
            view = table_set.table(name)
            if (tag := view.find_tag(version.tag)) is not None:
                check_deletable(view, tag)
    except UnsafeOperationError as error:
        log.warning("%s", error.message)
        return False
    return True


def _delete_tag(view: Table, name: str) -> None:
    try:
        if (tag := view.find_tag(name)) is not None:
            check_deletable(view, tag)
            execute(view, [deletion(view, tag, "no version of its table set has it")])
    except (ConflictError, UnsafeOperationError) as error:
        log.warning("%s", error.message)
