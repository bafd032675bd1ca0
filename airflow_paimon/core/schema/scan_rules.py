"""What Paimon checks, each time it opens a table, of options that say where reads start (pure).

See ``opening_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import READ_TOGETHER, TableOptions

_MILLIS, _TIME, _FILE_TIME = "scan.timestamp-millis", "scan.timestamp", "scan.file-creation-time-millis"
_SNAPSHOT, _TAG, _WATERMARK = "scan.snapshot-id", "scan.tag-name", "scan.watermark"
_VERSION, _CREATION = "scan.version", "scan.creation-time-millis"
_BETWEEN, _BETWEEN_TIMES, _TO_TAG = "incremental-between", "incremental-between-timestamp", "incremental-to-auto-tag"
_RANGES = (_BETWEEN_TIMES, _BETWEEN, _TO_TAG)


@dataclass(frozen=True, slots=True)
class _Start:
    """Exactly one of ``one_of`` is set, and none of ``none_of``."""

    one_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()


_STARTS: Mapping[str, _Start] = {
    "from-timestamp": _Start((_MILLIS, _TIME), (_SNAPSHOT, _FILE_TIME, _TAG, *_RANGES)),
    "from-snapshot": _Start((_SNAPSHOT, _TAG, _WATERMARK), (_MILLIS, _TIME, _FILE_TIME, *_RANGES)),
    "incremental": _Start(_RANGES, (_SNAPSHOT, _MILLIS, _FILE_TIME, _TIME, _TAG)),
    "from-snapshot-full": _Start((_SNAPSHOT,), (_MILLIS, _TIME, _FILE_TIME, _TAG, *_RANGES)),
    "from-file-creation-time": _Start((_FILE_TIME,), (_SNAPSHOT, _MILLIS, _TAG, *_RANGES)),
    "latest-delta": _Start(
        (),
        (
            *(_MILLIS, _FILE_TIME, _CREATION, _TIME, _SNAPSHOT, _TAG, _WATERMARK, _VERSION, *_RANGES),
            *("incremental-between-scan-mode", "incremental-between-tag-to-snapshot"),
        ),
    ),
}
_OTHER = _Start((), (_MILLIS, _FILE_TIME, _TIME, _SNAPSHOT, _TAG, *_RANGES))
_IMPLIED = {
    "from-timestamp": (_MILLIS, _TIME),
    "from-snapshot": (_SNAPSHOT, _TAG, _WATERMARK, _VERSION),
    "from-file-creation-time": (_FILE_TIME,),
    "from-creation-timestamp": (_CREATION,),
    "incremental": (_BETWEEN, _BETWEEN_TIMES),
}
"""The mode that follows from an option, the first one first, where ``scan.mode`` says none."""


def start_of_reads(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """A version counts as what Paimon makes of it when it opens the table: a snapshot."""
    yield from _start(options)
    if schema.crosses_partitions and options.bucket == -1 and (found := _given(options, _OTHER.none_of)):
        yield f"{found[0]} doesn't go with a primary key without the partition columns: writers read all that there is"
    if options.given(_VERSION) is not None:
        rest = {key: value for key, value in options.raw.items() if key != _VERSION}
        yield from _start(TableOptions({**rest, _SNAPSHOT: "1"}))


def _start(options: TableOptions) -> Iterator[str]:
    mode = options.text("scan.mode", "default").lower()
    if mode == "default":
        mode = next((m for m, keys in _IMPLIED.items() if _given(options, keys)), "latest-full")
    start = _STARTS.get(mode, _OTHER)
    found, strange = _given(options, start.one_of), _given(options, start.none_of)
    if start.one_of and len(found) != 1:
        there = f"; there are {', '.join(found)}" if found else ""
        yield f"scan.mode={mode} needs one of {', '.join(start.one_of)}{there}"
    if strange:
        yield f"{strange[0]} doesn't go with scan.mode={mode}; reset it"


def branches_read_together(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if all(options.text(key) for key in READ_TOGETHER):
        yield f"{READ_TOGETHER[0]} doesn't go with {READ_TOGETHER[1]}; reset one of them"


def _given(options: TableOptions, keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if options.given(key) is not None]
