"""What a Hive metastore holds of a Paimon table: where it lies, and a copy of its columns and options.

Written as Paimon's ``HiveCatalog`` of release 2.0.0 does, so that Hive, Spark and Flink find the table as Java's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from airflow_paimon.core.catalogs.table_store import properties
from airflow_paimon.core.catalogs.thrift import Struct, Value, flag, i32, structure, structures, text, text_map, texts
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType

_NAME, _DATABASE, _OWNER, _CREATED, _ACCESSED, _RETENTION, _STORAGE, _PARTITION_KEYS, _PARAMETERS = range(1, 10)
_TABLE_TYPE = 12
_COLUMNS, _LOCATION, _INPUT_FORMAT, _OUTPUT_FORMAT, _COMPRESSED, _BUCKETS, _SERDE = range(1, 8)
_BUCKET_COLUMNS, _SORT_COLUMNS, _STORAGE_PARAMETERS = 8, 9, 10
_DATABASE_LOCATION, _DATABASE_PARAMETERS = 3, 4
"""Ids of the fields of ``Table``, ``StorageDescriptor`` and ``Database``."""

_INPUT_CLASS = "org.apache.paimon.hive.mapred.PaimonInputFormat"
_OUTPUT_CLASS = "org.apache.paimon.hive.mapred.PaimonOutputFormat"
_SERDE_CLASS = "org.apache.paimon.hive.PaimonSerDe"
_HANDLER_CLASS = "org.apache.paimon.hive.PaimonStorageHandler"
_LOCATION_PARAMETER = "paimon_location"
_MARKS = {"table_type": "PAIMON", "storage_handler": _HANDLER_CLASS}
_EXTERNAL = "EXTERNAL"
_COMMENT = "comment"
_HIVE_PREFIX = "hive."
_ALWAYS = ("partition.expiration-time", "data-file.path-directory")
_LONGEST = {"CHAR": 255, "VARCHAR": 65535}
_LONGEST_COMMENT = 255
_TYPES = {
    "BOOLEAN": "boolean", "TINYINT": "tinyint", "SMALLINT": "smallint", "INT": "int", "BIGINT": "bigint",
    "FLOAT": "float", "DOUBLE": "double", "STRING": "string", "BINARY": "binary", "VARBINARY": "binary",
    "BYTES": "binary", "BLOB": "binary", "DATE": "date", "TIME": "string", "TIMESTAMP": "timestamp",
    "TIMESTAMP_LTZ": "timestamp", "VARIANT": "struct<value:binary,metadata:binary>",
}  # fmt: skip
_WITH_ZONE = "timestamp with local time zone"
"""What Hive 3 has for TIMESTAMP_LTZ, and Hive 2 has not."""


@dataclass(frozen=True, slots=True)
class Copying:
    """``all_options``: Paimon's ``sync-all-properties``. ``in_properties``: its ``location-in-properties``."""

    all_options: bool
    in_properties: bool
    external: bool


def is_paimon(table: Struct) -> bool:
    """Whether a ``Table`` is Paimon's."""
    marked = parameters(table).get("table_type", "").upper() == _MARKS["table_type"]
    return marked or _of_storage(table, _INPUT_FORMAT) == _INPUT_CLASS


def is_partitioned(table: Struct) -> bool:
    """Whether the metastore lists the partitions of a ``Table``."""
    return _PARTITION_KEYS in table and bool(table[_PARTITION_KEYS].value.values)


def described(table: Struct) -> str:
    """What a ``Table`` that is not Paimon's is, for messages."""
    kind = table[_TABLE_TYPE].value if _TABLE_TYPE in table else "table"
    reader = _of_storage(table, _INPUT_FORMAT) or "none"
    return f"{kind.lower().replace('_', ' ')} with the input format {reader}"


def name(table: Struct) -> str:
    return str(table[_NAME].value)


def location(table: Struct) -> str | None:
    """Return where the table's folder is."""
    return parameters(table).get(_LOCATION_PARAMETER) or _of_storage(table, _LOCATION)


def database_location(database: Struct) -> str | None:
    """Return where the folders of new tables are."""
    stored = database.get(_DATABASE_PARAMETERS)
    named = stored.value.values.get(_LOCATION_PARAMETER) if stored else None
    default = database.get(_DATABASE_LOCATION)
    return named or (default.value if default else None)


def parameters(table: Struct) -> dict[str, str]:
    return dict(table[_PARAMETERS].value.values) if _PARAMETERS in table else {}


def columns(table: Struct) -> list[tuple[str, str, str]]:
    """Return name, type and comment of each column, without those that the metastore holds as partition keys."""
    storage = table.get(_STORAGE)
    listed = storage.value.get(_COLUMNS) if storage else None
    return [_column(each) for each in (listed.value.values if listed else ())]


def new_table(
    database: str, table: str, schema: TableSchema, folder: str, copying: Copying, owner: str, now_s: int
) -> Struct:
    """Return the ``Table`` of a new table."""
    options = _copied(schema, copying) | _MARKS
    external = copying.external or schema.options.get("external", schema.options.get(_EXTERNAL, "")).upper() == "TRUE"
    if external:
        options[_EXTERNAL] = "TRUE"
    if copying.in_properties:
        options[_LOCATION_PARAMETER] = folder
    storage: dict[int, Value] = {
        _COLUMNS: structures([_field(f) for f in schema.fields]),
        **({} if copying.in_properties else {_LOCATION: text(folder)}),
        _INPUT_FORMAT: text(_INPUT_CLASS),
        _OUTPUT_FORMAT: text(_OUTPUT_CLASS),
        _COMPRESSED: flag(False),
        _BUCKETS: i32(0),
        _SERDE: structure({2: text(_SERDE_CLASS), 3: text_map({})}),
        _BUCKET_COLUMNS: texts([]),
        _SORT_COLUMNS: structures([]),
        _STORAGE_PARAMETERS: text_map({}),
    }
    return {
        _NAME: text(table),
        _DATABASE: text(database),
        _OWNER: text(owner),
        _CREATED: i32(now_s),
        _ACCESSED: i32(now_s),
        _RETENTION: i32(2**31 - 1),
        _STORAGE: structure(storage),
        _PARTITION_KEYS: structures([]),
        _PARAMETERS: text_map(options),
        _TABLE_TYPE: text("EXTERNAL_TABLE" if external else "MANAGED_TABLE"),
    }


def altered(table: Struct, schema: TableSchema, copying: Copying, gone: Collection[str]) -> Struct:
    """Return a ``Table`` with the columns and options of a schema; all else stays. ``gone``: options that earlier
    schemas had.
    """
    kept = {k: v for k, v in parameters(table).items() if k not in _dropped(schema, copying, gone)}
    storage = dict(table[_STORAGE].value)
    now = {column[0]: column for column in columns(table)}
    fields = []
    for field in _shown(table, schema):
        wanted = _field(field)
        have = now.get(field.name.lower())
        if have is not None and _same_type(have[1], wanted[2].value):
            wanted[2] = text(have[1])
        fields.append(wanted)
    storage[_COLUMNS] = structures(fields)
    return {
        **table, _STORAGE: structure(storage), _PARAMETERS: text_map(kept | _copied(schema, copying)),
    }  # fmt: skip


def lag(table: Struct, schema: TableSchema, copying: Copying, gone: Collection[str]) -> list[str]:
    """Say what a ``Table`` shows otherwise than the schema: names of columns, options."""
    have, wanted = columns(table), [_column(_field(f)) for f in _shown(table, schema)]
    found = []
    if [c[0] for c in have] != [c[0] for c in wanted]:
        found.append(f"columns {', '.join(c[0] for c in have)}")
    else:
        changed = [h[0] for h, w in zip(have, wanted, strict=True) if not _same_type(h[1], w[1]) or h[2] != w[2]]
        found += [f"type or comment of {name}" for name in changed]
    held = parameters(table)
    options = [k for k, v in _copied(schema, copying).items() if held.get(k) != v]
    options += [k for k in _dropped(schema, copying, gone) if k in held]
    return found + [f"option {name}" for name in sorted(options)]


def hive_type(data_type: DataType) -> str:
    """Return Hive's name of a type. Types that Hive doesn't have are strings, bytes or lists, as in Java."""
    match data_type:
        case AtomicType(root, (length,)) if root in _LONGEST:
            return f"{root.lower()}({length})" if length <= _LONGEST[root] else "string"
        case AtomicType("DECIMAL", (precision, scale)):
            return f"decimal({precision},{scale})"
        case AtomicType(root):
            return _TYPES.get(root, "binary")
        case ArrayType(element, root="MULTISET"):
            return f"map<{hive_type(element)},int>"
        case ArrayType(element):
            return f"array<{hive_type(element)}>"
        case MapType(key, value):
            return f"map<{hive_type(key)},{hive_type(value)}>"
        case RowType(fields):
            return f"struct<{','.join(f'{f.name}:{hive_type(f.type)}' for f in fields)}>"


def _copied(schema: TableSchema, copying: Copying) -> dict[str, str]:
    """The parameters that follow from a schema."""
    if copying.all_options:
        out = properties(schema)
    else:
        out = {k.removeprefix(_HIVE_PREFIX): v for k, v in schema.options.items() if k.startswith(_HIVE_PREFIX)}
        out |= {k: schema.options[k] for k in _ALWAYS if k in schema.options}
    if schema.comment is not None:
        out[_COMMENT] = schema.comment
    return out


def _dropped(schema: TableSchema, copying: Copying, gone: Collection[str]) -> set[str]:
    """The parameters of options that there are no more."""
    mine = {_COMMENT, _EXTERNAL, _LOCATION_PARAMETER, *_MARKS}
    return set(gone) - mine - _copied(schema, copying).keys() if copying.all_options else set()


def _shown(table: Struct, schema: TableSchema) -> list[DataField]:
    """The fields of a schema but for those that the metastore holds as partition keys."""
    listed = table.get(_PARTITION_KEYS)
    keys = {_column(each)[0] for each in (listed.value.values if listed else ())}
    return [f for f in schema.fields if f.name.lower() not in keys]


def _field(field: DataField) -> dict[int, Value]:
    """A ``FieldSchema``. The metastore's database holds 256 characters of a comment."""
    out = {1: text(field.name), 2: text(hive_type(field.type))}
    if field.description is not None:
        comment = field.description.replace("\n", " ").replace("\r", " ")
        out[3] = text(comment if len(comment) <= _LONGEST_COMMENT else comment[: _LONGEST_COMMENT - 3] + "...")
    return out


def _column(field: Mapping[int, Value]) -> tuple[str, str, str]:
    comment = field.get(3)
    return field[1].value.lower(), field[2].value.lower(), comment.value if comment else ""


def _same_type(one: str, other: str) -> bool:
    return one.replace(_WITH_ZONE, "timestamp") == other.lower().replace(_WITH_ZONE, "timestamp")


def _of_storage(table: Struct, number: int) -> str | None:
    storage = table.get(_STORAGE)
    found = storage.value.get(number) if storage else None
    return found.value if found else None
