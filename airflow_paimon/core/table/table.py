"""An immutable view of one branch of a table. Loads nothing when created, and keeps nothing unless it is asked to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Self

from airflow_paimon.core.catalogs import Catalog, open_catalog, storage_only
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
    first_few,
)
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import Snapshot, Tag, parse_snapshot, parse_tag
from airflow_paimon.core.store import FileInfo, Store, open_store
from airflow_paimon.core.store.base import read_existing, read_if_exists, run_parallel
from airflow_paimon.core.store.none import NoStore
from airflow_paimon.core.table.branch_record import began_empty
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
    Identifier,
    hint_number,
    numbered,
    parse_identifier,
)
from airflow_paimon.core.table.table_sets import parse_set_version, snapshot_in_set

_PROBE_LIMIT = 8
_STEPS = tuple(2**power for power in range(17))
"""How far above a hinted snapshot others are looked for."""
_CLIMBS = 8
_LISTED = 10
_MILLIS = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Table:
    """``store`` is rooted at the table folder; ``name`` (``db.t``) is for messages. ``catalog``: None = by path.

    ``known_tags``: see ``with_cached_tags``.
    """

    store: Store
    name: str
    branch_name: str = MAIN
    catalog: Catalog | None = field(default=None, compare=False, repr=False)
    known_tags: dict[tuple[str, FileInfo], Tag] | None = field(default=None, compare=False, repr=False)

    @property
    def paths(self) -> BranchPaths:
        return BranchPaths(self.branch_name)

    @property
    def label(self) -> str:
        """``db.t`` or ``db.t$branch_b``: how messages name this view."""
        return self.name if self.branch_name == MAIN else f"{self.name}$branch_{self.branch_name}"

    def branch(self, name: str) -> Self:
        """Return the same table seen on another branch. Does not check that the branch exists."""
        return replace(self, branch_name=name or MAIN)

    def with_cached_tags(self) -> Self:
        """Return the same view for one call in which ``cached_tags`` reads each tag once, of any branch."""
        return self if self.known_tags is not None else replace(self, known_tags={})

    # -- schemas ---------------------------------------------------------------------------------------------------

    def schema_ids(self) -> list[int]:
        return numbered(self.store.names(self.paths.schema_dir), SCHEMA_PREFIX)

    def schema(self, schema_id: int | None = None) -> TableSchema:
        """Read one schema version, the latest when ``schema_id`` is None.

        Raises:
            NotFoundError: the table or the branch has no schema, or not this one.
        """
        ids = [schema_id] if schema_id is not None else self.schema_ids()
        if not ids:
            raise self.missing()
        newest = ids[-1]
        try:
            data = self.store.read(self.paths.schema(newest))
        except NotFoundError:
            if schema_id is None and self.schema_ids() != ids:
                return self.schema()  # the branch is being deleted, or was made anew, between the listing and the read
            raise NotFoundError(f"{self.label} has no schema {newest}", code="no-schema") from None
        return parse_schema(data, f"{self.label}: schema-{newest}")

    def schemas(self) -> list[TableSchema]:
        """Read all schema versions, ascending."""
        ids = self.schema_ids()
        if not ids:
            raise self.missing()
        data = self.store.read_many([self.paths.schema(i) for i in ids])
        return [parse_schema(d, f"{self.label}: schema-{i}") for i, d in zip(ids, data, strict=True)]

    def exists(self) -> bool:
        """Whether this branch of the table has a schema: without one no engine sees it."""
        return bool(self.schema_ids())

    def require(self) -> Self:
        """Return this view, or raise ``NotFoundError`` that says whether the table or the branch is missing."""
        if not self.exists():
            raise self.missing()
        return self

    def missing(self) -> NotFoundError:
        """Return the error for a table or a branch that does not exist; it names what does."""
        if self.branch_name == MAIN:
            return NotFoundError(f"There is no table {self.name}{self._why_missing()}", code="no-table")
        if not self.branch(MAIN).exists():
            return self.branch(MAIN).missing()
        names = ", ".join((MAIN, *self.branch_names()))
        return NotFoundError(
            f"Table {self.name} has no branch {self.branch_name!r} (its branches: {names})", code="no-branch"
        )

    def is_gone(self) -> bool:
        """Whether the catalog knows the table and no schema is left where it says that it lies."""
        known = self.catalog is not None and self.catalog.keeps_names and not isinstance(self.store, NoStore)
        return known and not self.branch(MAIN).exists()

    def _why_missing(self) -> str:
        """Say which part of the table's address is wrong, and how to find the right one."""
        if self.catalog is None:
            return f" at {self.store.uri}; check the path"
        if self.is_gone():
            return (
                f" at {self.store.uri}, where {self.catalog.label} registers it: there is no schema file. If the table "
                "was moved, correct its location or the warehouse; if it was deleted, drop it in the catalog"
            )
        label, database = self.catalog.label, self.name.partition(".")[0]
        try:
            known = self.catalog.databases()
        except StorageError:  # who may read a table may not be allowed to list the warehouse
            known = [database]
        if not known:
            return f": {label} doesn't exist or has no database; check its address"
        if database not in known:
            listed = ", ".join(known if len(known) <= _LISTED else [*known[:_LISTED], "..."])
            return f": {label} has no database {database!r} (it has {listed})"
        return f" at {self.store.uri}; python -m airflow_paimon tables lists the tables of the {label}"

    # -- snapshots -------------------------------------------------------------------------------------------------

    def snapshot_ids(self) -> list[int]:
        """List the ids of the snapshots that exist, ascending."""
        return [i for i in numbered(self.store.names(self.paths.snapshot_dir), SNAPSHOT_PREFIX) if i > 0]

    def latest_snapshot_id(self) -> int | None:
        """Return the greatest snapshot id from a listing: a hint can be wrong, and a gap hides the ids after it.

        Only where a listing is long, from the hints and what they are proven by.
        """
        names = self.store.names_if_few(self.paths.snapshot_dir)
        newest = self._newest_of_many() if names is None else None
        if newest is not None:
            return newest
        if names is None:
            names = self.store.names(self.paths.snapshot_dir)
        return max(numbered(names, SNAPSHOT_PREFIX), default=0) or None

    def _newest_of_many(self) -> int | None:
        """Find the newest of very many snapshots from the hints; None: they don't tell, so list.

        Snapshots expire one after the other, the oldest first: where one exists and the next doesn't, it is the newest.
        It is looked at after the look at the next one. A hint that an expiry has passed is of a snapshot that another
        engine put long after its turn. A gap, which only a deletion by hand leaves, is seen unless it is wider than
        what lies above it.
        """
        if self.store.keeper is not None:
            return None
        paths = (self.paths.latest_hint, self.paths.earliest_hint)
        latest, earliest = run_parallel(self.store, [partial(read_if_exists, self.store, path) for path in paths])
        at, first = hint_number(latest or b""), hint_number(earliest or b"") or 0
        if not at or at < first:
            return None
        for _ in range(_CLIMBS):
            above = [at + step for step in _STEPS]
            there = run_parallel(self.store, [partial(self.store.exists, self.paths.snapshot(i)) for i in above])
            found = max((i for i, exists in zip(above, there, strict=True) if exists), default=None)
            if found is None:
                return at if self.store.exists(self.paths.snapshot(at)) else None
            at = found
        return None

    def latest_snapshot(self) -> Snapshot | None:
        """Read the newest snapshot, None when the branch never had one.

        Raises:
            FormatError: there is none, but tags, hints or the branch's options prove that there were snapshots.
            ConflictError: each one that was listed was gone when it was read.
        """
        for _ in range(_PROBE_LIMIT):
            latest = self.latest_snapshot_id()
            if latest is None:
                proof = proof_of_snapshots(self)
                if proof is None:
                    return None
                if self.latest_snapshot_id() is not None:
                    continue  # the first snapshot was put between the two listings
                raise FormatError(
                    f"{self.label} has no snapshots, although {proof} proves that it had: {self.paths.snapshot_dir} "
                    "was deleted. Nothing was read or written; run check_table, which lists what can be restored"
                )
            found = self.find_snapshot(latest)
            if found is not None:
                return found  # otherwise rolled back or replaced between the listing and the read: list again
        raise ConflictError(f"{self.label}: the newest snapshot keeps vanishing while it is read; run it again")

    def hinted_snapshot(self) -> Snapshot | None:
        """Read the newest snapshot with at most three small reads when the LATEST hint is right; list otherwise.

        Only for waiting: a hint that is too low *and* followed by a gap would hide newer snapshots.
        """
        hint = hint_number(read_if_exists(self.store, self.paths.latest_hint) or b"")
        if not hint:
            return self.latest_snapshot()
        looks: list[Callable[[], Any]] = [
            partial(self.find_snapshot, hint),
            partial(self.store.exists, self.paths.snapshot(hint + 1)),
        ]
        snapshot, is_followed = run_parallel(self.store, looks)
        return self.latest_snapshot() if snapshot is None or is_followed else snapshot

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Read one snapshot. ``NotFoundError`` when it never existed or has expired."""
        try:
            data = self.store.read(self.paths.snapshot(snapshot_id))
        except NotFoundError:
            raise NotFoundError(f"{self.label} has no snapshot {snapshot_id} (expired, or it never existed)") from None
        return self._parsed(snapshot_id, data)

    def _parsed(self, snapshot_id: int, data: bytes) -> Snapshot:
        snapshot = parse_snapshot(data, f"{self.label}: snapshot-{snapshot_id}")
        if snapshot.id != snapshot_id:
            raise FormatError(f"{self.label}: the file snapshot-{snapshot_id} has the id {snapshot.id} inside")
        return snapshot

    def find_snapshot(self, snapshot_id: int, identity: str | None = None) -> Snapshot | None:
        """Read one snapshot, None if it doesn't exist. ``identity``: of the only one of this id that counts."""
        try:
            found = self.snapshot(snapshot_id)
        except NotFoundError:
            return None
        return found if identity in (None, found.identity) else None

    def snapshots(self, ids: list[int] | None = None) -> list[Snapshot]:
        """Read the given snapshots, in order; or all, without those that expire meanwhile: what is older than one of
        these was read before it expired, and is left out as well.
        """
        if ids is None:
            paths = {i: self.paths.snapshot(i) for i in self.snapshot_ids()}
            found = read_existing(self.store, list(paths.values()))
            newest = max((i for i, path in paths.items() if path in found), default=0)
            lost = max((i for i, path in paths.items() if path not in found and i < newest), default=0)
            return [self._parsed(i, found[path]) for i, path in paths.items() if path in found and i > lost]
        data = self.store.read_many([self.paths.snapshot(i) for i in ids])
        return [self._parsed(i, d) for i, d in zip(ids, data, strict=True)]

    # -- tags and branches -----------------------------------------------------------------------------------------

    def tag_names(self) -> list[str]:
        """List the branch's tags by name; directories (``tag-success-file``) are not tags."""
        names = self.store.names(self.paths.tag_dir)
        return sorted(n[len(TAG_PREFIX) :] for n in names if n.startswith(TAG_PREFIX) and n != TAG_PREFIX)

    def tag(self, name: str) -> Tag:
        """Read one tag of this branch. ``NotFoundError`` lists the existing tags."""
        try:
            data = self.store.read(self.paths.tag(name))
        except (NotFoundError, InvalidInputError):
            some = first_few(self.tag_names(), 20) or "none"
            raise NotFoundError(f"{self.label} has no tag {name!r} (its tags: {some})") from None
        return parse_tag(data, name)

    def find_tag(self, name: str) -> Tag | None:
        """Read one tag, None if it doesn't exist."""
        try:
            return parse_tag(self.store.read(self.paths.tag(name)), name)
        except NotFoundError:
            return None

    def tags(self, prefix: str = "") -> list[Tag]:
        """Read the tags of this branch, by snapshot id and name; one deleted meanwhile is left out."""
        return self._read_tags([n for n in self.tag_names() if n.startswith(prefix)])

    def cached_tags(self) -> list[Tag]:
        """Read all tags, but for those that this call has read already (``with_cached_tags``) and that are as then."""
        if self.known_tags is None:
            return self.tags()
        infos = [i for i in self.store.list(self.paths.tag_dir) if not i.is_dir and i.name.startswith(TAG_PREFIX)]
        now = {i.name[len(TAG_PREFIX) :]: (self.branch_name, i) for i in infos if i.name != TAG_PREFIX}
        known = {n: self.known_tags[k] for n, k in now.items() if k in self.known_tags and k[1].modified_ms is not None}
        new = {t.name: t for t in self._read_tags([n for n in now if n not in known])}
        self.known_tags.update({now[n]: t for n, t in new.items()})
        return _in_order([*known.values(), *new.values()])

    def _read_tags(self, names: Sequence[str]) -> list[Tag]:
        try:
            data = self.store.read_many([self.paths.tag(n) for n in names])
            tags = [parse_tag(d, n) for n, d in zip(names, data, strict=True)]
        except NotFoundError:
            tags = [tag for n in names if (tag := self.find_tag(n)) is not None]
        return _in_order(tags)

    def branch_names(self) -> list[str]:
        """List the branches other than main, including incomplete ones."""
        entries = self.store.list(BRANCH_DIR)
        names = (e.name[len(BRANCH_PREFIX) :] for e in entries if e.is_dir and e.name.startswith(BRANCH_PREFIX))
        return sorted(name for name in names if name)


def _in_order(tags: Iterable[Tag]) -> list[Tag]:
    return sorted(tags, key=lambda t: (t.snapshot.id, t.name))


def proof_of_snapshots(view: Table) -> str | None:
    """Return the evidence that a branch without snapshots had some, so that ids must not restart at 1; None without.

    A tag is evidence, unless another branch of the table has automatic tags: Paimon puts those tags on main. So
    are a hint and, on a branch, the option that was set together with its first snapshot, unless it began empty, with
    the options of another branch.
    """
    store, paths = view.store, view.paths
    if not store.names(paths.schema_dir):
        return None  # it doesn't exist, or is being created or deleted
    for path in (paths.latest_hint, paths.earliest_hint):
        if store.exists(path) and store.read(path).strip().isdigit():
            return f"the hint {path}"
    tags = sorted(view.tags(), key=lambda t: t.name)
    strange = _tagged_by_branches(view) if tags and view.branch_name == MAIN else set()
    for tag in tags:
        if tag.snapshot.identity not in strange:
            return f"tag {tag.name!r} on snapshot {tag.snapshot.id}"
    if view.branch_name != MAIN and not view.branch_name.startswith(STAGING_BRANCH_PREFIX):
        options = {} if began_empty(view) else _options(view)
        if options.get("snapshot.time-retained") == UNLIMITED_RETENTION and options.get("write-only") == "true":
            return "its options, which were set together with its first snapshot"
    return None


def _options(view: Table) -> Mapping[str, str]:
    return view.schema().options if view.exists() else {}


def _tagged_by_branches(main: Table) -> set[str]:
    """Identities of the snapshots of branches that may have put tags on main (``tag.automatic-creation``)."""
    views = map(main.branch, main.branch_names())
    tagging = [v for v in views if _options(v).get("tag.automatic-creation", "none") != "none"]
    return {snapshot.identity for view in tagging for snapshot in view.snapshots()}


def open_table(
    warehouse: str | None = None,
    name: str | None = None,
    branch: str = MAIN,
    storage_options: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
) -> Table:
    """Open a table by its name in the catalog of a warehouse, or any table folder by ``path``.

    ``name`` may carry a branch (``db.t$branch_b``); a different ``branch`` besides is an error. ``storage_options`` may
    name the catalog (``open_catalog``); without, it is the warehouse itself, and nothing is read yet.

    Raises:
        InvalidInputError: both or neither of (warehouse, name) and path, or a malformed name.
    """
    if (path is None) == (warehouse is None or name is None):
        raise InvalidInputError("open_table takes a warehouse and a table name, or path= of a table folder")
    for what, given in (("warehouse", warehouse), ("name", name), ("branch", branch), ("path", path)):
        if given is not None and not isinstance(given, str | os.PathLike):
            raise InvalidInputError(f"open_table: {what} is a string, not {given!r}")
        if isinstance(given, str) and not given.strip():
            raise InvalidInputError(f"open_table: {what} is empty" + ("; main is the default" * (what == "branch")))
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise InvalidInputError("open_table: storage_options is a dict of options and values")
    if path is not None:
        path = os.fspath(path)
        label = path.rstrip("/").rsplit("/", 1)[-1]
        parent = path.rstrip("/").rsplit("/", 2)
        database = parent[-2].removesuffix(".db") if len(parent) > 2 and parent[-2].endswith(".db") else ""
        return Table(
            open_store(path, storage_only(storage_options)), f"{database}.{label}" if database else label, branch
        )
    assert warehouse is not None and name is not None
    identifier = parse_identifier(name)
    chosen = _one_branch(identifier, branch)
    catalog = open_catalog(warehouse, storage_options)
    (store,) = catalog.locate(identifier.database, [identifier.table])
    name = f"{identifier.database}.{identifier.table}"
    return Table(NoStore(catalog.label) if store is None else store, name, chosen, catalog)


def open_or_place(warehouse: str, name: str, storage_options: Mapping[str, Any] | None = None) -> Table:
    """Open a table as ``open_table`` does; one that its catalog doesn't know, where it would lie. ``register`` it then.

    Raises:
        NotFoundError: the catalog has no such database. UnsafeOperationError: it knows a table whose files are gone.
    """
    table = open_table(warehouse, name, storage_options=storage_options)
    if table.is_gone():
        raise UnsafeOperationError(f"{table.missing().message}. Nothing was created: it could be taken for the old one")
    if table.catalog is None or not isinstance(table.store, NoStore):
        return table
    database, _, short = table.name.partition(".")
    return replace(table, store=table.catalog.place(database, short))


def register(table: Table, schema: TableSchema) -> None:
    """Make a new table known to its catalog; its schema file lies there already. One that is known stays as it is.

    Raises:
        PaimonError: the catalog failed; the message says how to go on.
    """
    if table.catalog is None:
        return
    database, _, short = table.name.partition(".")
    try:
        table.catalog.register(database, short, schema)
    except PaimonError as error:
        error.set_message(
            f"{table.name}: its files exist, but {table.catalog.label} does not know it yet: {error.message}. Run it "
            "again with if_exists='skip'"
        )
        raise


def _one_branch(identifier: Identifier, branch: str) -> str:
    if identifier.system_table:
        raise InvalidInputError(
            f"{identifier} is a system table: $audit_log and $ro are read in batches (data source, read_table, "
            f"read_system_table), the others by airflow_paimon.core.table.inspect"
        )
    if branch != MAIN and identifier.branch not in (MAIN, branch):
        raise InvalidInputError(f"{identifier} and branch={branch!r} name two different branches")
    return branch if branch != MAIN else identifier.branch


def parse_version(text: str) -> int | str:
    """Return the version that a text means: digits are a snapshot id, anything else names one (``resolve_version``)."""
    return int(text) if text.isascii() and text.isdigit() else text


def split_version(text: str) -> tuple[str, int | str | None]:
    """Divide ``db.t$branch_b@VERSION`` into the table's name and the version, None without one.

    Raises:
        InvalidInputError: nothing after the ``@``.
    """
    name, at, version = (part.strip() for part in text.partition("@"))
    if at and not version:
        raise InvalidInputError(f"{text!r} names no version: a tag, a snapshot id, branch.tag or branch.snapshot")
    return name, parse_version(version) if at else None


def viewed_table(
    warehouse: str, text: str, storage_options: Mapping[str, Any] | None
) -> tuple[Table, int | str | None]:
    """Open the table of ``db.t``, ``db.t$branch_b`` or either with ``@VERSION``; the version is not looked up.

    Raises:
        NotFoundError: no such table or branch. InvalidInputError: not of that form.
    """
    name, version = split_version(text)
    return open_table(warehouse, name, storage_options=storage_options).require(), version


def resolve_version(
    table: Table, version: int | str | None = None, timestamp: int | str | None = None
) -> tuple[Table, Snapshot | None]:
    """Find the snapshot that a read asks for, and the view whose schemas apply to it; None = no snapshot at all.

    ``version``: int = snapshot id; str = tag, the exact name first, then on main ``branch.tag`` and
    ``branch.<snapshot id>``, then ``set:NAME`` or ``set:NAME@NUMBER``, a version of a table set. ``timestamp``: ISO
    with an offset, or epoch milliseconds: the latest snapshot whose commit time is not after it.

    Raises:
        NotFoundError: no such snapshot or tag, or none that early. InvalidInputError: ambiguous, or a naive time.
    """
    if version is not None and timestamp is not None:
        raise InvalidInputError(f"{table.label}: give version or timestamp, not both")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int | str)):
        raise InvalidInputError(
            f"{table.label}: version is a snapshot id (int) or the name of a tag (str), not {version!r}"
        )
    if timestamp is not None:
        return table, snapshot_by_time(table, parse_timestamp(timestamp))
    if version is None:
        return table, table.latest_snapshot()
    if isinstance(version, int):
        return table, table.snapshot(version)
    return _snapshot_named(table, version)


def _snapshot_named(table: Table, version: str) -> tuple[Table, Snapshot]:
    tag = table.find_tag(version) if "/" not in version else None
    if tag is not None:
        return table, tag.snapshot
    found: list[tuple[str, Table, Snapshot]] = []
    if table.branch_name == MAIN:
        for name in table.branch_names():
            rest = version.removeprefix(name + ".")
            if rest == version or not rest:
                continue
            other = table.branch(name)
            branch_tag = other.find_tag(rest)
            if branch_tag is not None:
                found.append((f"tag {rest!r} of branch {name!r}", other, branch_tag.snapshot))
            elif rest.isdigit() and int(rest) in other.snapshot_ids():
                found.append((f"snapshot {rest} of branch {name!r}", other, other.snapshot(int(rest))))
    if len(found) > 1:
        meanings = " or ".join(what for what, _, _ in found)
        raise InvalidInputError(
            f"{table.label}: version {version!r} is ambiguous: {meanings}. Read the branch itself, as "
            f"{found[0][1].label}@{version.removeprefix(found[0][1].branch_name)[1:]}"
        )
    if found:
        return found[0][1:]
    set_version = parse_set_version(version)
    if set_version is not None:
        return table, snapshot_in_set(table, *set_version)
    return table, table.tag(version).snapshot  # raises NotFoundError with the existing tags


def parse_timestamp(value: int | str | datetime, name: str = "timestamp") -> int:
    """Convert a time with an offset (ISO text, datetime) or epoch milliseconds (int, digits) to epoch milliseconds.

    ``name``: of the argument that it is, for the error.
    """
    if isinstance(value, datetime):
        value = value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise InvalidInputError(
            f"{name} is an ISO time with an offset, a datetime with a time zone or epoch milliseconds, not {value!r}"
        )
    text = value.strip()
    if _MILLIS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(f"{name}: {value!r} is not an ISO time; write e.g. 2026-11-21T02:00:00+00:00") from None
    if moment.tzinfo is None:
        raise InvalidInputError(f"{name}: {value!r} has no time zone; write e.g. 2026-11-21T02:00:00+00:00")
    return round(moment.timestamp() * 1000)


def snapshot_by_time(table: Table, time_ms: int) -> Snapshot:
    """Return the newest snapshot that was committed by then (epoch milliseconds).

    Raises:
        NotFoundError: none is that early.
    """
    found, later = snapshots_around(table, time_ms + 1)
    if found is None:
        known = "it has none at all"
        if later is not None:
            time = datetime.fromtimestamp(later.time_millis / 1000, UTC)
            known = f"the earliest that is left is {later.id}, of {later.time_millis} ms ({time})"
        raise NotFoundError(f"{table.label} has no snapshot as early as {time_ms} ms; {known}")
    return found


def snapshots_around(table: Table, time_ms: int) -> tuple[Snapshot | None, Snapshot | None]:
    """Return the newest snapshot that was committed before a time (epoch milliseconds), and the one after it."""
    ids = table.snapshot_ids()
    low, high = -1, len(ids)
    before: Snapshot | None = None
    after: Snapshot | None = None
    while high - low > 1:
        middle = (low + high) // 2
        try:
            snapshot = table.snapshot(ids[middle])
        except NotFoundError:
            if table.snapshot_ids() == ids:
                raise
            return snapshots_around(table, time_ms)  # it has expired since the listing
        if snapshot.time_millis < time_ms:
            before, low = snapshot, middle
        else:
            after, high = snapshot, middle
    return before, after


def find_databases(catalog: Catalog) -> list[str]:
    """Name the databases of a catalog.

    Raises:
        NotFoundError: there is none.
    """
    found = catalog.databases()
    if not found:
        raise NotFoundError(f"There is no database in {catalog.label}: it doesn't exist or is empty")
    return found


def find_tables(catalog: Catalog, database: str, wanted: Callable[[str], bool] = lambda _: True) -> list[Table]:
    """Return the tables of a database whose ``db.table`` is wanted: one listing, and a look at each of these."""
    names = [name for name in catalog.tables(database) if wanted(f"{database}.{name}")]
    found = zip(names, catalog.locate(database, names), strict=True)
    views = [Table(store, f"{database}.{name}", catalog=catalog) for name, store in found if store is not None]
    return [view for view in views if view.exists()]


def matching_tables(catalog: Catalog, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[Table]:
    """Return the tables of a catalog whose whole name ``db.table`` matches a pattern, and none of ``exclude``.

    Patterns are those of a shell: ``sales.*``, ``*.orders_202?``, ``*`` for all tables.

    Raises:
        NotFoundError: the catalog has no database.
    """

    def wanted(name: str) -> bool:
        return any(fnmatchcase(name, p) for p in patterns) and not any(fnmatchcase(name, p) for p in exclude)

    return [t for database in find_databases(catalog) for t in find_tables(catalog, database, wanted)]


def named_tables(catalog: Catalog, names: str) -> list[Table]:
    """Return the tables that names and patterns with commas between mean, each once.

    Raises:
        NotFoundError: there is no table of a name, or none that a pattern matches.
    """
    patterns = list(dict.fromkeys(p.strip() for p in names.split(",") if p.strip()))
    found = matching_tables(catalog, patterns)
    for pattern in patterns:
        if not any(fnmatchcase(table.name, pattern) for table in found):
            raise NotFoundError(f"{catalog.label} has no table {pattern!r}")
    return found
