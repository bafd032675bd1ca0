"""What Paimon checks of kinds of tables each time it opens one: with row ids, files beside the others, an order of
their files, or an index of keys (pure). See ``opening_rules``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, DataField, DataType, MapType, types_within
from airflow_paimon.core.table.merge_options import LAST_VALUE, configured_function, group_fields, protected_columns
from airflow_paimon.core.table.option_values import map_of
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import POSTPONED_BUCKET

_GEO = frozenset({"GEOMETRY", "GEOGRAPHY"})
_TEXTS = frozenset({"CHAR", "VARCHAR", "STRING"})
_VECTORS, _ON_READ = "deletion-vectors.enabled", "deletion-vectors.merge-on-read"
_CLUSTERED, _ORDERING = "pk-clustering-override", "sequence.snapshot-ordering"
_SORTED_INDEXES = ("pk-btree.index.columns", "pk-bitmap.index.columns", "pk-multivalue.index.columns")
_ONE_COLUMN_INDEXES = {"pk-vector.index.columns": frozenset({"VECTOR"}), "pk-full-text.index.columns": _TEXTS}
_LAYOUT = ".map.storage-layout"
INLINE_BLOBS = ("blob-descriptor-field", "blob-view-field")


def is_blob(data_type: DataType) -> bool:
    """Whether values of this type lie in files of their own: BLOB, or an array or a map of it."""
    inner = data_type.element if isinstance(data_type, ArrayType) and data_type.root == "ARRAY" else data_type
    return (inner.value if isinstance(inner, MapType) else inner).root == "BLOB"


def row_tracking(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if options.row_tracking and schema.primary_keys:
        yield "row-tracking.enabled=true doesn't go with a primary key: only append tables have row ids"
    if options.row_tracking and options.bucket != -1:
        yield f"row-tracking.enabled=true needs bucket=-1, not {options.bucket}"
    if options.data_evolution and not options.row_tracking:
        yield "data-evolution.enabled=true needs row-tracking.enabled=true as well"
    if options.data_evolution and options.flag("clustering.incremental"):
        yield "data-evolution.enabled=true doesn't go with clustering.incremental=true"
    apart = [f.name for f in schema.fields if f.type.root == "VECTOR"] if options.given("vector.file.format") else []
    if options.given("vector.file.format") is not None and not options.data_evolution:
        yield "vector.file.format needs data-evolution.enabled=true"
    if apart and len(apart) == len(schema.fields):
        yield "vector.file.format needs a column that is not a VECTOR"


def blobs(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    own = [f for f in schema.fields if is_blob(f.type)]
    plain = {f.name for f in own if f.type.root == "BLOB"}
    for field in schema.fields:
        if not is_blob(field.type) and any(t.root == "BLOB" for t in types_within(field.type)):
            yield f"{field.name} is of type {field.type}: BLOB is a column's type, or that of a column's values"
    for key, known in (("blob-field", {f.name for f in own}), ("blob-descriptor-field", plain),
                       ("blob-view-field", plain)):  # fmt: skip
        for name in options.names(key) if key != "blob-field" else options.split_names(key):
            if name not in known:
                yield f"{key} names {name!r}, which is not a column of type BLOB"
    for name in set(options.names("blob-view-field")) & set(options.names("blob-descriptor-field")):
        yield f"blob-view-field names {name!r}, which is in blob-descriptor-field as well"
    if own and not schema.primary_keys and not options.data_evolution:
        yield f"{own[0].name} is of type {own[0].type}, which needs data-evolution.enabled=true"
    if own and len(own) == len(schema.fields):
        yield f"{own[0].name} is of type {own[0].type}; a table needs a column of another type as well"
    yield from _blobs_of_keys(schema, options, own)


def _blobs_of_keys(schema: TableSchema, options: TableOptions, own: list[DataField]) -> Iterator[str]:
    inline = {name for key in INLINE_BLOBS for name in options.names(key)}
    used = {*schema.partition_keys}
    managed = {f.name for f in own if f.name not in inline} if schema.primary_keys else set()
    if managed:
        used |= {*schema.primary_keys, *schema.bucket_keys, *options.sequence_fields}
        yield from _managed_blobs(options, min(managed))
    ordering = {name for key in options.raw for name in group_fields(key)}
    for field in own:
        if field.name in used or (options.merge_engine == "partial-update" and field.name in ordering):
            yield f"{field.name} is of type {field.type}, which is neither a key nor orders rows"
        elif field.name in managed & protected_columns(schema).keys() and not options.ignore_delete:
            function = configured_function(options, field.name)
            if function not in (None, LAST_VALUE) and not options.flag(f"fields.{field.name}.ignore-retract"):
                yield f"fields.{field.name}.aggregate-function={function} needs ignore-retract, as it is a BLOB"


def _managed_blobs(options: TableOptions, name: str) -> Iterator[str]:
    if options.merge_engine == "aggregation":
        yield f"{name} is of type BLOB, which doesn't go with merge-engine=aggregation"
    if options.text("changelog-producer", "none").lower() != "none":
        yield f"{name} is of type BLOB, which doesn't go with a changelog-producer"
    for key in ("data-file.external-paths", _CLUSTERED):
        if options.flag(key) if key == _CLUSTERED else options.given(key) is not None:
            yield f"{name} is of type BLOB, which doesn't go with {key}"


def geography(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    found = [f.name for f in schema.fields if any(t.root in _GEO for t in types_within(f.type))]
    if not found:
        return
    formats = {
        "file.format": options.file_format,
        "changelog-file.format": options.text("changelog-file.format", "parquet").lower(),
    }
    levels = [("file.format.per.level", name) for name in map_of(options.text("file.format.per.level")).values()]
    for key, value in (*formats.items(), *levels):
        if value.lower() != "parquet":
            yield f"{key}={value} can't store column {found[0]!r}, which is or has a GEOMETRY or GEOGRAPHY; use parquet"
    used = {*options.names("clustering.columns"), *schema.bucket_keys, *options.sequence_fields}
    for name in found:
        if name in used:
            yield f"{name} is or has a GEOMETRY or GEOGRAPHY, which is neither a key nor orders rows"


def order_of_files(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """``clustering.incremental``, ``pk-clustering-override`` and ``manifest-sort``."""
    if options.flag("clustering.incremental"):
        if schema.primary_keys:
            yield "clustering.incremental=true is for tables without a primary key"
        if options.bucket != -1 and options.flag("bucket-append-ordered", True):
            yield "clustering.incremental=true needs bucket-append-ordered=false with a number of buckets"
        if options.bucket != -1 and options.deletion_vectors:
            yield f"clustering.incremental=true doesn't go with {_VECTORS}=true and a number of buckets"
    if options.flag(_CLUSTERED):
        yield from _clustered(options)
    if options.flag("manifest-sort.enabled"):
        if not schema.partition_keys and not options.data_evolution:
            yield "manifest-sort.enabled=true is for tables with partitions"
        field = options.given("manifest-sort.partition-field")
        if field and field not in schema.partition_keys:
            yield f"manifest-sort.partition-field={field!r} is not a partition column"


def _clustered(options: TableOptions) -> Iterator[str]:
    engine, producer = options.merge_engine, options.text("changelog-producer", "none").lower()
    if not options.names("clustering.columns"):
        yield f"{_CLUSTERED}=true needs clustering.columns"
    if engine not in ("deduplicate", "first-row"):
        yield f"{_CLUSTERED}=true doesn't go with merge-engine={engine}"
    elif engine != "first-row" and not options.deletion_vectors:
        yield f"{_CLUSTERED}=true needs {_VECTORS}=true"
    if producer not in ("none", "input"):
        yield f"{_CLUSTERED}=true doesn't go with changelog-producer={producer}"
    for key in ("record-level.expire-time", "sequence.field"):
        if options.given(key) is not None:
            yield f"{_CLUSTERED}=true doesn't go with {key}"


def sequence_numbers(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """Options about the numbers of rows of tables with a primary key."""
    for key in (_ORDERING, "table-read.sequence-number.enabled"):
        if options.flag(key) and not schema.primary_keys:
            yield f"{key}=true needs a primary key"
    if options.flag(_ORDERING) and options.given("sequence.field") is not None:
        yield f"{_ORDERING}=true doesn't go with sequence.field"
    if options.flag(_ORDERING) and not options.write_only:
        yield f"{_ORDERING}=true needs write-only=true"


def key_indexes(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    keys = [key for key in (*_SORTED_INDEXES, *_ONE_COLUMN_INDEXES) if options.given(key) is not None]
    columns = Counter(name for key in keys for name in options.split_names(key))
    for name, count in columns.items():
        if count > 1:
            yield f"{keys[0]} names column {name!r}, which has an index of keys already"
    for key in keys:
        yield from (f"{key} {text}" for text in _index_needs(schema, options, key))
        types = _ONE_COLUMN_INDEXES.get(key)
        if types is not None and len(options.split_names(key)) != 1:
            yield f"{key} must name one column"
        for name in options.split_names(key):
            found = schema.field(name).type.root if name in schema.field_names else None
            if found is None or (types is not None and found not in types):
                yield f"{key} names {name!r}, which is not a column" + (f" of type {min(types)}" if types else "")


def _index_needs(schema: TableSchema, options: TableOptions, key: str) -> Iterator[str]:
    if not schema.primary_keys:
        yield "needs a primary key"
    if not options.deletion_vectors and (key in _SORTED_INDEXES or options.merge_engine != "first-row"):
        yield f"needs {_VECTORS}=true"
    if options.deletion_vectors and options.flag(_ON_READ):
        yield f"doesn't go with {_ON_READ}=true"
    if options.bucket == -1:
        yield "needs a number of buckets, or bucket=-2"
    if options.flag(_CLUSTERED):
        yield f"doesn't go with {_CLUSTERED}=true"
    if key == "pk-vector.index.columns":
        for name in options.split_names(key):
            if not options.text(f"fields.{name}.pk-vector.index.type"):
                yield f"needs fields.{name}.pk-vector.index.type"


def map_layouts(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    shredded = False
    for key in options.raw:
        if not key.startswith("fields.") or not key.endswith(_LAYOUT):
            continue
        name = key.removeprefix("fields.").removesuffix(_LAYOUT)
        found = schema.field(name).type if name in schema.field_names else None
        if not isinstance(found, MapType):
            yield f"{key} is for {name!r}, which is not a column of type MAP"
        elif options.text(key).lower() == "shared-shredding":
            shredded = True
            if found.key.root not in ("STRING", "VARCHAR") or found.key.nullable:
                yield f"{key}=shared-shredding needs a MAP with keys of type STRING NOT NULL"
            if any(t.root in ("BLOB", "VECTOR") for t in types_within(found.value)):
                yield f"{key}=shared-shredding doesn't go with values of type {found.value}"
            if options.number(most := f"fields.{name}.map.shared-shredding.max-columns", 1) < 1:
                yield f"{most} must be 1 at least"
    if shredded:
        yield from _shredded(schema, options)


def _shredded(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    levels = map_of(options.text("file.format.per.level")), map_of(options.text("file.compression.per.level"))
    for key, values, allowed in (
        ("file.format", (options.file_format, *levels[0].values()), ("parquet", "orc")),
        ("changelog-file.format", (options.text("changelog-file.format"),), ("parquet", "orc", "")),
        ("file.compression", (options.text("file.compression"), *levels[1].values()), ("none", "lz4", "zstd", "")),
    ):
        yield from (f"{key}={v} doesn't go with shared-shredding" for v in values if v.lower() not in allowed)
    if any(t.root in ("VARIANT", "MULTISET") for f in schema.fields for t in types_within(f.type)):
        yield "map.storage-layout=shared-shredding doesn't go with columns of type VARIANT or MULTISET"
    if options.bucket == POSTPONED_BUCKET:
        yield "map.storage-layout=shared-shredding doesn't go with bucket=-2"
