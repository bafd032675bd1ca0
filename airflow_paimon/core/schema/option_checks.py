"""Checks table options for values that no Paimon engine accepts, before a schema is written. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions, parse_duration, parse_size

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "merge-engine": ("deduplicate", "partial-update", "aggregation", "first-row"),
    "changelog-producer": ("none", "input", "full-compaction", "lookup"),
    "file.format": ("parquet", "orc", "avro", "csv", "json", "text", "row", "lance", "vortex", "blob"),
    "sequence.field.sort-order": ("ascending", "descending"),
}
_FLAGS = (
    "write-only",
    "deletion-vectors.enabled",
    "row-tracking.enabled",
    "data-evolution.enabled",
    "ignore-delete",
    "chain-table.enabled",
    "partition.legacy-name",
    "dynamic-partition-overwrite",
)
_ROW_OPTIONS = ("row-tracking.enabled", "data-evolution.enabled")
_ROW_COLUMNS = frozenset({"_ROW_ID", "_SEQUENCE_NUMBER"})
_NUMBERS = ("num-levels", "num-sorted-run.compaction-trigger", "manifest.merge-min-count", "snapshot.num-retained.min")
_SIZES = ("target-file-size", "manifest.target-file-size")
_DURATIONS = ("snapshot.time-retained", "partition.expiration-time", "tag.default-time-retained")
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
    elif key in _CHOICES and value.lower() not in _CHOICES[key]:
        raise _refusal(key, value, f"one of {', '.join(_CHOICES[key])}")
    elif key in _FLAGS and value.lower() not in ("true", "false"):
        raise _refusal(key, value, "true or false")
    elif key in _NUMBERS:
        _at_least_one(schema, key)
    elif key in _SIZES:
        _parsed(parse_size, key, value)
    elif key in _DURATIONS:
        _parsed(parse_duration, key, value)
    elif key in _COLUMN_LISTS:
        _check_columns(schema, key, value)


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


def _parsed(parse: Callable[[str, str], object], key: str, value: str) -> None:
    parse(value, f"Table option {key}")


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
