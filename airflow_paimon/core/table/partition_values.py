"""Values of partition columns: as directory names, as user input, as text for users, and as manifests store them. Pure.

See docs/contributing/format.md, Partition folders.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import EPOCH_ORDINAL, encode_row, is_compact, unscaled_of
from airflow_paimon.core.format.char_text import compared_text, stored_text
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp, timestamp_of
from airflow_paimon.core.format.types import AtomicType, DataType
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_text import (
    DEFAULT_PARTITION,
    escape_path_name,
    parse_partition_text,
    partition_text,
)


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


def shown_partition(schema: TableSchema, values: Sequence[Any]) -> str:
    """Format a partition for people: ``dt=2025-01-01``; empty for a table without partitions."""
    return format_partition(values, schema.partition_keys, schema.partition_types)
