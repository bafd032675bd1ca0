"""What Paimon checks of a schema each time it opens a table: with a fault none of its engines can read it (pure).

The rules are those of ``SchemaValidation``, ``TableSchema`` and the merge functions of Paimon 2.1 (its development on
2026-08-22), one function each, which yields a sentence for each fault; a sentence begins with the option or column. A
test walks ``OPENING_RULES`` and tries an example of each on both sides of it, with Paimon's Java engine beside. What
``core.table.features`` refuses to read or to write (columns of BLOB, shredded maps, files in the order of other columns
than the key, ...), and indexes of keys, are left to Paimon. The rules of chain tables are in ``core.chain.layout``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from airflow_paimon.core.format.option_lists import split_names
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.schema import file_rules, merge_rules
from airflow_paimon.core.table.merge_options import without_blanks
from airflow_paimon.core.table.option_values import value_faults
from airflow_paimon.core.table.options import READ_TOGETHER, TableOptions
from airflow_paimon.core.table.paths import POSTPONED_BUCKET

Rule = Callable[[TableSchema, TableOptions], Iterator[str]]

_NO_KEYS = frozenset({"ARRAY", "MAP", "ROW", "MULTISET", "VECTOR", "VARIANT", "GEOMETRY", "GEOGRAPHY"})
_NESTED = frozenset({"ARRAY", "MULTISET", "MAP", "ROW"})
_RESERVED = frozenset({"_VALUE_KIND", "_ROW_ID", "rowkind", "_LEVEL", "_SEQUENCE_NUMBER"})
_KEY_PREFIX = "_KEY_"
_TIMES = ("INT", "BIGINT", "TIMESTAMP", "TIMESTAMP_LTZ")
_ENDLESS = 2**31 - 1
_FIELDS, _DEFAULT_FUNCTION = "fields", "default-aggregate-function"


def opening_faults(schema: TableSchema) -> list[str]:
    """Return one sentence for each fault; none: Paimon can open the table, and parse the options when it needs them."""
    wrong = value_faults(schema.options)
    rest = replace(schema, options={k: v for k, v in schema.options.items() if k not in wrong})
    found = (rule(rest, TableOptions(rest.options)) for rule in OPENING_RULES.values())
    return list(dict.fromkeys([*wrong.values(), *chain.from_iterable(found)]))


def _key_types(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    for kind, names in (("primary key", schema.primary_keys), ("partition key", schema.partition_keys)):
        for name in names:
            if name not in schema.field_names:
                yield f"{name} is in the {kind}, and is not a column"
            elif schema.field(name).type.root in _NO_KEYS:
                yield f"{name} is of type {schema.field(name).type.root}, which no {kind} can be"


def _keys(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if schema.primary_keys and set(schema.primary_keys) <= set(schema.partition_keys):
        keys = ", ".join(schema.primary_keys)
        yield f"{keys} is the whole primary key and within the partition key: each partition would hold one row"
    if options.flag("primary-key.nullable") and not schema.primary_keys:
        yield "primary-key.nullable=true needs a primary key"


def _bucket_key(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    text = options.given("bucket-key")
    if text is not None and options.bucket == -1:
        yield f"bucket-key={text} needs a number of buckets: set bucket as well, or leave bucket-key out"
    names = options.split_names("bucket-key") if (text or "").strip() else ()
    if len(set(names)) < len(names):
        yield f"bucket-key={text} names a column twice"
    for name in names:
        if name not in schema.field_names:
            yield f"bucket-key={text} names {name!r}, which is not a column{without_blanks(name, schema)}"
        elif name in schema.partition_keys:
            yield f"bucket-key={text} names {name!r}, which is a partition column"
        elif schema.primary_keys and name not in schema.primary_keys:
            yield f"bucket-key={text} names {name!r}, which is not a column of the primary key"
        elif schema.field(name).type.root in _NESTED and options.bucket != -1:
            yield f"bucket-key={text} names {name!r} of type {schema.field(name).type.root}, which no bucket key can be"


def _bucket(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    count = options.bucket
    if count == POSTPONED_BUCKET and not schema.primary_keys:
        yield "bucket=-2 (postponed) needs a primary key"
    elif count < POSTPONED_BUCKET or count == 0:
        yield f"bucket={count} is neither a number of buckets from 1 on, nor -1 (dynamic), nor -2 (postponed)"
    elif count > 0 and not schema.bucket_keys and not schema.has_keyless_bucket:
        yield f"bucket={count} needs bucket-key as well in a table without primary key, or leave it at -1"


def _field_options(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """``fields.<columns>.<property>``: the columns go up to the first dot."""
    for key in options.raw:
        parts = key.split(".")
        if not key.startswith(_FIELDS):
            continue
        names = split_names(key, parts[1]) if len(parts) > 1 else ("",)
        for name in names:
            if name != _DEFAULT_FUNCTION and name not in schema.field_names:
                yield f"{key} is for column {name!r}, which the table doesn't have{without_blanks(name, schema)}"
        if len(parts) > 3 and len(names) == 1 and _root(schema, names[0]) == "ROW":
            yield f"{key} is for a field within column {names[0]!r}, for which Paimon has no options"


def _root(schema: TableSchema, name: str) -> str | None:
    return schema.field(name).type.root if name in schema.field_names else None


def _sequence_field(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    names = options.split_names("sequence.field")
    for name in names:
        if name not in schema.field_names:
            yield f"sequence.field names {name!r}, which is not a column"
        if names.count(name) > 1:
            yield f"sequence.field names {name!r} twice"
        if options.given(f"fields.{name}.aggregate-function") is not None:
            yield f"fields.{name}.aggregate-function is for a column of sequence.field, which orders rows"
    if names and options.merge_engine == "first-row":
        yield "sequence.field doesn't go with merge-engine=first-row, which keeps the row that came first"
    if names and schema.crosses_partitions:
        yield (
            f"sequence.field doesn't go with a primary key ({', '.join(schema.primary_keys)}) that lacks partition "
            f"columns ({', '.join(schema.partition_keys)})"
        )


def _limits(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if options.number("target-file-row-num", 1) < 1:
        yield f"target-file-row-num={options.given('target-file-row-num')} must be 1 at least"
    for key, least in (("num-sorted-run.compaction-trigger", 1), ("num-levels", 2)):
        if schema.primary_keys and options.number(key, least) < least:
            yield f"{key}={options.given(key)} must be {least} at least"
    pages = 3 * max(1, options.size("page-size", "64 kb"))
    if schema.primary_keys and options.size("write-buffer-size", "256 mb") < pages:
        yield f"write-buffer-size={options.given('write-buffer-size')} must have room for 3 pages of page-size"
    low, high = 10, _ENDLESS
    for kept in ("snapshot", "changelog"):
        low = options.number(f"{kept}.num-retained.min", low)
        high = options.number(f"{kept}.num-retained.max", high)
        if low < 1 or low > high:
            yield f"{kept}.num-retained.min={low} must be from 1 to {kept}.num-retained.max={high}; set both"


def _changelogs(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    producer = options.text("changelog-producer", "none").lower()
    commits = options.given("full-compaction.delta-commits") is not None
    overwrites = options.flag("streaming-read-overwrite")
    if not schema.primary_keys and producer != "none":
        yield f"changelog-producer={producer} needs a primary key"
    if options.merge_engine == "first-row" and producer not in ("none", "lookup"):
        yield f"changelog-producer={producer} doesn't go with merge-engine=first-row"
    if commits and producer == "lookup":
        yield "full-compaction.delta-commits doesn't go with changelog-producer=lookup"
    if commits and not schema.primary_keys and options.bucket == -1:
        yield "full-compaction.delta-commits needs a primary key, or a number of buckets"
    if overwrites and producer in ("full-compaction", "lookup"):
        yield f"streaming-read-overwrite=true doesn't go with changelog-producer={producer}"
    if overwrites and not schema.primary_keys:
        yield "streaming-read-overwrite=true needs a primary key; streaming-read-append-overwrite is for other tables"


def _vectors(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if not options.deletion_vectors:
        return
    if options.text("changelog-producer").lower() == "full-compaction":
        yield "changelog-producer=full-compaction doesn't go with deletion-vectors.enabled"
    if options.merge_engine == "first-row" and not options.flag("pk-clustering-override"):
        yield "deletion-vectors.enabled=true doesn't go with merge-engine=first-row, which deletes nothing"


def _column_names(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    for name in schema.field_names:
        if name in _RESERVED or name.startswith(_KEY_PREFIX):
            yield f"{name} is a column name that Paimon keeps for itself"


def _named_columns(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    kind = options.given("rowkind.field")
    if kind is not None and kind not in schema.field_names:
        yield f"rowkind.field={kind!r} is not a column{without_blanks(kind, schema)}"
    time = options.given("record-level.time-field")
    if time is not None and _root(schema, time) not in _TIMES:
        yield f"record-level.time-field={time!r} must name a column of type INT, BIGINT or TIMESTAMP"
    if time is None and schema.primary_keys and options.given("record-level.expire-time") is not None:
        yield "record-level.expire-time needs record-level.time-field"


def _branches_read_together(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if all(options.text(key) for key in READ_TOGETHER):
        yield f"{READ_TOGETHER[0]} doesn't go with {READ_TOGETHER[1]}; reset one of them"


def _row_tracking(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if options.row_tracking and schema.primary_keys:
        yield "row-tracking.enabled=true doesn't go with a primary key: only append tables have row ids"
    if options.row_tracking and options.bucket != -1:
        yield f"row-tracking.enabled=true needs bucket=-1, not {options.bucket}"
    if options.data_evolution and not options.row_tracking:
        yield "data-evolution.enabled=true needs row-tracking.enabled=true as well"
    if options.data_evolution and options.flag("clustering.incremental"):
        yield "data-evolution.enabled=true doesn't go with clustering.incremental=true"


def _order_of_files(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if options.flag("clustering.incremental"):
        if schema.primary_keys:
            yield "clustering.incremental=true is for tables without a primary key"
        if options.bucket != -1 and options.flag("bucket-append-ordered", True):
            yield "clustering.incremental=true needs bucket-append-ordered=false with a number of buckets"
        if options.bucket != -1 and options.deletion_vectors:
            yield "clustering.incremental=true doesn't go with deletion-vectors.enabled=true and a number of buckets"
    if options.flag("manifest-sort.enabled"):
        if not schema.partition_keys and not options.data_evolution:
            yield "manifest-sort.enabled=true is for tables with partitions"
        field = options.given("manifest-sort.partition-field")
        if field and field not in schema.partition_keys:
            yield f"manifest-sort.partition-field={field!r} is not a partition column"


OPENING_RULES: Mapping[str, Rule] = {
    "key types": _key_types,
    "keys": _keys,
    "bucket key": _bucket_key,
    "buckets": _bucket,
    "branches read together": _branches_read_together,
    "options of columns": _field_options,
    "sequence field": _sequence_field,
    "sequence groups": merge_rules.sequence_groups,
    "removals": merge_rules.removals,
    "functions": merge_rules.functions,
    "changelogs": _changelogs,
    "limits": _limits,
    "file types": file_rules.file_types,
    "compressions": file_rules.compressions,
    "file names": file_rules.file_names,
    "column names": _column_names,
    "named columns": _named_columns,
    "deletion vectors": _vectors,
    "file indexes": file_rules.file_indexes,
    "row tracking": _row_tracking,
    "order of files": _order_of_files,
}
