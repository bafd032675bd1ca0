"""Typed view of the table options that this package acts on; defaults are Paimon's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.option_lists import split_names

_AMOUNT = re.compile(r"([0-9]{1,99})\s*([a-zµ]*)", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "b": 1, "bytes": 1}
_SIZE_UNITS |= {
    unit: 2 ** (10 * power)
    for power, name in enumerate(("kibibytes", "mebibytes", "gibibytes", "tebibytes"), 1)
    for unit in (name[0], f"{name[0]}b", name)
}
_NANOSECONDS = {
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("µs", "micro", "micros", "microsecond", "microseconds"), 10**3),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 10**9),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * 10**9),
    **dict.fromkeys(("h", "hour", "hours"), 3600 * 10**9),
    **dict.fromkeys(("d", "day", "days"), 86400 * 10**9),
}


def parse_boolean(value: object, what: str) -> bool:
    """Take true or false, as a value or as a text in any case.

    Raises:
        InvalidInputError: it is neither; the message begins with ``what``.
    """
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"{what} must be true or false, got {value!r}")
    return text == "true"


READ_TOGETHER = ("scan.fallback-branch", "scan.primary-branch")
"""Options that name a branch whose partitions are read together with the table's own."""
CHAIN_BRANCHES = ("scan.fallback-snapshot-branch", "scan.fallback-delta-branch")
"""Options by which a table is read as a chain."""
NAMES_BRANCH = (*READ_TOGETHER, *CHAIN_BRANCHES)
"""All options that name a branch which is read together with the table's own."""

FALLBACK_KEYS: Mapping[str, tuple[str, ...]] = {
    "clustering.columns": ("sink.clustering.by-columns",),
    "ignore-delete": ("first-row.ignore-delete", "deduplicate.ignore-delete", "partial-update.ignore-delete"),
    "lookup-wait": ("changelog-producer.lookup-wait",),
    "scan.mode": ("log.scan",),
    "scan.timestamp-millis": ("log.scan.timestamp-millis",),
    "write-only": ("write.compaction-skip",),
}
"""Older names of options that this package acts on; they count where the option itself is not set, the first one first
(Paimon's ``ConfigOption.withFallbackKeys``)."""

OWN_OPTIONS = "airflow-paimon."
"""Table options of ours begin with this; Paimon ignores them."""
FOUR_EYES_OPTION = "airflow-paimon.four-eyes"
"""Table option of ours: ``true``: every publish, rollback and undo of main needs somebody else's approval."""
REQUIRED_CHECKS_OPTION = "airflow-paimon.required-checks"
"""Table option of ours: rules in JSON, without whose results for its snapshot no branch is published."""
MASKED_OPTION = "airflow-paimon.masked-columns"
"""Table option of ours: columns, with commas, whose values no sample, page, log or error shows."""
RECORD_SQL_OPTION = "airflow-paimon.record-sql"
"""Table option of ours: how snapshots hold the statement that made their rows: ``full``, ``masked`` or ``none``."""
BRANCH_CHANGELOG_OPTION = "airflow-paimon.branch-changelog"
"""Table option of ours: ``true``: statements on a branch write a changelog, as on main, for readers of the branch."""
UNLIMITED_RETENTION = "36500 d"
"""``snapshot.time-retained`` of a branch that starts from a snapshot, set together with it: it never expires."""
PROTECTIVE_OPTIONS: Mapping[str, str] = {
    "write-only": "true",
    "snapshot.num-retained.min": "2147483647",
    "snapshot.num-retained.max": "2147483647",
    "snapshot.time-retained": UNLIMITED_RETENTION,
    "tag.automatic-creation": "none",
}
"""Options by which no engine expires a branch that shares files: a tag alone does not stop Java (measured)."""


def parse_duration(text: str, name: str = "duration") -> timedelta:
    """Parse Paimon's duration text, e.g. ``7 d``, ``36h``, ``90 min``; a bare number is milliseconds."""
    match = _AMOUNT.fullmatch(text.strip())
    unit = _NANOSECONDS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidInputError(f"{name}: {text!r} is not a duration; write e.g. '7 d', '36 h', '90 min', '10 s'")
    try:
        return timedelta(microseconds=int(match[1]) * unit // 1000)
    except OverflowError:
        raise InvalidInputError(f"{name}: {text!r} is too long a duration") from None


def requested_duration(text: str, name: str) -> timedelta:
    """Parse a duration that an operation is given; unlike in a table option it has a unit, unless it is 0.

    Whoever gives ``7`` means days, and after 7 milliseconds what was to be kept would be gone.
    """
    bare = text.strip()
    if bare.isdecimal() and bare.strip("0"):
        raise InvalidInputError(
            f"{name}: {text!r} has no unit and would be milliseconds; write e.g. '{bare} d'",
            code="duration-without-unit",
        )
    return parse_duration(text, name)


def parse_retention(text: str) -> timedelta | None:
    """Parse a duration, or ``forever``: None."""
    return None if text.strip().lower() == "forever" else parse_duration(text, "retention")


def requested_retention(text: str, name: str) -> timedelta | None:
    """Parse a retention that an operation is given: a duration greater than 0 with its unit, or ``forever``: None."""
    found = None if text.strip().lower() == "forever" else requested_duration(text, name)
    if found is not None and found.total_seconds() <= 0:
        raise InvalidInputError(f"{name} must be greater than 0 (e.g. '7 d') or 'forever', got {text!r}")
    return found


def parse_size(text: str, name: str = "size") -> int:
    """Parse Paimon's memory size text, e.g. ``128 mb``, into bytes."""
    match = _AMOUNT.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidInputError(f"{name}: {text!r} is not a size; write e.g. '128 mb'")
    return int(match[1]) * unit


@dataclass(frozen=True, slots=True)
class TableOptions:
    """``raw`` is ``TableSchema.options``. A malformed value raises ``InvalidInputError`` naming the option."""

    raw: Mapping[str, str]

    def given(self, key: str) -> str | None:
        """Return the stored value of an option, by its own name or an older one; None: it is not set."""
        names = (key, *FALLBACK_KEYS.get(key, ()))
        return next((self.raw[name] for name in names if name in self.raw), None)

    def text(self, key: str, default: str = "") -> str:
        value = self.given(key)
        return default if value is None else value.strip()

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.given(key)
        return default if value is None else value.strip().lower() == "true"

    def number(self, key: str, default: int) -> int:
        value = self.given(key)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise InvalidInputError(f"Table option {key} should be a whole number, it is {value!r}") from None

    def size(self, key: str, default: str) -> int:
        return parse_size(self.raw.get(key, default), f"Table option {key}")

    def split_names(self, key: str) -> tuple[str, ...]:
        """Return the names that an option lists, as Paimon divides them; none where it is not set."""
        value = self.given(key)
        return () if value is None else split_names(key, value)

    def names(self, key: str) -> tuple[str, ...]:
        """Return the names that an option lists, without empty ones."""
        return tuple(name for name in self.split_names(key) if name)

    @property
    def bucket(self) -> int:
        """Number of buckets; -1 = unaware (append) or dynamic (primary key), -2 = postpone."""
        return self.number("bucket", -1)

    @property
    def file_format(self) -> str:
        return self.text("file.format", "parquet").lower()

    @property
    def bucket_function(self) -> str:
        """How the bucket of a row follows from its bucket key, where the number of buckets is fixed."""
        return self.text("bucket-function.type", "default").lower()

    @property
    def merge_engine(self) -> str:
        return self.text("merge-engine", "deduplicate").lower()

    @property
    def sequence_fields(self) -> tuple[str, ...]:
        return self.names("sequence.field")

    @property
    def sequence_descending(self) -> bool:
        return self.text("sequence.field.sort-order", "ascending").lower() == "descending"

    @property
    def ignore_delete(self) -> bool:
        return self.flag("ignore-delete")

    @property
    def deletion_vectors(self) -> bool:
        return self.flag("deletion-vectors.enabled")

    @property
    def row_tracking(self) -> bool:
        return self.flag("row-tracking.enabled")

    @property
    def data_evolution(self) -> bool:
        return self.flag("data-evolution.enabled")

    @property
    def partition_default_name(self) -> str:
        return self.raw.get("partition.default-name", "__DEFAULT_PARTITION__")

    @property
    def legacy_partition_name(self) -> bool:
        return self.flag("partition.legacy-name", True)

    @property
    def data_path_directory(self) -> str:
        return self.text("data-file.path-directory").strip("/")

    @property
    def target_file_size(self) -> int:
        """Bytes; Paimon's default is 128 MiB for primary-key tables and 256 MiB for append tables."""
        return self.size("target-file-size", "128 mb")

    @property
    def num_levels(self) -> int:
        return self.number("num-levels", self.number("num-sorted-run.compaction-trigger", 5) + 1)

    @property
    def write_only(self) -> bool:
        return self.flag("write-only")

    @property
    def manifest_target_size(self) -> int:
        return self.size("manifest.target-file-size", "8 mb")

    @property
    def manifest_merge_min_count(self) -> int:
        return self.number("manifest.merge-min-count", 30)

    @property
    def fallback_branch(self) -> str | None:
        return self.text("scan.fallback-branch") or None

    @property
    def primary_branch(self) -> str | None:
        return self.text("scan.primary-branch") or None

    @property
    def chain_table(self) -> bool:
        return self.flag("chain-table.enabled")

    @property
    def snapshot_branch(self) -> str | None:
        """The branch with a chain table's full partitions."""
        return self.text("scan.fallback-snapshot-branch") or None

    @property
    def delta_branch(self) -> str | None:
        """The branch with a chain table's changes."""
        return self.text("scan.fallback-delta-branch") or None

    @property
    def chain_branches(self) -> tuple[str, str]:
        """The names of a chain table's snapshot and delta branch, "" where none is set."""
        return self.snapshot_branch or "", self.delta_branch or ""

    @property
    def chain_partition_keys(self) -> tuple[str, ...]:
        """The partition columns that make the time; empty = all of them."""
        return self.names("chain-table.chain-partition-keys")
