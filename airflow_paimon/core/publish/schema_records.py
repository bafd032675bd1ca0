"""Columns and options that a publish brings to main: they stay if its snapshot lands, and are taken back if not.

A schema version must exist before the snapshot that uses it, and can't be deleted again, as another writer may have
used it meanwhile. So a record is put first, in ``_airflow_paimon/schema_changes/``, and later operations (a retry,
another publish, repair_table) compare it with the table:

- the publish landed and main has its columns: the record is deleted;
- it landed, but its columns were removed at the same time: they are put again, as a newer version;
- it did not land and its columns are main's latest: the old columns are put again, as a newer version;
- it did not land, but another writer has written values of its columns: they stay, as those values would be lost;
- it did not land and the old columns are back: the record stays until the branch is published or deleted, as it
  reserves the unused field ids.

Restoring columns and landing can happen concurrently; each side reads the other's file after writing its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from airflow_paimon.core.commit.committer import CommitIdentity, execute, put_new
from airflow_paimon.core.commit.landed import later_snapshots
from airflow_paimon.core.errors import AlreadyExistsError, FormatError, NotFoundError
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import KnownHead, Snapshot
from airflow_paimon.core.plan import Delete, FileAction, PutNew
from airflow_paimon.core.publish.replace_main_plan import same_version, with_columns_of
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.properties import BRANCH_PROPERTY
from airflow_paimon.core.table.scan import live_entries
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

FOLDER = f"{PRIVATE_DIR}/schema_changes"
WITHOUT_PUBLISH = "schema-without-publish"
"""Kind of the finding that columns of a publish that never landed are main's."""
_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRecord(Record):
    """``before``: main's schema version without the columns. ``since``: main's head when they were added, as
    ``KnownHead`` has it.

    ``schemas``: the versions that add them, each with the SHA-256 of its file, as another writer may win the id.
    """

    branch: str
    user: str
    identifier: int
    since: int
    before: int
    schemas: tuple[tuple[int, str], ...]
    since_identity: str = ""
    since_time: int = 0

    @property
    def head(self) -> KnownHead:
        return KnownHead(self.since, self.since_identity, self.since_time)

    @property
    def path(self) -> str:
        whose = hashlib.sha256(f"{self.user}\0{self.identifier}".encode()).hexdigest()[:16]
        return f"{FOLDER}/{self.schemas[0][0]}-{whose}.json"


class State(Enum):
    """The state of a record relative to the table."""

    DONE = "done"
    LOST = "lost"
    PENDING = "pending"
    WITHDRAWN = "withdrawn"


def record_of(
    branch: str, identity: CommitIdentity, head: Snapshot, before: int, new: Sequence[TableSchema]
) -> SchemaRecord:
    return SchemaRecord(
        branch=branch,
        user=identity.user,
        identifier=identity.identifier,
        since=head.id,
        since_identity=head.identity,
        since_time=head.time_millis,
        before=before,
        schemas=tuple((s.id, _digest(s.to_bytes())) for s in new),
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bring_schemas(main: Table, record: SchemaRecord, new: Sequence[TableSchema], *, latest_first: bool = False) -> bool:
    """Put the record, then the schema versions. False = main was altered meanwhile: plan again.

    ``latest_first``: at no time is another version than the last of ``new`` the latest one.
    """
    versions = [*reversed(new)] if latest_first else list(new)
    for path, data in ((record.path, record.to_bytes()), *((main.paths.schema(s.id), s.to_bytes()) for s in versions)):
        try:
            put_new(main, path, data)
        except AlreadyExistsError:
            if main.store.read(path) != data and path != record.path:
                if latest_first and path != main.paths.schema(new[-1].id):
                    _put_again(main, parse_schema(main.store.read(path), path), above=new[-1].id)
                return False
    return True


def _put_again(main: Table, altered: TableSchema, above: int) -> None:
    """Make a version the latest that another writer has put below ours meanwhile: its change would be hidden."""
    again = dataclasses.replace(altered, id=above + 1)
    try:
        put_new(main, main.paths.schema(again.id), again.to_bytes())
    except AlreadyExistsError:
        log.warning("%s: schema %d and %d were put at the same moment; compare them", main.label, altered.id, again.id)


def read_records(main: Table) -> list[SchemaRecord]:
    """Read all records, except truncated ones, which no schema followed."""
    found = []
    for name in sorted(main.store.names(FOLDER)):
        try:
            found.append(SchemaRecord.parse(main.store.read(f"{FOLDER}/{name}"), name))
        except (NotFoundError, FormatError):
            log.warning("%s: the record %s/%s is unreadable and was ignored", main.label, FOLDER, name)
    return found


def compare(main: Table, record: SchemaRecord) -> tuple[State, tuple[FileAction, ...]]:
    """Compare a record with the table, and return its state and the actions that reconcile the two (mostly none)."""
    brought = _brought(main, record)
    latest = main.schema()
    done = Delete(path=record.path, reason="the publish has landed, or its columns never reached main")
    if not brought:
        return State.DONE, (done,)
    old, last = main.schema(record.before), brought[-1]
    landed = _landed(main, record, brought) or _is_written_with(main, old, brought)
    if landed or landed is None:
        if landed and latest.id > last.id and len(brought) == len(record.schemas) and _is_back(latest, old, last):
            return State.LOST, (_put(main, changed_back(latest, old, last), "columns of a publish that landed"),)
        return State.DONE, (done,)
    came = next((s for s in reversed(brought) if s.content == latest.content), None)
    if came is not None and not same_version(before := changed_back(latest, came, old), latest):
        return State.PENDING, (_put(main, before, "the columns of before a publish that did not land"),)
    if record.branch not in main.branch_names() or any(True for _ in _later_publishes(main, record)):
        return State.DONE, (done,)
    return State.WITHDRAWN, ()


def _brought(main: Table, record: SchemaRecord) -> list[TableSchema]:
    """The record's schema versions that main has with the recorded content; the latest may have been put first."""
    found = []
    for schema_id, digest in record.schemas:
        try:
            data = main.store.read(main.paths.schema(schema_id))
        except NotFoundError:
            continue
        if _digest(data) != digest:
            continue
        found.append(parse_schema(data, f"{main.label}: schema-{schema_id}"))
    return found


def _landed(main: Table, record: SchemaRecord, brought: Sequence[TableSchema]) -> bool | None:
    """Whether main has this publish, or a later one of the same branch with the same columns; None = expired."""
    if any(_identity(s) == (record.user, record.identifier) for s in _since(main, record)):
        return True
    schema_ids = {s.id for s in brought}
    for snapshot in _later_publishes(main, record):
        if snapshot.schema_id in schema_ids or main.schema(snapshot.schema_id).content == brought[-1].content:
            return True
    ids = main.snapshot_ids()
    return False if not ids or ids[0] <= record.since + 1 else None


def _is_written_with(main: Table, old: TableSchema, brought: Sequence[TableSchema]) -> bool:
    """Whether live files hold values that the previous columns can't hold: of a new column, or of a changed type."""
    before = {(f.id, f.type) for f in old.fields}
    wider = {s.id for s in brought if any((f.id, f.type) not in before for f in s.fields)}
    return bool(wider) and any(e.file.schema_id in wider for e in live_entries(main, main.latest_snapshot()).values())


def _identity(snapshot: Snapshot) -> tuple[str, int]:
    return snapshot.commit_user, snapshot.commit_identifier


def _since(main: Table, record: SchemaRecord) -> Iterator[Snapshot]:
    return (s for _, s in later_snapshots(main, record.head) if s is not None)


def _later_publishes(main: Table, record: SchemaRecord) -> Iterator[Snapshot]:
    return (s for s in _since(main, record) if s.properties.get(BRANCH_PROPERTY) == record.branch)


def _put(main: Table, schema: TableSchema, what: str) -> PutNew:
    return PutNew(path=main.paths.schema(schema.id), data=schema.to_bytes(), reason=what)


def changed_back(latest: TableSchema, came: TableSchema, old: TableSchema) -> TableSchema:
    """Return the next schema version, which takes back what ``came`` changed in ``old``, where ``latest`` still has it.

    Later changes of others stay. Field ids are never reused.
    """
    columns = came.fields != old.fields and latest.content == came.content
    columns = columns and (came.content != old.content or latest.fields == came.fields)
    options = dict(latest.options)
    for key in _differing(came, old):
        if options.get(key) == came.options.get(key):
            options.pop(key, None)
            options |= {key: old.options[key]} if key in old.options else {}
    comment = old.comment if latest.comment == came.comment else latest.comment
    shaped = with_columns_of(latest, old) if columns else latest
    return dataclasses.replace(shaped, id=latest.id + 1, options=options, comment=comment)


def _differing(one: TableSchema, other: TableSchema) -> list[str]:
    keys = sorted(one.options.keys() | other.options.keys())
    return [k for k in keys if one.options.get(k) != other.options.get(k)]


def _is_back(latest: TableSchema, old: TableSchema, came: TableSchema) -> bool:
    """Whether ``latest`` has the values of ``old`` in all that ``came`` changed."""
    if same_version(old, came):
        return False
    columns = old.fields == came.fields or latest.fields == old.fields
    columns = columns or (came.content != old.content and latest.content == old.content)
    options = all(latest.options.get(k) == old.options.get(k) for k in _differing(old, came))
    return columns and options and (old.comment == came.comment or latest.comment == old.comment)


def reconcile_records(main: Table, keep: Callable[[SchemaRecord], bool] = lambda record: False) -> None:
    """Reconcile main's columns with the records, except those to ``keep`` for the publish that continues with them.

    After columns were put back, live files are checked again for a concurrent writer that used the other columns.
    Idempotent; concurrent calls have the same result.
    """
    for record in read_records(main):
        for _ in range(_ROUNDS):
            _, actions = ((), ()) if keep(record) else compare(main, record)
            if not actions:
                break
            try:
                execute(main, actions)
            except AlreadyExistsError:
                continue
            if isinstance(actions[0], Delete):
                break


def is_continued_by(main: Table, branch: str, same: bool, *, whole: bool) -> Callable[[SchemaRecord], bool]:
    """Return a predicate for the records that a publish of this branch continues.

    ``same``: main already has what it would bring. ``whole``: that includes options; otherwise an interrupted publish
    that brought options as well is not continued.
    """

    def keep(record: SchemaRecord) -> bool:
        if not same or record.branch != branch or compare(main, record)[0] is not State.PENDING:
            return False
        return whole or not _differing(_brought(main, record)[-1], main.schema(record.before))

    return keep


def withdrawn_versions(main: Table, branch: str) -> Iterator[int]:
    """Main's schema versions that a publish of this branch added and that were withdrawn."""
    for record in read_records(main):
        if record.branch == branch:
            yield from (s.id for s in _brought(main, record))


def record_findings(main: Table) -> Iterator[Finding]:
    """Findings: columns on main whose publish never landed, columns that a publish lost, and obsolete records."""
    for record in read_records(main):
        state, actions = compare(main, record)
        schema_id = record.schemas[0][0]
        if state is State.PENDING:
            yield Finding(
                kind=WITHOUT_PUBLISH,
                subject=str(schema_id),
                severity=WARNING,
                message=f"Schema {schema_id} of main was added by a publish of branch {record.branch!r} that never "
                f"landed: it is still running, or was interrupted",
                at_risk="main shows columns or options of the branch without its rows, and writers have to supply them",
                repair=f"put the columns of schema {record.before} again, as a newer version",
                actions=actions,
            )
        elif state is State.LOST:
            yield Finding(
                kind="publish-without-schema",
                subject=str(schema_id),
                severity=ERROR,
                message=f"The columns that a publish of branch {record.branch!r} added with schema {schema_id} were "
                f"removed while it landed",
                at_risk="reads of main leave out columns that the branch published",
                repair="put those columns again, as a newer version",
                actions=actions,
            )
        elif state is State.DONE:
            yield Finding(
                kind="schema-record",
                subject=record.path.rpartition("/")[2],
                severity=INFO,
                message=f"A publish of branch {record.branch!r} was interrupted before it deleted its record",
                at_risk="nothing",
                repair="delete the record",
                actions=actions,
            )
