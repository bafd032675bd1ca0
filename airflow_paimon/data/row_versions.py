"""``row_history``: the versions of a row over the snapshots, tags and branches of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.schema.columns_plan import ids_on_main
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.history import existing_snapshots
from airflow_paimon.core.table.masking import Masks, masks_of
from airflow_paimon.core.table.options import READ_TOGETHER, TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    APPROVED_BY_PROPERTY,
    BRANCH_PROPERTY,
    OPERATION_PROPERTY,
    REQUESTED_BY_PROPERTY,
)
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_table
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_groups import Layer
from airflow_paimon.data.read_request import ReadRequest

FOUND, INSERTED, UPDATED, DELETED = "found", "inserted", "updated", "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowVersion:
    """What a commit made of the rows with a key.

    Attributes:
        change: ``inserted``, ``updated`` or ``deleted``; ``found``: the oldest state that can be read has it already.
        snapshot: The first one that has the version; of a commit between tags of expired snapshots, the later tag's.
        time_ms: When that was committed, epoch milliseconds.
        from_branch: The branch whose publish brought it.
        tags: Tags of the branch that show this version.
        rows: The rows, by column name; one or none where the key is the primary key. Masked values are hidden.
    """

    branch: str
    change: str
    snapshot: int
    time_ms: int
    operation: str
    user: str
    requested_by: str | None
    approved_by: str | None
    from_branch: str | None
    tags: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"tags": list(self.tags), "rows": [dict(row) for row in self.rows]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadableState:
    """A state that can be read. ``version``: the snapshot's id, or a tag's name where the snapshot has expired."""

    snapshot: Snapshot
    version: int | str
    tags: tuple[str, ...]


def row_history(table: Table, key: Mapping[str, Any], *, branches: bool = True) -> list[RowVersion]:
    """Return the versions of the rows with these values, by branch and then the oldest first: main's, and with
    ``branches`` what each branch has made of them since its base. Of a view of a branch only that branch's.

    States whose files for the key are those of the state before are not read. Of the others only the key's buckets, and
    files whose statistics may have it.

    Args:
        key: Values of columns, usually of the primary key; texts are taken as the column's type. With partition columns
            among them fewer files are read.

    Raises:
        InvalidInputError: an unknown column, or a value that is none of its type.
        UnsupportedFeatureError: main's rows are those of several branches, as of a chain table: ask for one of them.
        NotFoundError: no such table or branch. FormatError: a file of the table is missing or corrupt.
    """
    check_table(table)
    table.require()
    schema = table.schema()
    _check_alone(table, schema)
    wanted = [(_field(schema, name, table.label), value) for name, value in key.items()]
    if not wanted:
        raise InvalidInputError(f"{table.label}: row_history takes values of at least one column, such as the key's")
    masks = masks_of(table.branch(MAIN).schemas())
    found = list(_versions(table, wanted, masks, after=0))
    if table.branch_name != MAIN or not branches:
        return found
    for name in table.branch_names():
        view, record = table.branch(name), read_branch_record(table, name)
        base = record.snapshot_id if record is not None else None
        found += _versions(view, wanted, masks, after=base or 0, ids=ids_on_main(table.schemas(), view.schemas()))
    return found


def _check_alone(table: Table, schema: TableSchema) -> None:
    options = TableOptions(schema.options)
    if table.branch_name == MAIN and (options.chain_table or any(schema.options.get(o) for o in READ_TOGETHER)):
        raise UnsupportedFeatureError(
            f"{table.name}: the rows of main are read together with those of other branches; ask for the history in "
            f"one branch, as open_table(..., branch=...)"
        )


def _field(schema: TableSchema, name: str, label: str) -> DataField:
    field = next((f for f in schema.fields if f.name == name), None)
    if field is None:
        raise InvalidInputError(f"{label} has no column {name!r}; it has: {', '.join(schema.field_names)}")
    return field


def _states(view: Table) -> list[_ReadableState]:
    tags: dict[str, list[str]] = {}
    tagged = {}
    for tag in view.tags():
        tags.setdefault(tag.snapshot.identity, []).append(tag.name)
        tagged[tag.snapshot.identity] = tag
    ids = view.snapshot_ids()
    out = [
        _ReadableState(snapshot=s, version=s.id, tags=tuple(tags.pop(s.identity, ())))
        for s in existing_snapshots(view, ids)
    ]
    expired = [
        _ReadableState(snapshot=tagged[identity].snapshot, version=names[0], tags=tuple(names))
        for identity, names in tags.items()
    ]
    return sorted((*out, *expired), key=lambda s: s.snapshot.id)


def _versions(
    view: Table,
    wanted: Sequence[tuple[DataField, Any]],
    masks: Masks,
    after: int,
    ids: Mapping[int, int] | None = None,
) -> Iterator[RowVersion]:
    """Yield the versions of one branch after its snapshot ``after``. ``ids``: see ``ids_on_main``; None = its own."""
    last: RowVersion | None = None
    files: object = None
    before: list[Mapping[int, Any]] = []
    states, is_first = _states(view), True
    for state in states:
        layers = _plan(view, state, wanted, ids or {})
        if layers is None:
            continue
        now_files = _files(layers)
        same = not is_first and now_files == files
        rows = [] if same else _rows(layers)
        now = before if same else _by_id(rows, view.schema(state.snapshot.schema_id))
        change = _change(before, now, is_oldest=is_first and state.snapshot.id > 1)
        if change is not None:
            if last is not None and last.snapshot > after:
                yield last
            last = _version(view, state, change, rows, masks)
        elif last is not None:
            last = replace(last, tags=(*last.tags, *state.tags))
        files, before, is_first = now_files, now, False
    if last is not None and last.snapshot > after:
        yield last


def _plan(
    view: Table, state: _ReadableState, wanted: Sequence[tuple[DataField, Any]], ids: Mapping[int, int]
) -> list[Layer] | None:
    """Plan the read of a state; None: it has expired meanwhile, or its columns lack one of the key."""
    schema = view.schema(state.snapshot.schema_id)
    names = {ids.get(f.id, f.id): f for f in schema.fields}
    if any(field.id not in names for field, _ in wanted):
        return None
    tests = [_equal(names[field.id], value, view.label) for field, value in wanted]
    try:
        return plan_rows(view, ReadRequest(version=state.version, where=reduce(and_, tests))).layers
    except NotFoundError:
        if view.find_snapshot(state.snapshot.id) is not None:
            raise
        return None


def _equal(field: DataField, value: Any, label: str) -> pc.Expression:
    if value is None:
        return pc.field(field.name).is_null()
    try:
        scalar = pa.scalar(value)
        return pc.field(field.name) == scalar.cast(arrow_type(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise InvalidInputError(f"{label}: {value!r} can't be cast to {field.type} (column {field.name!r})") from None


def _files(layers: Sequence[Layer]) -> frozenset[object]:
    """Return what the rows are read from: files and deletion vectors."""
    splits = [split for _, splits in layers for split in splits]
    files, deletions = (f.file_name for s in splits for f in s.files), (d for s in splits for d in s.deletions)
    return frozenset([*files, *deletions])


def _rows(layers: Sequence[Layer]) -> list[Mapping[str, Any]]:
    return [
        row for read, splits in layers for split in splits for b in read_split(read, split) for row in b.to_pylist()
    ]


def _by_id(rows: Sequence[Mapping[str, Any]], schema: TableSchema) -> list[Mapping[int, Any]]:
    """Return the rows by field ids, without nulls: renaming or adding a column makes no new version."""
    ids = {f.name: f.id for f in schema.fields}
    found = [{ids[n]: v for n, v in row.items() if v is not None and n in ids} for row in rows]
    return sorted(found, key=repr)


def _change(before: Sequence[Mapping[int, Any]], now: Sequence[Mapping[int, Any]], *, is_oldest: bool) -> str | None:
    if repr(before) == repr(now):  # NaN is no other value than NaN
        return None
    if not now:
        return DELETED
    return FOUND if is_oldest else UPDATED if before else INSERTED


def _version(
    view: Table, state: _ReadableState, change: str, rows: Sequence[Mapping[str, Any]], masks: Masks
) -> RowVersion:
    snapshot, said = state.snapshot, state.snapshot.properties
    return RowVersion(
        branch=view.branch_name,
        change=change,
        snapshot=snapshot.id,
        time_ms=snapshot.time_millis,
        operation=said.get(OPERATION_PROPERTY) or snapshot.operation or snapshot.commit_kind.value,
        user=snapshot.commit_user,
        requested_by=said.get(REQUESTED_BY_PROPERTY),
        approved_by=said.get(APPROVED_BY_PROPERTY),
        from_branch=said.get(BRANCH_PROPERTY),
        tags=state.tags,
        rows=tuple(masks.row(row) for row in rows),
    )
