"""What Paimon checks of a schema each time it opens a table: with a fault, none of its engines can read it (pure).

The rules are those of release 2.0 (its ``SchemaValidation``), as far as this package's tables can break them; 1.4 has
nearly all of them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType
from airflow_paimon.core.table.options import TableOptions

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
    low, high = options.number("snapshot.num-retained.min", 10), options.number("snapshot.num-retained.max", _ENDLESS)
    if low < 1 or low > high:
        yield f"snapshot.num-retained.min={low} must be from 1 to snapshot.num-retained.max={high}; set both"
    low = options.number("changelog.num-retained.min", low)
    high = options.number("changelog.num-retained.max", high)
    if low < 1 or low > high:
        yield f"changelog.num-retained.min={low} must be from 1 to changelog.num-retained.max={high}; set both"


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
