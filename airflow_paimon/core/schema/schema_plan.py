"""New tables and schema changes, with Paimon's rules for field ids (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    RowType,
    parse_type_text,
    with_nullable,
)
from airflow_paimon.core.schema.opening_rules import opening_faults
from airflow_paimon.core.schema.option_checks import check_naming, check_options, check_same_layout
from airflow_paimon.core.table.features import stored_starts
from airflow_paimon.core.table.merge_options import group_fields
from airflow_paimon.core.table.options import REQUIRED_CHECKS_OPTION, TableOptions

_IMMUTABLE = frozenset({
    "aggregation.remove-record-on-delete", "blob-descriptor-field", "blob-field", "blob-view-field", "branch",
    "bucket-function.type", "bucket-key", "data-evolution.enabled", "data-file.path-directory",
    "dynamic-bucket.initial-buckets", "force-lookup", "index-file-in-data-file-dir", "merge-engine",
    "partial-update.remove-record-on-delete", "partial-update.remove-record-on-sequence-group",
    "partition", "partition.default-name", "partition.legacy-name", "path", "pk-clustering-override", "primary-key",
    "primary-key.nullable",
    "row-tracking.enabled", "rowkind.field", "sequence.field", "sequence.snapshot-ordering", "type",
})  # fmt: skip
"""Options that determine how existing files are read: changing them on a table with data would give wrong rows."""
_PARTITION, _PRIMARY = "partition", "primary-key"
KEY_OPTIONS = {_PARTITION: "partition key", _PRIMARY: "primary key"}
"""Options of a new table that become its keys; in a schema they mean nothing."""
_PLACES = {
    "branch": ("main", "a branch is made by create_branch, and opened by its name"),
    "path": ("", "the catalog chooses where a table lies"),
    "type": ("table", "tables of other types are made by Paimon's own engines"),
}
"""What a table is and where it lies: the value that says nothing else, and why no other can be set."""
_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOption:
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOption:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn:
    """``type``: in Paimon's notation, nullable. ``after``: a column name; None = last; "" = first."""

    name: str
    type: str | DataType
    comment: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumn:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn:
    name: str
    to_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenColumn:
    """``type``: must hold every value of the old type."""

    name: str
    type: str | DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentColumn:
    name: str
    comment: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveColumn:
    """``after``: a column name; "" = first."""

    name: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentTable:
    """``comment``: None = none."""

    comment: str | None


SchemaChange = (
    SetOption
    | RemoveOption
    | AddColumn
    | DropColumn
    | RenameColumn
    | WidenColumn
    | CommentColumn
    | MoveColumn
    | CommentTable
)


def new_schema(
    columns: Sequence[tuple[str, str | DataType]],
    *,
    partition_keys: Sequence[str] = (),
    primary_keys: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    comment: str | None = None,
    comments: Mapping[str, str] | None = None,
    now_ms: int = 0,
) -> TableSchema:
    """Return schema 0 of a new table. Ids count up in the order of the columns, nested fields right after their parent.

    The options ``primary-key`` and ``partition`` give the keys as well, as Paimon's do.

    Raises:
        InvalidInputError: no columns, empty names or names that differ only in case, an unknown type, a key that is not
            a column, or that is given twice.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidInputError(f"options is a dict of names and values, e.g. {{'bucket': '2'}}, not {options!r}")
    given = {str(k): str(v) for k, v in (options or {}).items()}
    primary_keys = _keys_by_option(given, _PRIMARY, primary_keys)
    partition_keys = _keys_by_option(given, _PARTITION, partition_keys)
    _check_place(given)
    names = _column_names(columns)
    _check_distinct(names)
    _check_keys(names, partition_keys, primary_keys)
    if unknown := [name for name in comments or {} if name not in names]:
        raise InvalidInputError(f"There is no column {unknown[0]!r} to comment; there are: {', '.join(names)}")
    ids = _Ids(-1)
    fields = []
    for name, wanted in columns:
        data_type = _typed(wanted, name)
        field_id = ids.next()
        data_type = with_nullable(ids.renumber(data_type), data_type.nullable and name not in primary_keys)
        fields.append(DataField(field_id, name, data_type, (comments or {}).get(name)))
    return TableSchema(
        id=0,
        fields=tuple(fields),
        highest_field_id=ids.last,
        partition_keys=tuple(partition_keys),
        primary_keys=tuple(primary_keys),
        options={k: v for k, v in given.items() if k not in KEY_OPTIONS},
        comment=comment,
        time_millis=now_ms,
    )


def _keys_by_option(given: Mapping[str, str], key: str, names: Sequence[str]) -> Sequence[str]:
    if key not in given:
        return names
    if names:
        raise InvalidInputError(
            f"The {KEY_OPTIONS[key]} is given twice, as {', '.join(names)} and by the option {key}={given[key]}; leave "
            f"one of them out"
        )
    return TableOptions(given).names(key)


def _column_names(columns: Any) -> list[str]:
    """Return the names of (name, type) pairs; anything of another shape is refused."""
    pairs = list(columns) if isinstance(columns, Sequence) and not isinstance(columns, str | bytes) else []
    if not pairs or not all(isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
        raise InvalidInputError(
            f"The columns of a table are (name, type) pairs, e.g. [('id', 'BIGINT NOT NULL'), ('note', 'STRING')]; "
            f"got {str(columns)[:_SHOWN]!r}"
        )
    if not all(name.strip() for name, _ in pairs):
        raise InvalidInputError("Every column needs a name; one of the names is empty")
    return [name for name, _ in pairs]


def _check_keys(names: Sequence[str], partition_keys: Sequence[str], primary_keys: Sequence[str]) -> None:
    for kind, keys in (("partition", partition_keys), ("primary", primary_keys)):
        if isinstance(keys, str):
            raise InvalidInputError(f"{kind}_keys is a list of column names, not the string {keys!r}; write [{keys!r}]")
        bad = [k for k in keys if k not in names]
        if bad or len(set(keys)) != len(keys):
            raise InvalidInputError(
                f"The {kind} key {', '.join(map(str, bad or keys))} must name columns of the table, each once; "
                f"they are {', '.join(names)}"
            )
    if primary_keys and set(primary_keys) == set(partition_keys):
        raise InvalidInputError(
            f"The primary key {', '.join(primary_keys)} is the partition key as well: each partition would hold one "
            f"row; add a column to the primary key, or take one from the partition key"
        )


def _typed(given: str | DataType, column: str) -> DataType:
    if isinstance(given, DataType):
        return given
    if not isinstance(given, str):
        raise InvalidInputError(f"Column {column}: a type is a string such as 'BIGINT NOT NULL', not {given!r}")
    return parse_type_text(given, column)


def _check_distinct(names: Sequence[str]) -> None:
    """Refuse names that differ only in case, which Spark and Flink can't address separately."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            other = seen[name.lower()]
            why = "twice" if other == name else f"as {other!r} and {name!r}, which differ in case only"
            raise InvalidInputError(f"Column {name!r} is given {why}; give every column another name")
        seen[name.lower()] = name


class _Ids:
    """Counts field ids up, depth first."""

    def __init__(self, last: int) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last

    def renumber(self, data_type: DataType) -> DataType:
        if isinstance(data_type, RowType):
            fields = tuple(replace(f, id=self.next(), type=self.renumber(f.type)) for f in data_type.fields)
            return replace(data_type, fields=fields)
        if isinstance(data_type, ArrayType):
            return replace(data_type, element=self.renumber(data_type.element))
        if isinstance(data_type, MapType):
            return replace(data_type, key=self.renumber(data_type.key), value=self.renumber(data_type.value))
        return data_type


def apply_changes(schema: TableSchema, changes: Sequence[SchemaChange], *, has_data: bool, now_ms: int) -> TableSchema:
    """Return the next schema version. Field ids are never reused; dropped ones stay counted in ``highest_field_id``.

    Raises:
        InvalidInputError: a rule is broken; the message names column or option, and the way out.
    """
    before = set(opening_faults(schema))
    for change in changes:
        schema = _changed(schema, change, has_data)
    new = replace(schema, id=schema.id + 1, time_millis=now_ms, version=schema.next_version)
    check_opening(new, before)
    return new


def _changed(schema: TableSchema, change: SchemaChange, has_data: bool) -> TableSchema:
    match change:
        case SetOption():
            return _set_option(schema, change, has_data)
        case RemoveOption():
            _check_option(schema, change.key, has_data and change.key not in KEY_OPTIONS)
            new = replace(schema, options={k: v for k, v in schema.options.items() if k != change.key})
            check_same_layout(schema, new, change.key, has_data)
            return new
        case AddColumn():
            return _add(schema, change)
        case DropColumn():
            return _drop(schema, change)
        case RenameColumn():
            return _rename(schema, change)
        case WidenColumn():
            return _widen(schema, change)
        case CommentColumn():
            _existing(schema, change.name)
            return _updated(schema, change.name, lambda f: replace(f, description=change.comment))
        case MoveColumn():
            field = _existing(schema, change.name)
            rest = tuple(f for f in schema.fields if f.name != change.name)
            return replace(schema, fields=_insert(rest, field, change.after))
        case CommentTable():
            return replace(schema, comment=change.comment)


def check_opening(schema: TableSchema, known: Collection[str] = ()) -> None:
    """Check that Paimon can open and use a table with this schema; ``known``: faults that it has already.

    Raises:
        InvalidInputError: it could not.
    """
    faults = [fault for fault in opening_faults(schema) if fault not in known]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InvalidInputError(f"Paimon could not open the table, or not use it: {faults[0]}{more}")


def is_immutable(key: str) -> bool:
    """Whether an option determines how existing files are read, so that a table with data can't change it."""
    return key in _IMMUTABLE or key.startswith("fields.")


def _set_option(schema: TableSchema, change: SetOption, has_data: bool) -> TableSchema:
    if schema.options.get(change.key) == str(change.value) or _is_key_of(schema, change):
        return schema
    _check_option(schema, change.key, has_data)
    _check_place({change.key: str(change.value)})
    new = replace(schema, options={**schema.options, change.key: str(change.value)})
    check_options(new, only=change.key)
    check_same_layout(schema, new, change.key, has_data)
    return new


def _check_option(schema: TableSchema, key: str, has_data: bool) -> None:
    if not key.strip():
        raise InvalidInputError("An option needs a name")
    if has_data and is_immutable(key):
        raise InvalidInputError(
            f"Option {key} determines how existing files are read; set it on a new table and copy the rows"
        )


def _check_place(options: Mapping[str, str]) -> None:
    for key, (plain, why) in _PLACES.items():
        if options.get(key, plain).strip().lower() != plain:
            raise InvalidInputError(f"Option {key}={options[key]} can't be set: {why}; leave it out")
    for key in stored_starts(TableOptions(options)):
        raise InvalidInputError(
            f"Option {key}={options[key]} can't be set: all reads of the table would start there; give it to the read"
        )


def _is_key_of(schema: TableSchema, change: SetOption) -> bool:
    """Whether the option says which keys the table has, which changes nothing.

    Raises:
        InvalidInputError: it says others, which would be stored and mean nothing.
    """
    if change.key not in KEY_OPTIONS:
        return False
    there = schema.primary_keys if change.key == _PRIMARY else schema.partition_keys
    if TableOptions({change.key: str(change.value)}).names(change.key) == there:
        return True
    raise InvalidInputError(
        f"The {KEY_OPTIONS[change.key]} of a table can't change (it is {', '.join(there) or 'none'}); make a new table "
        f"with {change.key}={change.value} and copy the rows"
    )


def _add(schema: TableSchema, change: AddColumn) -> TableSchema:
    _check_new_name(schema, change.name)
    data_type = _typed(change.type, change.name)
    if not data_type.nullable:
        raise InvalidInputError(f"Column {change.name}: a new column must be nullable, as existing rows have no value")
    ids = _Ids(schema.highest_field_id)
    field = DataField(ids.next(), change.name, ids.renumber(data_type), change.comment)
    fields = _insert(schema.fields, field, schema.fields[-1].name if change.after is None else change.after)
    return replace(schema, fields=fields, highest_field_id=ids.last)


def _drop(schema: TableSchema, change: DropColumn) -> TableSchema:
    _existing(schema, change.name)
    _check_not_used(schema, change.name, "dropped", keys=True)
    fields = tuple(f for f in schema.fields if f.name != change.name)
    if not fields:
        raise InvalidInputError(f"Column {change.name} is the last one; drop the table instead")
    return replace(schema, fields=fields)


def _rename(schema: TableSchema, change: RenameColumn) -> TableSchema:
    _existing(schema, change.name)
    if change.to_name.lower() != change.name.lower() or change.to_name == change.name:
        _check_new_name(schema, change.to_name)
    if change.name in schema.partition_keys:
        raise InvalidInputError(f"Column {change.name} is a partition column; it can't be renamed")
    _check_not_used(schema, change.name, "renamed", keys=False)
    new = _updated(schema, change.name, lambda f: replace(f, name=change.to_name))
    keys = tuple(change.to_name if k == change.name else k for k in schema.primary_keys)
    return replace(new, primary_keys=keys)


def _widen(schema: TableSchema, change: WidenColumn) -> TableSchema:
    old = _existing(schema, change.name).type
    new = _typed(change.type, change.name)
    if change.name in (*schema.primary_keys, *schema.partition_keys, *_option_columns(schema)):
        raise InvalidInputError(f"Column {change.name} is a key or orders rows; its type can't be changed")
    if not holds(new, old):
        raise InvalidInputError(
            f"Column {change.name}: {new} can't represent every value of {old}; add a new column and fill it instead"
        )
    return _updated(schema, change.name, lambda f: replace(f, type=with_nullable(new, old.nullable)))


def _existing(schema: TableSchema, name: str) -> DataField:
    if name not in schema.field_names:
        raise InvalidInputError(f"There is no column {name!r}; there are: {', '.join(schema.field_names)}")
    return schema.field(name)


def _check_new_name(schema: TableSchema, name: str) -> None:
    taken = {n.lower() for n in schema.field_names}
    if not name.strip() or name.lower() in taken:
        raise InvalidInputError(
            f"Column name {name!r} is empty or taken (upper and lower case count as the same); choose another one"
        )


def _option_columns(schema: TableSchema) -> set[str]:
    """Columns that options refer to by name."""
    options = TableOptions(schema.options)
    named = {n for o in ("bucket-key", "sequence.field", "rowkind.field") for n in options.names(o)}
    timed = {n for n in schema.field_names if f"${n}" in options.text("partition.timestamp-pattern")}
    own = {k.split(".")[1] for k in schema.options if k.startswith("fields.") and k.count(".") >= 2}
    return named | timed | own | {n for k in schema.options for n in group_fields(k)}


def _check_not_used(schema: TableSchema, name: str, what: str, *, keys: bool) -> None:
    if keys and name in (*schema.primary_keys, *schema.partition_keys):
        raise InvalidInputError(f"Column {name} is a key column; it can't be {what}")
    if name in _option_columns(schema):
        raise InvalidInputError(
            f"Column {name} is named by a table option (bucket-key, sequence.field or fields.*); it can't be {what}"
        )
    if (check := check_naming(schema, name)) is not None:
        raise InvalidInputError(
            f"Column {name} is named by the required check {check!r}; it can't be {what}: set the option "
            f"{REQUIRED_CHECKS_OPTION} without it first, in a separate change or before this one"
        )


def _insert(fields: Sequence[DataField], field: DataField, after: str) -> tuple[DataField, ...]:
    if after == "":
        return (field, *fields)
    names = [f.name for f in fields]
    if after not in names:
        raise InvalidInputError(f"Column {field.name}: there is no column {after!r} to put it after")
    at = names.index(after) + 1
    return (*fields[:at], field, *fields[at:])


def _updated(schema: TableSchema, name: str, change: Callable[[DataField], DataField]) -> TableSchema:
    return replace(schema, fields=tuple(change(f) if f.name == name else f for f in schema.fields))


_INTEGERS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
_TEXT = ("CHAR", "VARCHAR", "STRING")
_BYTES = ("BINARY", "VARBINARY", "BYTES")


def holds(new: DataType, old: DataType) -> bool:
    """Whether every value of ``old`` is a value of ``new``."""
    if not isinstance(new, AtomicType) or not isinstance(old, AtomicType):
        return False
    for family in (_TEXT, _BYTES):
        if old.root in family and new.root in family:
            return _length_holds(new, old, fixed=family[0], endless=family[2])
    if old.root in _INTEGERS:
        return _holds_integer(new, _INTEGERS[old.root])
    if old.root == "FLOAT":
        return new.root in ("FLOAT", "DOUBLE")
    if old.root == "DECIMAL" and new.root == "DECIMAL":
        return new.args[1] >= old.args[1] and new.args[0] - new.args[1] >= old.args[0] - old.args[1]
    if old.root == new.root and old.root in ("TIMESTAMP", "TIMESTAMP_LTZ", "TIME"):
        return new.args[0] >= old.args[0]
    return old.root == new.root and old.args == new.args


def _holds_integer(new: AtomicType, digits: int) -> bool:
    if new.root in _INTEGERS:
        return _INTEGERS[new.root] >= digits
    if new.root == "DECIMAL":
        return new.args[0] - new.args[1] >= digits
    return (new.root == "DOUBLE" and digits <= 10) or (new.root == "FLOAT" and digits <= 5)


def _length_holds(new: AtomicType, old: AtomicType, *, fixed: str, endless: str) -> bool:
    if new.root == endless:
        return old.root != fixed or old.root == new.root
    if old.root == endless or new.root == fixed:
        return old == replace(new, nullable=old.nullable)
    return new.args[0] >= old.args[0] and old.root != fixed
