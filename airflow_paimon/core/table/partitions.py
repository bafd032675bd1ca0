"""Partitions as directory names, as user input, as text for users, and as manifests store them. Pure.

One partition can be stored in several forms (nulls before Paimon 1.1, NaN), so only what ``StoredPartitions`` gives for
it may be compared. Entries keep the stored form: Java finds the file that a DELETE is of, and the deletion vectors of a
file, by these bytes. See docs/contributing/format.md, Partition folders.
"""

from __future__ import annotations

import math
import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from ctypes import c_float
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol, TypeVar

from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import EPOCH_ORDINAL, decode_row, encode_row, is_compact, unscaled_of
from airflow_paimon.core.format.char_text import compared_text, stored_text
from airflow_paimon.core.format.manifest import ManifestFile
from airflow_paimon.core.format.manifest_blocks import Bounded, EntryFilter, ManifestBlock
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp, timestamp_of
from airflow_paimon.core.format.types import AtomicType, DataType
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_text import (
    DEFAULT_PARTITION,
    escape_path_name,
    parse_partition_text,
    partition_text,
)
from airflow_paimon.core.table.predicate import Bounds


def double_text(value: float) -> str:
    """Return ``Double.toString``: 1.5, 1.0E10, -0.001, NaN, Infinity.

    The fewest digits (at least two) that parse to the same value, as since JDK 19. Earlier JDKs use more for some
    values, mostly large whole numbers: measured on JDK 17, 0.5 % of random doubles and 10 % of random floats differ.
    """
    if text := _special(value):
        return text
    short = f"{value:.1e}"
    return _java_form(short if float(short) == value else repr(value))


def float_text(value: float) -> str:
    """Return ``Float.toString`` of a value that a FLOAT column can hold."""
    if text := _special(value):
        return text
    return _java_form(next(t for p in range(1, 9) if c_float(float(t := f"{value:.{p}e}")).value == value))


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None


def _java_form(text: str) -> str:
    """Rewrite a Python float literal: positional from 1e-3 up to 1e7, otherwise with an exponent."""
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # Position of the decimal point relative to the first digit.
    point = len(whole) - (len(whole + fraction) - len(digits)) + int(exponent or 0)
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0.0"
    if -2 <= point <= 7:
        whole = digits[: max(point, 0)].ljust(point, "0") or "0"
        fraction = "0" * -point + digits[max(point, 0) :] or "0"
        return f"{sign}{whole}.{fraction}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def is_blank(text: str) -> bool:
    """Whether Java's ``Character.isWhitespace`` is true of all characters; it is false for no-break spaces."""
    return all(c.isspace() and c not in "\x85\xa0\u2007\u202f" for c in text)


def partition_path(schema: TableSchema, values: Sequence[Any], zone: tzinfo | None = None) -> str:
    """Return the directory of a partition relative to the table: ``dt=2025-01-01/h=3``; the last values may be left
    out.

    Null, empty and blank values share the directory ``partition.default-name``. ``zone`` (None = this process's)
    matters for TIMESTAMP_LTZ without ``partition.legacy-name`` only: Paimon then names directories in the time zone of
    the JVM, so engines that run in different zones don't find each other's files.

    Raises:
        UnsupportedFeatureError: Paimon's name for such a value is unpredictable (it contains a Java object's identity).
    """
    texts = partition_path_texts(schema, values, zone)
    return "/".join(f"{escape_path_name(key)}={escape_path_name(text)}" for key, text in texts.items())


def partition_path_texts(schema: TableSchema, values: Sequence[Any], zone: tzinfo | None = None) -> dict[str, str]:
    """Return what ``partition_path`` says of each column, nothing escaped: how catalogs and servers name partitions."""
    texts, options = {}, TableOptions(schema.options)
    for value, field in zip(values, schema.partition_fields[: len(values)], strict=True):
        text = None
        if value is not None:
            text = _directory_text(value, field.name, field.type, options.legacy_partition_name, zone)
        texts[field.name] = options.partition_default_name if text is None or is_blank(text) else text
    return texts


def _directory_text(value: Any, key: str, data_type: DataType, legacy: bool, zone: tzinfo | None) -> str:
    root = data_type.root
    if root in ("BINARY", "VARBINARY", "BYTES"):
        if legacy:
            raise UnsupportedFeatureError(
                f"Partition column {key} is of type {root}: with partition.legacy-name=true Paimon names its "
                f"directories after a Java object's identity, so they can't be found; use partition.legacy-name=false"
            )
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise UnsupportedFeatureError(f"Partition column {key} has bytes that are not UTF-8") from None
    if root == "TIMESTAMP_LTZ" and not legacy:
        stamp = timestamp_of(value, local_zone=True)
        offset = stamp.to_datetime().replace(tzinfo=UTC).astimezone(zone).utcoffset() or timedelta()
        local = Timestamp(stamp.millis + offset // timedelta(milliseconds=1), stamp.nanos_of_milli)
        return local.to_sql(_precision(data_type))
    if legacy:
        if root == "DATE":
            return str(value.toordinal() - EPOCH_ORDINAL)
        if root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
            return timestamp_of(value, local_zone=root == "TIMESTAMP_LTZ").to_java()
        if root == "TIME":
            return str(value)
    return _sql_text(value, data_type)


def _precision(data_type: DataType) -> int:
    assert isinstance(data_type, AtomicType)
    return data_type.args[0]


def _sql_text(value: Any, data_type: DataType) -> str:
    """Return the value as a SQL cast to string does."""
    root = data_type.root
    if root == "BOOLEAN":
        return "true" if value else "false"
    if root == "FLOAT":
        return float_text(value)
    if root == "DOUBLE":
        return double_text(value)
    if root == "DECIMAL":
        return f"{_scaled(value, data_type):f}"
    if root == "DATE":
        return str(value.isoformat())
    if root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return timestamp_of(value, local_zone=root == "TIMESTAMP_LTZ").to_sql(_precision(data_type))
    if root == "TIME":
        return _time_text(value, _precision(data_type))
    return str(value)


def _time_text(millis: int, precision: int) -> str:
    seconds, fraction = divmod(millis, 1000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if precision == 0:
        return text
    digits = f"{fraction:03d}"[:precision]
    return f"{text}.{digits.rstrip('0') or '0'}"


def _scaled(value: Any, data_type: DataType) -> Decimal:
    assert isinstance(data_type, AtomicType)
    unscaled = unscaled_of(value, data_type)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -data_type.args[1]))


def comparable(value: Any) -> Any:
    """Return a key that is equal for two partition values exactly if Paimon, which compares stored bytes, equates them.

    So 0.0 and -0.0 differ, all NaNs are equal (``encode_partition`` gives them the same bytes), and true is not 1.
    """
    return repr(value) if isinstance(value, float | bool) else value


def named_value(value: Any, data_type: DataType) -> Any:
    """Return the ``comparable`` form of a value by which users name partitions: a CHAR is stored with blanks at its end
    or without, and means the same as in SQL.
    """
    if isinstance(value, str) and isinstance(data_type, AtomicType) and data_type.root == "CHAR":
        return compared_text(value, data_type.args[0])
    return comparable(value)


def encode_partition(values: Sequence[Any], types: Sequence[DataType]) -> bytes:
    """Encode a partition in canonical form, as Java writes it."""
    return encode_row([math.nan if isinstance(v, float) and math.isnan(v) else v for v in values], types)


def format_partition(values: Sequence[Any], keys: Sequence[str], types: Sequence[DataType]) -> str:
    """Return the text for people, messages and JSON, ``dt=2025-01-01/h=3``, which requests accept as well."""
    return partition_text(partition_texts(values, keys, types))


def partition_texts(values: Sequence[Any], keys: Sequence[str], types: Sequence[DataType]) -> dict[str, str | None]:
    """Return the values as texts by column, None for null."""
    typed = zip(values, keys, types, strict=True)
    return {k: None if v is None else readable_value(v, t) for v, k, t in typed}


def readable_value(value: Any, data_type: DataType) -> str:
    """Return one value as ``format_partition`` writes it, without the quotes that it may need there."""
    if value is None:
        return DEFAULT_PARTITION
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Timestamp):
        return value.to_sql(0) + ("+00:00" if data_type.root == "TIMESTAMP_LTZ" else "")
    return _sql_text(value, data_type)


PartitionSpec = Mapping[str, Any] | str
"""A partition as a user gives it: typed values or texts by key, or one text."""


def parse_partition_spec(spec: PartitionSpec, keys: Sequence[str], types: Sequence[DataType]) -> dict[str, Any]:
    """Convert user input into internal values. Keys may be missing and in any order.

    None and ``__DEFAULT_PARTITION__`` mean null; in a text, that name in quotes is an ordinary value. The grammar of
    texts is in ``partition_text``.

    Raises:
        InvalidInputError: no key at all, a key that is not a partition column, or a value outside its type.
    """
    if isinstance(spec, str):
        spec = parse_partition_text(spec)
    elif isinstance(spec, Mapping):
        spec = {k: None if isinstance(v, str) and v == DEFAULT_PARTITION else v for k, v in spec.items()}
    else:
        raise InvalidInputError(
            f"A partition is a mapping of columns to values, or a string such as dt=a; got {spec!r}"
        )
    if not spec:
        raise InvalidInputError(f"A partition needs at least one of the columns {', '.join(keys) or '(none)'}")
    by_key = dict(zip(keys, types, strict=True))
    for key in spec:
        if key not in by_key:
            known = f"the partition columns are {', '.join(keys)}" if keys else "the table is not partitioned"
            raise InvalidInputError(f"{key!r} is not a partition column: {known}")
    return {key: _parse_value(key, spec[key], by_key[key]) for key in keys if key in spec}


def _parse_value(key: str, value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    parse, form = _PARSERS.get(data_type.root, (None, ""))
    if parse is None:
        raise UnsupportedFeatureError(f"Partition column {key} is of type {data_type.root}")
    try:
        parsed = parse(value, data_type)
        encode_row([parsed], [data_type])
    except (ValueError, TypeError, KeyError, ArithmeticError, struct.error):
        raise InvalidInputError(f"{value!r} is not a value of partition column {key} ({data_type}); {form}") from None
    return parsed


def _expect(value: Any, *types: type) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError
    return value


def _parse_bool(value: Any, _: DataType) -> bool:
    if isinstance(value, str):
        return {"true": True, "false": False}[value.strip().lower()]
    return bool(_expect(value, bool))


def _fail() -> Any:
    raise ValueError


def _parse_int(value: Any, _: DataType) -> int:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", value) else _fail()
    return int(_expect(value, int))


def _number(text: str) -> str:
    """Refuse what Python takes for a number and Paimon doesn't: digits of other scripts, and ``1_0``."""
    return text.strip() if text.isascii() and "_" not in text else _fail()


def _parse_float(value: Any, data_type: DataType) -> float:
    number = float(_number(value) if isinstance(value, str) else _expect(value, float, int))
    return float(struct.unpack("<f", struct.pack("<f", number))[0]) if data_type.root == "FLOAT" else number


def _parse_decimal(value: Any, data_type: DataType) -> Decimal:
    number = Decimal(_number(value)) if isinstance(value, str) else Decimal(_expect(value, Decimal, int))
    return _scaled(number, data_type)


def _parse_date(value: Any, _: DataType) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value.strip()) if re.fullmatch(r"\s*\d{4}-\d\d-\d\d\s*", value) else _fail()
    day: date = _expect(value, date)
    return _fail() if isinstance(value, datetime) else day


def _parse_time(value: Any, _: DataType) -> int:
    if isinstance(value, int):
        return int(_expect(value, int)) if 0 <= value < 86_400_000 else _fail()
    moment = time.fromisoformat(value.strip()) if isinstance(value, str) else _expect(value, time)
    if moment.tzinfo is not None or moment.microsecond % 1000:
        _fail()
    return int((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1000 + moment.microsecond // 1000


def _parse_stamp(value: Any, data_type: DataType) -> Timestamp:
    zoned = data_type.root == "TIMESTAMP_LTZ"
    if isinstance(value, str):
        # An offset distinguishes an instant from a local time; the dash within a date is not an offset.
        if bool(re.search(r"(Z|[+-]\d\d(:?\d\d)?)\s*$", value[10:])) != zoned:
            _fail()
        stamp = Timestamp.from_iso(value)
    else:
        stamp = timestamp_of(value, local_zone=zoned)
    if stamp.to_nanos() % 10 ** (9 - _precision(data_type)) or (is_compact(data_type) and stamp.nanos_of_milli):
        _fail()
    return stamp


def _parse_text(value: Any, data_type: DataType) -> str:
    assert isinstance(data_type, AtomicType)
    return stored_text(_expect(value, str), data_type)


def _parse_bytes(value: Any, _: DataType) -> bytes:
    if isinstance(value, str):
        return bytes.fromhex(value[2:]) if value.startswith("0x") else _fail()
    return bytes(_expect(value, bytes, bytearray))


_Parser = Callable[[Any, DataType], Any]
_STAMP_FORM = "give a datetime or a string such as 2025-01-01 12:00:00"
_PARSERS: dict[str, tuple[_Parser, str]] = {
    "BOOLEAN": (_parse_bool, "give true or false"),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), (_parse_int, "give a whole number in its range")),
    **dict.fromkeys(("FLOAT", "DOUBLE"), (_parse_float, "give a number")),
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), (_parse_text, "give a string that is not too long")),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES"), (_parse_bytes, "give bytes or a string such as 0x01ff")),
    "DECIMAL": (_parse_decimal, "give a decimal number with no more digits"),
    "DATE": (_parse_date, "give a date or a string such as 2025-01-31"),
    "TIME": (_parse_time, "give a time or a string such as 12:30:00"),
    "TIMESTAMP": (_parse_stamp, f"{_STAMP_FORM}, without a time zone"),
    "TIMESTAMP_LTZ": (_parse_stamp, f"{_STAMP_FORM}+00:00, with a time zone or offset"),
}


K = TypeVar("K")
T = TypeVar("T")

# Types whose bounds compare in Python as in every engine. Floats don't (NaN, -0.0), nor CHARs (blanks at the end), and
# bytes have no bounds.
_PRUNABLE = frozenset((
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "VARCHAR", "STRING", "DECIMAL", "DATE", "TIME", "TIMESTAMP",
    "TIMESTAMP_LTZ",
))  # fmt: skip


Selection = EntryFilter
"""Some partitions of a table, or some of their buckets."""


def partition_types(schema: TableSchema) -> tuple[DataType, ...]:
    """Return the types of the partition columns, in partition-key order."""
    return tuple(f.type for f in schema.partition_fields)


class InBucket(Protocol):
    """What lies in a bucket: a file, a split, an index entry, a message of a commit."""

    @property
    def partition(self) -> bytes: ...

    @property
    def bucket(self) -> int: ...


class Counted(InBucket, Protocol):
    """A file, or files, of a bucket."""

    @property
    def total_buckets(self) -> int: ...


ALL_BUCKETS = -1
B = TypeVar("B", bound=InBucket)
BucketOf = Callable[[InBucket], BucketKey]
"""``StoredPartitions.bucket`` of a table's schema."""


class StoredPartitions:
    """The one decoder of a table's stored partitions. Decodes each once."""

    def __init__(self, schema: TableSchema) -> None:
        self.keys = schema.partition_keys
        self.types = partition_types(schema)
        self.values: Callable[[bytes], tuple[Any, ...]] = _once(lambda stored: decode_row(stored, self.types))
        """Return the values, in partition-key order."""
        self.named: Callable[[bytes], tuple[Any, ...]] = _once(
            lambda p: tuple(map(named_value, self.values(p), self.types))
        )
        """Return a key that is equal for all partitions that a user names by the same values."""
        self.canonical: Callable[[bytes], bytes] = _once(lambda p: encode_partition(self.values(p), self.types))
        """Return the canonical form, which is equal for all stored forms of one partition, and only for those."""

    def bucket(self, one: InBucket) -> BucketKey:
        """Return the bucket of a file, an index entry or the like, by the partition's canonical form."""
        return BucketKey(self.canonical(one.partition), one.bucket)

    def by_bucket(self, some: Iterable[B]) -> dict[BucketKey, list[B]]:
        """Group by bucket, keeping the order."""
        groups: dict[BucketKey, list[B]] = {}
        for one in some:
            groups.setdefault(self.bucket(one), []).append(one)
        return groups

    def recounted(self, files: Iterable[Counted]) -> set[bytes]:
        """Return the partitions whose files have different numbers of buckets, so that buckets can't be compared one by
        one.
        """
        totals: dict[bytes, set[int]] = {}
        for one in files:
            totals.setdefault(self.canonical(one.partition), set()).add(one.total_buckets)
        return {partition for partition, counts in totals.items() if len(counts) > 1}

    def compared_by(self, files: Iterable[Counted]) -> BucketOf:
        """Return what gives the bucket by which two states with these files are compared: ``ALL_BUCKETS`` of a
        partition that is ``recounted``.
        """
        whole = self.recounted(files)

        def bucket_of(one: InBucket) -> BucketKey:
            bucket = self.bucket(one)
            return bucket._replace(bucket=ALL_BUCKETS) if bucket.partition in whole else bucket

        return bucket_of

    def bounds(self, part: Bounded) -> list[Bounds] | None:
        """Return the bounds of the values in a manifest or a part of one; None: of other columns, or values that we
        don't know.
        """
        stats = part.partition_stats
        try:
            low, high = self.values(stats.min_values), self.values(stats.max_values)
        except PaimonError:
            return None
        nulls = stats.null_counts or ()
        return list(map(Bounds, low, high, nulls if len(nulls) == len(self.types) else (None,) * len(self.types)))

    def text(self, stored: bytes) -> str:
        """Format a partition for people: ``dt=2025-01-01/h=3``; empty for a table without partitions."""
        return format_partition(self.values(stored), self.keys, self.types)

    def bucket_text(self, one: InBucket) -> str:
        """Format a bucket for people: ``dt=2025-01-01/bucket-3``."""
        return f"{self.text(one.partition)}/bucket-{one.bucket}".removeprefix("/")

    def selection(self, specs: Iterable[Mapping[str, Any]]) -> PartitionSelection:
        """Select partitions by typed values of some or all of their columns. No spec selects nothing."""
        at = {key: i for i, key in enumerate(self.keys)}
        wanted = [{at[key]: value for key, value in spec.items()} for spec in specs]
        by_columns: dict[tuple[int, ...], set[tuple[Any, ...]]] = {}
        for spec in wanted:
            columns = tuple(sorted(spec))
            found = by_columns.setdefault(columns, set())
            found.add(tuple(named_value(spec[i], self.types[i]) for i in columns))

        def is_selected(stored: bytes) -> bool:
            own = self.named(stored)
            return any(tuple(own[i] for i in columns) in found for columns, found in by_columns.items())

        key = frozenset((columns, frozenset(found)) for columns, found in by_columns.items())
        return PartitionSelection(self, wanted, is_selected, key)

    def those(self, stored: Iterable[bytes]) -> PartitionSelection:
        """Select exactly these."""
        wanted = frozenset(map(self.canonical, stored))
        specs = [dict(enumerate(self.values(p))) for p in wanted]
        return PartitionSelection(self, specs, lambda p: self.canonical(p) in wanted, wanted)

    def manifests_with(self, stored: Iterable[bytes], buckets: Iterable[int]) -> Callable[[ManifestFile], bool]:
        """Return what tells whether a manifest can have entries of these partitions and buckets."""
        selection, numbers = self.those(stored), sorted(set(buckets))

        def may_hold(manifest: ManifestFile) -> bool:
            low, high = manifest.min_bucket, manifest.max_bucket
            if low is not None and high is not None and not any(low <= bucket <= high for bucket in numbers):
                return False
            return selection.may_be_in(manifest)

        return may_hold

    def where(self, test: Callable[[tuple[Any, ...]], bool]) -> Selection:
        """Select by any test of the values. It skips no manifest: use it where ``selection`` can't express the test."""
        return _Tested(_once(lambda stored: test(self.values(stored))))


def _once(function: Callable[[K], T]) -> Callable[[K], T]:
    known: dict[K, T] = {}

    def look_up(stored: K) -> T:
        if stored not in known:
            known[stored] = function(stored)
        return known[stored]

    return look_up


class _Tested(Selection):
    def __init__(self, test: Callable[[bytes], bool]) -> None:
        self._test = test

    def __call__(self, stored: bytes) -> bool:
        return self._test(stored)

    def may_be_in(self, part: Bounded) -> bool:
        return True


class PartitionSelection(Selection):
    """Partitions by values of their columns; whole manifests are excluded by their statistics.

    ``specs``: position of a partition column -> its value; a partition is selected if it agrees with all of one spec.
    ``key``: equal for selections of the same partitions of one table.
    """

    def __init__(
        self,
        partitions: StoredPartitions,
        specs: Sequence[Mapping[int, Any]],
        is_selected: Callable[[bytes], bool],
        key: Hashable,
    ) -> None:
        self._partitions = partitions
        self._specs = specs
        self._verdict = _once(is_selected)
        self.key = key

    def __call__(self, stored: bytes) -> bool:
        """Whether a stored partition is selected."""
        return self._verdict(stored)

    def may_be_in(self, part: Bounded) -> bool:
        """See ``Selection``."""
        if not self._specs:
            return False
        bounds = self._partitions.bounds(part)
        return bounds is None or all(wanted.may_hold(bounds[i]) for i, wanted in self._wanted.items())

    @cached_property
    def _wanted(self) -> dict[int, _Wanted]:
        """By column: the values of the selected partitions; without the columns that some spec leaves out."""
        types = self._partitions.types
        fixed = set(range(len(types))).intersection(*(spec.keys() for spec in self._specs))
        roots = {i: t.root for i in fixed if isinstance(t := types[i], AtomicType)}
        return {i: _Wanted([s[i] for s in self._specs]) for i, root in roots.items() if root in _PRUNABLE}


class BucketSelection(Selection):
    """Some buckets of some partitions.

    ``partitions``: None = all. ``buckets``: gives those that are selected where there are so many, None = all; in a
    table that was rescaled files have different numbers of buckets.
    """

    def __init__(self, partitions: Selection | None, buckets: Callable[[int], Collection[int] | None]) -> None:
        self._partitions = partitions
        self._buckets = _once(buckets)

    def __call__(self, stored: bytes) -> bool:
        """Whether a stored partition is selected, some buckets of it at least."""
        return self._partitions is None or self._partitions(stored)

    def holds(self, bucket: int, total_buckets: int) -> bool:
        """Whether a bucket is selected, out of ``total_buckets``."""
        wanted = self._buckets(total_buckets)
        return wanted is None or bucket in wanted

    def may_be_in(self, part: Bounded) -> bool:
        """See ``Selection``. Only a block tells how many buckets its files belong to."""
        if self._partitions is not None and not self._partitions.may_be_in(part):
            return False
        if not isinstance(part, ManifestBlock) or part.min_total_buckets != part.max_total_buckets:
            return True
        wanted = self._buckets(part.min_total_buckets)
        return wanted is None or any(part.min_bucket <= bucket <= part.max_bucket for bucket in wanted)


def selection_key(selection: Selection | None) -> Hashable | None:
    """Return a key by which to remember what was read of some partitions (None: of all); None: there is none."""
    if selection is None:
        return "all"
    return selection.key if isinstance(selection, PartitionSelection) else None


class _Wanted:
    """The values of one partition column to look for."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._null = any(v is None for v in values)
        self._sorted = sorted({v for v in values if v is not None})

    def may_hold(self, bounds: Bounds) -> bool:
        """Whether rows within these bounds can have one of the values."""
        low, high, nulls = bounds.low, bounds.high, bounds.nulls
        if low is None or high is None or (self._null and nulls != 0):
            return True
        at = bisect_left(self._sorted, low)
        if at == len(self._sorted):
            return False
        value = self._sorted[at]
        # An upper bound that was truncated without rounding up is a prefix of the real bound.
        at_high = bisect_left(self._sorted, high)
        cut = self._sorted[at_high] if at_high < len(self._sorted) and isinstance(high, str) else None
        return bool(value <= high) or (cut is not None and cut.startswith(high))


def shown_partition(schema: TableSchema, values: Sequence[Any]) -> str:
    """Format a partition for people: ``dt=2025-01-01``; empty for a table without partitions."""
    return format_partition(values, schema.partition_keys, partition_types(schema))
