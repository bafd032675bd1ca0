"""The folder of a table that the server of a REST catalog manages.

Data files, manifests and this package's own records are put there as in every table. What Paimon's metadata consists
of is the server's: putting a snapshot becomes a commit, a tag, a schema or a branch the call that makes it. Those are
read from the files that the server keeps, but for the newest snapshot, which it is asked for.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_paimon.core.catalogs.rest_changes import Change, schema_changes
from airflow_paimon.core.catalogs.rest_client import RESOURCE, RestClient
from airflow_paimon.core.catalogs.rest_statistics import partition_statistics
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    UnsupportedCatalogError,
)
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import Snapshot, Tag, parse_snapshot, parse_tag, snapshot_from_json
from airflow_paimon.core.store import Store
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.store.none import NoStore, RefusedStore
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.branch_record import DELETED, DELETING, BranchRecord, branch_record_path
from airflow_paimon.core.table.paths import (
    BRANCH_DIR,
    BRANCH_PREFIX,
    CHANGELOG_PREFIX,
    CONSUMER_PREFIX,
    MAIN,
    RESERVED_TAG_PREFIX,
    SCHEMA_PREFIX,
    SNAPSHOT_PREFIX,
    TAG_PREFIX,
    BranchPaths,
    numbered,
    protective_tag,
    protects,
)
from airflow_paimon.core.table.record_kinds import BRANCHES

if TYPE_CHECKING:
    from airflow_paimon.core.catalogs.base import Catalog

log = logging.getLogger(__name__)

_BRANCH = rf"(?:{BRANCH_DIR}/{BRANCH_PREFIX}(?P<branch>[^/]+)/)?"
_METADATA = re.compile(
    rf"{_BRANCH}(?:snapshot/{SNAPSHOT_PREFIX}(?P<snapshot>\d+)|snapshot/(?P<hint>LATEST|EARLIEST)"
    rf"|schema/{SCHEMA_PREFIX}(?P<schema>\d+)|tag/{TAG_PREFIX}(?P<tag>[^/]+)"
    rf"|(?:changelog/{CHANGELOG_PREFIX}|consumer/{CONSUMER_PREFIX})(?P<other>[^/]+))"
)
_SNAPSHOTS = re.compile(rf"{_BRANCH}snapshot")
_SERVERS = (BRANCH_DIR, "snapshot", "schema", "tag", "changelog", "consumer")
_FILLER = "airflow-paimon.schema"
"""An option that makes a schema version of a branch, so that the next one has the id that it must have."""
_COMMIT_TRIES = 4
_COMMIT_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class RestTable:
    """A table as its server knows it. ``id`` tells it from a later table of its name."""

    client: RestClient
    database: str
    name: str
    id: str

    def path(self, branch: str, *below: str) -> list[str]:
        object_name = self.name if branch == MAIN else f"{self.name}$branch_{branch}"
        return ["databases", self.database, "tables", object_name, *below]

    def latest(self, branch: str) -> Snapshot | None:
        """Ask for the newest snapshot, None if there is none, or no such branch."""
        try:
            answer = self.client.get(self.path(branch, "snapshot"))
        except NotFoundError as error:
            if branch == MAIN and error.details.get(RESOURCE) != "SNAPSHOT":
                raise
            return None
        what = (
            f"The newest snapshot of {self.database}.{self.name}, branch {branch}, as returned by {self.client.label},"
        )
        raw = (answer.get("snapshot") or {}).get("snapshot")
        if not isinstance(raw, dict):
            raise FormatError(f"{what} is not a snapshot")
        return snapshot_from_json(raw, what)


class RestTableStore(StoreWrapper):
    """See the module. ``table``: the table that the server commits to."""

    __slots__ = ("table",)

    def __init__(self, inner: Store, table: RestTable) -> None:
        super().__init__(inner)
        self.table = table

    @property
    def keeper(self) -> str | None:
        return self.table.client.label

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        return self.read_many([path])[0]

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        contents: dict[str, bytes] = {}
        heads: dict[str, Snapshot | None] = {}
        for path in paths:
            found = _METADATA.fullmatch(path)
            if found is None or not found["snapshot"]:
                continue
            branch, number = found["branch"] or MAIN, int(found["snapshot"])
            head = heads[branch] if branch in heads else heads.setdefault(branch, self.table.latest(branch))
            if head is None or number > head.id:
                raise NotFoundError(f"{self.uri}/{path} does not exist")
            if number == head.id:
                contents[path] = head.to_bytes()
        filed = [path for path in paths if path not in contents]
        contents |= zip(filed, self.inner.read_many(filed), strict=True)
        return [contents[path] for path in paths]

    def exists(self, path: str) -> bool:
        found = _METADATA.fullmatch(path)
        if found is None or not found["snapshot"]:
            return self.inner.exists(path)
        try:
            self.read(path)
        except NotFoundError:
            return False
        return True

    def names(self, path: str) -> list[str]:
        found = _SNAPSHOTS.fullmatch(path)
        names = self.inner.names(path)
        if found is None:
            return names
        head = self.table.latest(found["branch"] or MAIN)
        known = {f"{SNAPSHOT_PREFIX}{i}" for i in numbered(names, SNAPSHOT_PREFIX) if head is None or i > head.id}
        newest = [] if head is None else [f"{SNAPSHOT_PREFIX}{head.id}"]
        return [*(name for name in names if name not in {*known, *newest}), *newest]

    # -- writing ---------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> None:
        found = _METADATA.fullmatch(path)
        if found is None:
            self.inner.create(path, data)
            return
        branch = found["branch"] or MAIN
        if found["hint"]:
            return
        if found["snapshot"]:
            self._put_snapshot(branch, parse_snapshot(data, path))
        elif found["tag"]:
            self._put_tag(branch, parse_tag(data, found["tag"]))
        elif found["schema"]:
            self._put_schema(branch, parse_schema(data, path))
        else:
            self._refuse(f"put {path}")

    def replace(self, path: str, data: bytes) -> None:
        found = _METADATA.fullmatch(path)
        if found is None:
            self._drop_deleted(path, data)
            self.inner.replace(path, data)
        elif found["tag"]:
            self._replace_tag(found["branch"] or MAIN, parse_tag(data, found["tag"]))
        elif not found["hint"]:
            self._refuse(f"replace {path}")

    def delete(self, path: str) -> None:
        found = _METADATA.fullmatch(path)
        if found is None:
            self.inner.delete(path)
        elif found["tag"] and not found["branch"]:
            self._delete_tag(found["tag"])
        elif not found["hint"] and not self._is_being_deleted(found["branch"]):
            self._refuse(f"delete {path}")

    def delete_same(self, path: str, data: bytes) -> bool | None:
        managed = _METADATA.fullmatch(path) is not None
        return Store.delete_same(self, path, data) if managed else self.inner.delete_same(path, data)

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        return Store.replace_same(self, path, data, expected)

    def delete_empty(self, path: str) -> None:
        if path.split("/")[0] not in _SERVERS:
            self.inner.delete_empty(path)

    def _drop_deleted(self, path: str, data: bytes) -> None:
        """Delete a branch, and the tags that kept its files, before its record says that it is deleted.

        What is there after that is another branch, and a retry of the deletion leaves that and its tags alone.
        """
        if not path.startswith(BRANCHES.folder) or (record := BranchRecord.parse(data, path)).state != DELETED:
            return
        tags = [tag for tag in self._tag_names() if protects(tag) == record.branch]
        self.table.client.delete(self.table.path(MAIN, "branches", record.branch))
        for tag in tags:
            self._delete_tag(tag)

    def _is_being_deleted(self, branch: str | None) -> bool:
        """Whether this package deletes the branch: its files go with it, by the server's one call."""
        record = None if branch is None else read_if_exists(self.inner, branch_record_path(branch))
        return record is not None and BranchRecord.parse(record, branch_record_path(str(branch))).state in (
            DELETING,
            DELETED,
        )

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedCatalogError(
            f"{self.table.database}.{self.table.name}: this package can't {what}: {self.keeper} manages the table's "
            f"metadata and offers no call for it"
        )

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _put_snapshot(self, branch: str, snapshot: Snapshot) -> None:
        """Commit, as put-if-absent would: exactly one snapshot gets an id.

        Sending it again is safe: the server takes it on top of one base only, so it can't be made twice.
        """
        if branch != MAIN and not self._schema_ids(branch):
            self._create_branch(branch, snapshot)
            self._settle(branch, snapshot)
            return
        schema = parse_schema(
            self.inner.read(BranchPaths(branch).schema(snapshot.schema_id)), f"schema-{snapshot.schema_id}"
        )
        statistics = partition_statistics(self.inner, snapshot, schema)
        doubt: OutcomeUnknownError | None = None
        for left in reversed(range(_COMMIT_TRIES)):
            try:
                self._commit(branch, snapshot, statistics)
                return
            except OutcomeUnknownError as error:
                doubt = error
                if not left:
                    raise
                time.sleep(_COMMIT_WAIT_S * (_COMMIT_TRIES - left))
            except AlreadyExistsError:
                raise
            except PaimonError as error:
                if doubt is None:
                    raise
                raise OutcomeUnknownError(f"{doubt.message}; then {error.message}") from error

    def _commit(self, branch: str, snapshot: Snapshot, statistics: Sequence[Any]) -> None:
        """Ask the server for the commit once, unless the snapshot is there."""
        head = self.table.latest(branch)
        if (head.id if head is not None else 0) != snapshot.id - 1:
            self._settle(branch, snapshot)
            return
        body = {
            "tableId": self.table.id,
            "baseSnapshotUuid": None if head is None else head.uuid,
            "snapshot": snapshot.to_json(),
            "statistics": statistics,
        }
        if self.table.client.post(self.table.path(branch, "commit"), body).get("success") is not True:
            self._settle(branch, snapshot)

    def _settle(self, branch: str, snapshot: Snapshot) -> None:
        """Return if the snapshot is the one of its id.

        Raises:
            AlreadyExistsError: it isn't, or there is none.
        """
        path = BranchPaths(branch).snapshot(snapshot.id)
        data = read_if_exists(self, path)
        if data is None or parse_snapshot(data, path).identity != snapshot.identity:
            raise AlreadyExistsError(f"{self.uri}/{path}: another commit was faster")

    # -- tags ------------------------------------------------------------------------------------------------------

    def _put_tag(self, branch: str, tag: Tag) -> None:
        body: dict[str, Any] = {"tagName": tag.name, "snapshotId": tag.snapshot.id}
        if tag.time_retained is not None:
            body["timeRetained"] = f"{tag.time_retained // timedelta(milliseconds=1)} ms"
        try:
            self.table.client.post(self.table.path(branch, "tags"), body)
        except (AlreadyExistsError, OutcomeUnknownError):
            now = self._tag(branch, tag.name)
            if now is None or now.time_retained != tag.time_retained or now.snapshot.identity != tag.snapshot.identity:
                raise
        except NotFoundError as error:
            raise ConflictError(
                f"{self.table.database}.{self.table.name}: tag {tag.name!r} can't be made: {error.message}"
            ) from None
        made = self._tag(branch, tag.name)
        if made is None or made.snapshot.identity != tag.snapshot.identity:
            self.table.client.delete(self.table.path(branch, "tags", tag.name))
            raise ConflictError(
                f"{self.table.database}.{self.table.name}: snapshot {tag.snapshot.id} was replaced while it was tagged"
            )

    def _delete_tag(self, name: str) -> None:
        """Delete a tag of main whose snapshot is there: the server then deletes nothing else.

        With the last tag on an expired snapshot it may delete files that a rollback or publish has brought back.
        """
        tag = self._tag(MAIN, name)
        if tag is None:
            return
        path = BranchPaths().snapshot(tag.snapshot.id)
        data = read_if_exists(self, path)
        if data is not None and parse_snapshot(data, path).identity == tag.snapshot.identity:
            self.table.client.delete(self.table.path(MAIN, "tags", name))
        elif name.startswith(RESERVED_TAG_PREFIX):
            log.warning("%s: tag %s stays, as its snapshot %d has expired", self.uri, name, tag.snapshot.id)
        else:
            self._refuse(f"delete tag {name}, as its snapshot {tag.snapshot.id} has expired and files may go with it")

    def _replace_tag(self, branch: str, tag: Tag) -> None:
        """The server has no call for it, so for a moment the tag isn't there."""
        now = self._tag(branch, tag.name)
        if now is not None and branch != MAIN:
            self._refuse(f"replace tag {tag.name} of branch {branch}")
        if now is not None and (now.snapshot.identity, now.time_retained) == (tag.snapshot.identity, tag.time_retained):
            return
        if now is not None:
            self._settle(branch, tag.snapshot)
            self._delete_tag(tag.name)
        self._put_tag(branch, tag)

    def _tag_names(self) -> list[str]:
        return [n.removeprefix(TAG_PREFIX) for n in self.inner.names("tag") if n.startswith(TAG_PREFIX)]

    def _tag(self, branch: str, name: str) -> Tag | None:
        data = read_if_exists(self.inner, BranchPaths(branch).tag(name))
        return None if data is None else parse_tag(data, name)

    # -- schemas ---------------------------------------------------------------------------------------------------

    def _put_schema(self, branch: str, wanted: TableSchema) -> None:
        if branch != MAIN and not self._schema_ids(branch):
            self._create_branch(branch, None)
        newest = self._schema_ids(branch)[-1]
        if wanted.id <= newest:
            if self._schema(branch, wanted.id).means_same(wanted):
                return
            raise AlreadyExistsError(f"{self.uri}: schema {wanted.id} of branch {branch} exists")
        if wanted.id != newest + 1 and branch == MAIN:
            self._refuse(f"put schema {wanted.id}, as the newest one is {newest}")
        for number in range(newest + 1, wanted.id):
            self._alter(branch, [{"action": "setOption", "key": _FILLER, "value": str(number)}])
        try:
            self._alter(branch, schema_changes(self._schema(branch, wanted.id - 1), wanted))
        except OutcomeUnknownError:
            if self._schema_ids(branch)[-1] < wanted.id:
                raise
        if not self._schema(branch, wanted.id).means_same(wanted):
            raise AlreadyExistsError(f"{self.uri}: another change of the schema of branch {branch} was faster")

    def _alter(self, branch: str, changes: list[Change]) -> None:
        self.table.client.post(self.table.path(branch), {"changes": changes})

    def _schema_ids(self, branch: str) -> list[int]:
        return numbered(self.inner.names(BranchPaths(branch).schema_dir), SCHEMA_PREFIX)

    def _schema(self, branch: str, number: int) -> TableSchema:
        path = BranchPaths(branch).schema(number)
        return parse_schema(self.inner.read(path), f"{self.uri}/{path}")

    # -- branches --------------------------------------------------------------------------------------------------

    def _create_branch(self, branch: str, base: Snapshot | None) -> None:
        """Let the server make a branch from the tag of its base, or an empty one; one that is there is left."""
        tag = None if base is None else self._tag_of(branch, base)
        try:
            self.table.client.post(self.table.path(MAIN, "branches"), {"branch": branch, "fromTag": tag})
        except AlreadyExistsError:
            return
        except OutcomeUnknownError:
            if not self._schema_ids(branch):
                raise

    def _tag_of(self, branch: str, base: Snapshot) -> str:
        for name in sorted(self._tag_names(), key=lambda n: (n != protective_tag(branch), n)):
            tag = self._tag(MAIN, name)
            if tag is not None and tag.snapshot.identity == base.identity:
                return name
        self._refuse(f"create branch {branch} from snapshot {base.id}, which has no tag on main")


class NewRestTableStore(StoreWrapper):
    """The folder of a table that its server is about to make: with the put of the first schema."""

    __slots__ = ("_catalog", "_client", "_database", "_name")

    def __init__(self, catalog: Catalog, client: RestClient, database: str, name: str) -> None:
        self._catalog, self._client, self._database, self._name = catalog, client, database, name

    def __reduce__(self) -> tuple[Any, ...]:
        return NewRestTableStore, (self._catalog, self._client, self._database, self._name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NewRestTableStore) and other.__reduce__() == self.__reduce__()

    def __hash__(self) -> int:
        return hash((self._database, self._name))

    @property
    def inner(self) -> Store:  # type: ignore[override]
        (store,) = self._catalog.locate(self._database, [self._name])
        return NoStore(self._catalog.label) if store is None else store

    def create(self, path: str, data: bytes) -> None:
        inner = self.inner
        if not isinstance(inner, NoStore) or path != BranchPaths().schema(0):
            inner.create(path, data)
            return
        raw = parse_schema(data, path).to_json()
        schema = {k: raw.get(k) for k in ("fields", "partitionKeys", "primaryKeys", "options", "comment")}
        identifier = {"database": self._database, "object": self._name}
        try:
            self._client.post(["databases", self._database, "tables"], {"identifier": identifier, "schema": schema})
        except OutcomeUnknownError:
            if isinstance(self.inner, NoStore):
                raise


class RefusedRestTableStore(RefusedStore):
    """The store of a table that exists and must not be touched: it is listed, and every use of it is refused."""

    __slots__ = ()

    def names(self, path: str) -> list[str]:
        """The table exists: it has a schema, which nobody may read."""
        return [f"{SCHEMA_PREFIX}0"] if path == BranchPaths().schema_dir else []
