"""A new version of a table set: claim its number, tag every table, make it visible; let old versions expire.

A claim that lists the snapshots is finished by whoever comes next, so that a process that was killed leaves nothing to
mend. One that doesn't (``open``) belongs to an operation that is about to publish the tables: until it has ended nobody
else makes a version, which would have some of the tables published and others not.

The numbers are in the order in which their snapshots were chosen: a number is claimed only when all before it have
ended, and the snapshots are looked up after that was seen.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from airflow_paimon.core.branches.tag_files import deletion
from airflow_paimon.core.branches.tags import check_deletable, is_held
from airflow_paimon.core.catalogs import Catalog, open_catalog
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
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.plan import Delete, PutNew
from airflow_paimon.core.table.history import retained_snapshot
from airflow_paimon.core.table.options import TableOptions, parse_duration, requested_duration
from airflow_paimon.core.table.record_kinds import CLAIMS
from airflow_paimon.core.table.table import Table, open_table, resolve_version, split_version
from airflow_paimon.core.table.table_set import (
    SetMember,
    TableSet,
    claim_file,
    pins_file,
    version_file,
)
from airflow_paimon.core.table.table_sets import SetFolder, set_folder

log = logging.getLogger(__name__)

OPEN_FOR = "1 d"
"""How long the publish of several tables that has begun keeps others from making a version, unless it ends before."""
_TRIES = 20

Pins = Mapping[str, SetMember]


def check_retention(keep: int, retention: str) -> int:
    """Return how long a version stays after the next one took its place, in milliseconds.

    Raises:
        InvalidInputError: less than one version would stay (``keep``), or it is no duration.
    """
    if keep < 1:
        raise InvalidInputError(f"keep must be at least 1, got {keep}")
    return int(requested_duration(retention, "retention").total_seconds() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Record):
    """What ``claim-<N>.json`` says, or ``pins-<N>.json`` if it is there. ``tables``: None = the claim is open."""

    number: int
    operation_id: str
    since_ms: int
    tables: Pins | None = None
    KIND = CLAIMS


@dataclass(frozen=True, slots=True)
class Sets:
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

    def member(self, name: str) -> Table:
        """Open a table that a new version is to have.

        Raises:
            NotFoundError: there is none. InvalidInputError: it names a branch. UnsupportedFeatureError: what its
                readers see lies on several branches.
        """
        view = self.table(name)
        if view.label != view.name:
            raise InvalidInputError(f"{view.label}: table sets have snapshots of main; name no branch")
        options = TableOptions(view.require().schema().options)
        if options.chain_table or options.fallback_branch or options.primary_branch:
            raise UnsupportedFeatureError(
                f"{view.name}: its readers see several branches (a chain table, or a fallback branch), and a table set "
                "pins main alone; leave it out"
            )
        require_committable(view)
        return view


def open_sets(warehouse: str, name: str, storage_options: Mapping[str, Any] | None) -> Sets:
    """Open a set to write it.

    Raises:
        InvalidInputError: not a name. UnsupportedError: nothing can be put there safely.
    """
    found = Sets(warehouse, storage_options, name, open_catalog(warehouse, storage_options))
    require_committable(found.files)
    return found


# -- a version of snapshots that are there already ---------------------------------------------------------------------


def make_version(
    sets: Sets,
    choose: Callable[[TableSet | None], Pins],
    operation_id: str | None,
    now_ms: int,
    *,
    abandon: bool = False,
) -> TableSet:
    """Make the next version. ``choose`` returns its snapshots; it gets the newest version, and may be called again.

    Raises:
        ConflictError: the tables of the set are being published (``abandon`` goes on all the same), or snapshots
            expired again and again.
    """
    mine, lost = operation_id or str(uuid.uuid4()), None
    for _ in range(_TRIES):
        claim = _claimed(sets, choose, mine, (), now_ms, abandon=abandon)
        if claim is None:
            continue
        try:
            return finish(sets, claim, now_ms)
        except ConflictError as error:
            lost = error
    raise lost or _too_many(sets)


def version_of(sets: Sets, operation_id: str, now_ms: int) -> TableSet | None:
    """Find the newest version that an operation has made; finishes one that was only claimed."""
    ended, _ = _settled(sets, now_ms)
    found = (sets.folder.ended(number) for number in reversed(ended))
    return next((v for v in found if v is not None and v.operation_id == operation_id and v.abandoned is None), None)


def _settled(sets: Sets, now_ms: int) -> tuple[list[int], Claim | None]:
    """Finish the newest claim if it lists its snapshots. Return the numbers that have ended, and the newest claim if
    it is open; None: all numbers have ended.
    """
    while True:
        claims, ended = sets.folder.numbers()
        newest = max([0, *claims, *ended])
        if newest == 0 or newest in ended:
            return ended, None
        claim = _read(sets, claim_file(newest))
        if claim is not None and claim.tables is None:
            claim = _read(sets, pins_file(newest)) or claim
        if claim is not None and claim.tables is None:
            return ended, claim
        if claim is not None:  # else it has expired since
            try:
                finish(sets, claim, now_ms)
            except ConflictError as error:
                log.warning("%s", error.message)


def _claimed(
    sets: Sets,
    choose: Callable[[TableSet | None], Pins | None],
    operation_id: str,
    mine: Collection[str],
    now_ms: int,
    *,
    abandon: bool = False,
) -> Claim | None:
    """Claim the next number, once all before it have ended; None: another one was faster. ``choose``: the snapshots, by
    the newest version. Ends the open claim of one of ``mine``, and that of any operation that takes too long, or with
    ``abandon``.

    Raises:
        ConflictError: another operation's claim is open.
    """
    ended, claim = _settled(sets, now_ms)
    while claim is not None:
        old = now_ms - claim.since_ms > parse_duration(OPEN_FOR, "OPEN_FOR").total_seconds() * 1000
        if not (abandon or old or claim.operation_id in mine):
            raise ConflictError(
                f"Table set {sets.name!r}: operation {claim.operation_id} is publishing its tables, so a new version "
                "could mix old and new rows. Run it again when that has ended; if it was killed and won't be "
                f"retried, use abandon (--abandon), or wait {OPEN_FOR}",
                details={"operation_id": claim.operation_id, "number": claim.number},
            )
        give_up(sets, claim, "its publish did not end", now_ms)
        ended, claim = _settled(sets, now_ms)
    tables = choose(sets.folder.latest(ended))
    new = Claim(number=max(ended, default=0) + 1, operation_id=operation_id, since_ms=now_ms, tables=tables)
    try:
        put_new(sets.files, claim_file(new.number), new.to_bytes())
    except AlreadyExistsError:
        return None
    return new


def _too_many(sets: Sets) -> ConflictError:
    return ConflictError(
        f"Table set {sets.name!r}: other operations kept creating new versions; run it again when they have ended"
    )


def finish(sets: Sets, claim: Claim, now_ms: int) -> TableSet:
    """Tag every table, then make the version visible; a number whose snapshots are gone is given up.

    Raises:
        ConflictError: it was given up.
    """
    assert claim.tables is not None
    made = TableSet(name=sets.name, number=claim.number, tables=claim.tables, created_ms=now_ms,
                    operation_id=claim.operation_id)  # fmt: skip
    why = None
    try:
        for name, pin in claim.tables.items():
            _tag(sets.table(name), made.tag, pin)
        put_new(sets.files, version_file(made.number), made.to_bytes())
        return made
    except AlreadyExistsError:
        pass  # another process has ended it
    except (ConflictError, NotFoundError) as error:
        why = error.message
        give_up(sets, claim, why, now_ms)
    found = sets.folder.ended(made.number)
    if found is not None and found.abandoned is None:
        return found
    if why is None:
        _delete_tags(sets, made)
        why = (found and found.abandoned) or "it has expired"
    raise ConflictError(f"Table set {sets.name!r}: version {made.number} was given up: {why}")


def give_up(sets: Sets, claim: Claim, reason: str, now_ms: int) -> None:
    """End a number without a version, unless it has ended; tags that it has set go with it."""
    ended = TableSet(name=sets.name, number=claim.number, tables=claim.tables or {}, created_ms=now_ms,
                     operation_id=claim.operation_id, abandoned=reason)  # fmt: skip
    try:
        put_new(sets.files, version_file(claim.number), ended.to_bytes())
    except AlreadyExistsError:
        return
    _delete_tags(sets, ended)


def _read(sets: Sets, file: str) -> Claim | None:
    return Claim.find(sets.folder.store, file, f"Table set {sets.name!r}")


def _tag(view: Table, name: str, pin: SetMember) -> None:
    """Tag the snapshot; the tag may be there. It is not taken back here: by now it may be that of a visible version.

    Raises:
        ConflictError: the snapshot has expired, or the tag is on another one.
    """
    existing = view.find_tag(name)
    if existing is not None and existing.snapshot.identity != pin.identity:
        raise ConflictError(f"{view.name}: tag {name!r} is on snapshot {existing.snapshot.id} already")
    tag = existing or Tag(name=name, snapshot=_pinned(view, pin))
    if existing is None:
        action = PutNew(path=view.paths.tag(name), data=tag.to_bytes(), reason="of a table set", same_ok=True)
        try:
            execute(view, [action])
        except AlreadyExistsError:
            raise ConflictError(f"{view.name}: tag {name!r} was set by another process in the meantime") from None
    if not is_held(view, tag):
        raise ConflictError(f"{view.name}: snapshot {tag.snapshot.id} expired while it was tagged")


def _pinned(view: Table, pin: SetMember) -> Snapshot:
    found = view.find_snapshot(pin.snapshot_id)
    if found is None or found.identity != pin.identity:
        found = next((t.snapshot for t in view.tags() if t.snapshot.identity == pin.identity), None)
    if found is None:
        raise ConflictError(f"{view.name}: snapshot {pin.snapshot_id} expired before it was tagged")
    return found


def pin_of(view: Table, version: int | str | None = None) -> SetMember:
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


# -- a version of tables that are yet to be published ------------------------------------------------------------------


def begin(sets: Sets, operation_id: str, earlier: Collection[str], now_ms: int) -> Claim:
    """Claim the next number for an operation that publishes tables. A retry finds its claim.

    ``earlier``: operations that stand for this one, such as those before it was cleared; their open claims end.

    Raises:
        ConflictError: another operation publishes tables of this set. NotFoundError: a snapshot of the newest version,
            which the next one would have as well, is gone.
    """
    for _ in range(_TRIES):
        _, found = _settled(sets, now_ms)
        if found is not None and found.operation_id == operation_id:
            return found
        claim = _claimed(sets, partial(_require_whole, sets), operation_id, [*earlier, operation_id], now_ms)
        if claim is not None:
            return claim
    raise _too_many(sets)


def _require_whole(sets: Sets, latest: TableSet | None) -> None:
    for name, pin in ({} if latest is None else latest.tables).items():
        try:
            _pinned(sets.table(name), pin)
        except ConflictError:
            assert latest is not None
            raise NotFoundError(
                f"Table set {sets.name!r}: snapshot {pin.snapshot_id} of {name}, pinned by version {latest.number}, "
                f"was deleted with the tag {latest.tag!r} or the table, so no version can follow it. Nothing was "
                "published. Create a new version with create_table_set"
            ) from None


def complete(sets: Sets, claim: Claim, published: Pins, now_ms: int) -> TableSet:
    """Make the version of an open claim: that of the newest version, with the tables that were published.

    Where the claim was given up meanwhile, as it took too long, the version gets a later number.
    """

    def choose(latest: TableSet | None) -> Pins:
        return {**(latest.tables if latest else {}), **{n: _newer(sets, latest, n, p) for n, p in published.items()}}

    if sets.folder.ended(claim.number) is None:
        pinned = replace(claim, tables=choose(sets.folder.latest()))
        try:  # from now on whoever comes next can finish it
            put_new(sets.files, pins_file(claim.number), pinned.to_bytes())
        except AlreadyExistsError:
            pinned = _read(sets, pins_file(claim.number)) or pinned
        try:
            return finish(sets, pinned, now_ms)
        except ConflictError as error:
            log.warning("%s", error.message)
    return make_version(sets, choose, claim.operation_id, now_ms)


def give_up_own(sets: Sets, operations: Collection[str], reason: str, now_ms: int) -> None:
    """End the open claim of one of these operations, which will publish nothing more."""
    _, claim = _settled(sets, now_ms)
    if claim is not None and claim.operation_id in operations:
        give_up(sets, claim, reason, now_ms)


def _newer(sets: Sets, latest: TableSet | None, name: str, pin: SetMember) -> SetMember:
    """Return the later one of the pins of a publish and of the newest version: a table of a set never goes back."""
    before = latest.tables.get(name) if latest else None
    if before is None or before.snapshot_id <= pin.snapshot_id:
        return pin
    found = sets.table(name).find_snapshot(before.snapshot_id)
    return before if found is not None and found.identity == before.identity else pin


# -- expiry ------------------------------------------------------------------------------------------------------------


def expired_versions(ended: Sequence[TableSet], *, keep: int, retained_ms: int, now_ms: int) -> list[TableSet]:
    """Choose from the numbers that have ended, ascending.

    The newest ``keep`` versions stay. An older one stays for ``retained_ms`` from when the next one took its place, not
    from when it was made: who began to read the newest version has as long to finish. The greatest number stays, so
    that none is given twice; a number that was given up goes by its age.
    """
    versions = [one for one in ended if one.abandoned is None]
    replaced = {one.number: following.created_ms for one, following in pairwise(versions)}
    kept = {one.number for one in (*versions[max(len(versions) - keep, 0) :], *ended[-1:])}
    since = {one.number: replaced.get(one.number, one.created_ms) for one in ended}
    return [one for one in ended if one.number not in kept and since[one.number] < now_ms - retained_ms]


def expire(sets: Sets, keep: int, retained_ms: int, now_ms: int) -> list[int]:
    """Delete the versions that are over, with their tags; returns their numbers. What fails is left for next time."""
    try:
        over = expired_versions(sets.folder.versions(), keep=keep, retained_ms=retained_ms, now_ms=now_ms)
        return [one.number for one in over if _expire(sets, one)]
    except (StorageError, OutcomeUnknownError, FormatError) as error:
        log.warning("Table set %s: old versions could not be deleted (%s)", sets.name, error)
        return []


def _expire(sets: Sets, version: TableSet) -> bool:
    if not _delete_tags(sets, version):
        return False
    files = (pins_file(version.number), claim_file(version.number), version_file(version.number))
    execute(sets.files, [Delete(path=path, reason="the version has expired") for path in files])
    return True


def _delete_tags(sets: Sets, version: TableSet) -> bool:
    """Delete the tags of a version; returns whether all are gone. One that something needs stays."""
    gone, tables = True, version.tables
    if version.abandoned is not None and not tables:  # its operation may have gone on to set tags
        pinned = _read(sets, pins_file(version.number))
        tables = (pinned and pinned.tables) or {}
    for name, pin in tables.items():
        view = sets.table(name)
        tag = view.find_tag(version.tag)
        if tag is None or tag.snapshot.identity != pin.identity:
            continue
        try:
            check_deletable(view, tag)
            execute(view, [deletion(view, tag, "its version of the table set has expired")])
        except (ConflictError, UnsafeOperationError) as error:
            log.warning("%s", error.message)
            gone = False
    return gone


def members(texts: Sequence[str]) -> dict[str, str]:
    """Return the tables ``db.table`` of a request, each with its text, which may have a version.

    Raises:
        InvalidInputError: a table is named twice, or none.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _ = split_version(text)
        if name in found:
            raise InvalidInputError(f"{text}: {name} is named twice; a version of a table set has one snapshot of it")
        found[name] = text
    return found
