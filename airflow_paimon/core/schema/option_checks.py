"""Checks of table options and schemas before they are written (pure): values that no Paimon engine accepts, and what
Paimon checks of a schema each time it opens a table, where with a fault none of its engines can read it.

The rules for opening are those of release 2.0 (its ``SchemaValidation``), as far as this package's tables can break
them; 1.4 has nearly all of them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from airflow_paimon.core.checks.columns import check_columns, may_name
from airflow_paimon.core.checks.rules import parse_rules_text
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType
from airflow_paimon.core.table.options import (
    FOUR_EYES_OPTION,
    RECORD_SQL_OPTION,
    REQUIRED_CHECKS_OPTION,
    TableOptions,
    parse_duration,
    parse_size,
)

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "merge-engine": ("deduplicate", "partial-update", "aggregation", "first-row"),
    "changelog-producer": ("none", "input", "full-compaction", "lookup"),
    "file.format": ("parquet", "orc", "avro", "csv", "json", "text", "row", "lance", "vortex", "blob"),
    "manifest.format": ("avro",),
    "sequence.field.sort-order": ("ascending", "descending"),
    "tag.automatic-creation": ("none", "process-time", "watermark", "batch"),
    "tag.creation-period": ("daily", "hourly", "two-hours"),
    RECORD_SQL_OPTION: ("full", "masked", "none"),
}
_LISTS = {
    "partition.mark-done-action": ("success-file", "done-partition", "mark-event", "http-report", "custom"),
}
"""Several of these, with commas; underscores are as good as dashes."""
_FLAGS = (
    "write-only",
    "deletion-vectors.enabled",
    "row-tracking.enabled",
    "data-evolution.enabled",
    "ignore-delete",
    "chain-table.enabled",
    "partition.legacy-name",
    "dynamic-partition-overwrite",
    FOUR_EYES_OPTION,
)
_ROW_OPTIONS = ("row-tracking.enabled", "data-evolution.enabled")
_ROW_COLUMNS = frozenset({"_ROW_ID", "_SEQUENCE_NUMBER"})
_NUMBERS = ("num-levels", "num-sorted-run.compaction-trigger", "manifest.merge-min-count", "snapshot.num-retained.min")
_SIZES = ("target-file-size", "manifest.target-file-size")
_DURATIONS = (
    "snapshot.time-retained", "partition.expiration-time", "tag.default-time-retained", "tag.creation-delay",
)  # fmt: skip
_COLUMN_LISTS = ("bucket-key", "sequence.field", "rowkind.field")


def check_options(schema: TableSchema, only: str | None = None) -> None:
    """Check the options that this package knows; ``only``: check just this one.

    Raises:
        InvalidInputError: names the option, its value, and what is allowed.
    """
    for key, value in schema.options.items():
        if only is None or key == only:
            _check(schema, key, value.strip())


def _check(schema: TableSchema, key: str, value: str) -> None:
    if key == "bucket":
        _check_bucket(schema)
    elif key in _ROW_OPTIONS and value.lower() == "true":
        _check_row_tracking(schema, key)
    elif key in _CHOICES or key in _LISTS:
        _check_choice(key, value)
    elif key in _FLAGS and value.lower() not in ("true", "false"):
        raise _refusal(key, value, "true or false")
    elif key in _NUMBERS:
        _at_least_one(schema, key)
    elif key in _SIZES:
        parse_size(value, f"Table option {key}")
    elif key in _DURATIONS:
        parse_duration(value, f"Table option {key}")
    elif key in _COLUMN_LISTS:
        _check_columns(schema, key, value)
    elif key == REQUIRED_CHECKS_OPTION:
        check_columns(parse_rules_text(value, f"Table option {key}"), schema, "The table")


def check_naming(schema: TableSchema, column: str) -> str | None:
    """Return the name of the first required check that names a column; None: none does, or they can't be read."""
    try:
        rules = parse_rules_text(schema.options.get(REQUIRED_CHECKS_OPTION, ""), REQUIRED_CHECKS_OPTION)
    except InvalidInputError:  # set by another engine; whoever evaluates them says it
        return None
    return next((rule.name for rule in rules if may_name(rule, column)), None)


def _check_bucket(schema: TableSchema) -> None:
    options = TableOptions(schema.options)
    count = options.bucket
    if count < -2 or count == 0:
        raise _refusal("bucket", str(count), "the number of buckets from 1 on, -1 (dynamic) or -2 (postponed)")
    if count > 0 and not schema.bucket_keys:
        raise _refusal("bucket", str(count), "-1 on a table without primary key, or set option bucket-key as well")


def _check_row_tracking(schema: TableSchema, key: str) -> None:
    options = TableOptions(schema.options)
    if schema.primary_keys or options.bucket != -1:
        raise _refusal(key, "true", "false: only append tables with bucket=-1 have row ids")
    if not options.row_tracking:
        raise _refusal(key, "true", "it together with row-tracking.enabled=true")
    taken = sorted(_ROW_COLUMNS & set(schema.field_names))
    if taken:
        raise _refusal(key, "true", f"column {taken[0]!r} another name: every row has one of its own by that name")


def _check_columns(schema: TableSchema, key: str, value: str) -> None:
    missing = [c for c in (part.strip() for part in value.split(",")) if c not in schema.field_names]
    if missing:
        raise _refusal(key, value, f"columns of the table, which are {', '.join(schema.field_names)}")


def _at_least_one(schema: TableSchema, key: str) -> None:
    if TableOptions(schema.options).number(key, 1) < 1:
        raise _refusal(key, schema.options[key], "a whole number from 1 on")


def _check_choice(key: str, value: str) -> None:
    if key in _CHOICES and value.lower() not in _CHOICES[key]:
        raise _refusal(key, value, f"one of {', '.join(_CHOICES[key])}")
    listed = {part.strip().lower().replace("_", "-") for part in value.split(",")}
    if key in _LISTS and not listed <= {*_LISTS[key]}:
        raise _refusal(key, value, f"some of {', '.join(_LISTS[key])}, separated by commas")


def _refusal(key: str, value: str, allowed: str) -> InvalidInputError:
    return InvalidInputError(f"Table option {key} can't be {value!r}; give {allowed}")


def check_same_layout(old: TableSchema, new: TableSchema, key: str, has_data: bool) -> None:
    """Check that a change of option ``key`` turns neither deletion vectors nor fixed buckets on or off in a table with
    data, which Paimon refuses as well.

    Without the option Paimon's readers ignore deletion vectors that are there; with it they skip what a primary-key
    table has not compacted. A key that lies in a fixed bucket would get a second one.

    Raises:
        InvalidInputError: it does.
    """
    before, after = TableOptions(old.options), TableOptions(new.options)
    if not has_data:
        return
    if before.deletion_vectors != after.deletion_vectors and not before.flag("deletion-vectors.modifiable"):
        raise InvalidInputError(
            f"Option {key}: on a table with data, readers would show deleted rows again or skip rows that are not "
            f"compacted yet; set it on a new table and copy the rows, or compact every partition with Paimon's "
            f"connector after setting deletion-vectors.modifiable=true"
        )
    if before.bucket != after.bucket and -1 in (before.bucket, after.bucket):
        raise InvalidInputError(
            f"Option {key}: the buckets of a table with data can't change from {before.bucket} to {after.bucket}, as "
            f"a row would be looked for in another bucket than its own; set it on a new table and copy the rows"
        )


_RESERVED = frozenset({"_VALUE_KIND", "_ROW_ID", "rowkind", "_LEVEL", "_SEQUENCE_NUMBER"})
_KEY_PREFIX = "_KEY_"
_TIMES = ("INT", "BIGINT", "TIMESTAMP", "TIMESTAMP WITH LOCAL TIME ZONE")
_MODES = frozenset({
    "default", "latest-full", "full", "latest", "compacted-full", "from-timestamp", "from-creation-timestamp",
    "from-file-creation-time", "from-snapshot", "from-snapshot-full", "incremental",
})  # fmt: skip
_ENDLESS = 2**31 - 1


def opening_faults(schema: TableSchema) -> list[str]:
    """Return one sentence for each fault; none: Paimon can open the table."""
    return [fault for rule in _RULES for fault in rule(schema, TableOptions(schema.options))]


def _names(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    for name in schema.field_names:
        if name in _RESERVED or name.startswith(_KEY_PREFIX):
            yield f"Paimon keeps the column name {name!r} for itself"


def _retention(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    low, high = 10, _ENDLESS
    for kept in ("snapshot", "changelog"):
        low = options.number(f"{kept}.num-retained.min", low)
        high = options.number(f"{kept}.num-retained.max", high)
        if low < 1 or low > high:
            yield f"{kept}.num-retained.min={low} must be from 1 to {kept}.num-retained.max={high}; set both"


def _streams(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    producer, commits = (
        options.text("changelog-producer", "none").lower(),
        options.text("full-compaction.delta-commits"),
    )
    if not schema.primary_keys and producer != "none":
        yield f"changelog-producer={producer} needs a primary key"
    if options.text("merge-engine").lower() == "first-row" and producer not in ("none", "lookup"):
        yield f"changelog-producer={producer} doesn't go with merge-engine=first-row"
    if options.deletion_vectors and producer == "full-compaction":
        yield "changelog-producer=full-compaction doesn't go with deletion-vectors.enabled"
    if commits and producer == "lookup":
        yield "full-compaction.delta-commits doesn't go with changelog-producer=lookup"
    if commits and not schema.primary_keys:
        yield "full-compaction.delta-commits needs a primary key"
    if options.flag("streaming-read-overwrite") and (
        not schema.primary_keys or producer in ("full-compaction", "lookup")
    ):
        yield "streaming-read-overwrite needs a primary key and changelog-producer none or input"


def _scan(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    mode = options.text("scan.mode", "default").lower()
    needed = {
        "from-snapshot": ("scan.snapshot-id", "scan.tag-name", "scan.watermark", "scan.version"),
        "from-snapshot-full": ("scan.snapshot-id",),
        "from-timestamp": ("scan.timestamp", "scan.timestamp-millis"),
        "from-creation-timestamp": ("scan.creation-time-millis",),
        "from-file-creation-time": ("scan.file-creation-time-millis",),
    }.get(mode, ())
    if mode not in _MODES:
        yield f"scan.mode={mode} is none of {', '.join(sorted(_MODES))}"
    elif needed and not any(options.text(k) for k in needed):
        yield f"scan.mode={mode} needs one of {', '.join(needed)}"


def _columns(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    time = options.text("record-level.time-field")
    if time:
        found = schema.field(time).type if time in schema.field_names else None
        if not (isinstance(found, AtomicType) and str(found).split(" NOT")[0].split("(")[0] in _TIMES):
            yield f"record-level.time-field={time} must name a column of type INT, BIGINT or TIMESTAMP"
    for key, value in schema.options.items():
        is_index = key.startswith("file-index.") and key.endswith(".columns")
        is_group = key.startswith("fields.") and key.endswith(".sequence-group")
        for name in (part.strip() for part in value.split(",")) if is_index or is_group else ():
            if name and name.split("[")[0] not in schema.field_names:
                yield f"{key} names column {name!r}, which the table doesn't have"
    for key in ("blob-field", "vector-field"):
        for name in filter(None, (part.strip() for part in options.text(key).split(","))):
            if name not in schema.field_names or not str(schema.field(name).type).startswith(key.split("-")[0].upper()):
                yield f"{key} names {name!r}, which is no such column"


def _layout(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if options.flag("clustering.incremental") and schema.primary_keys:
        yield "clustering.incremental is for tables without a primary key"
    if options.bucket == -2 and not schema.primary_keys:
        yield "bucket=-2 (postponed) needs a primary key"


_RULES: tuple[Callable[[TableSchema, TableOptions], Iterator[str]], ...] = (
    _names, _retention, _streams, _scan, _columns, _layout,
)  # fmt: skip
