"""Column statistics: modes, truncation, encoding. ``column_stats`` takes them from Arrow columns.

See docs/contributing/format.md, Statistics.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.binary_row import COMPACT_DIGITS, decode_row, encode_row, is_compact
from airflow_paimon.core.format.manifest import Stats
from airflow_paimon.core.format.types import AtomicType, DataType

_TRUNCATE = re.compile(r"TRUNCATE\(0*([1-9]\d{0,8})\)")
_MAX_CODE_POINT = 0x10FFFF


class ColumnStats(NamedTuple):
    """``None`` for both bounds means unknown; all three ``None``: nothing was collected."""

    minimum: Any = None
    maximum: Any = None
    null_count: int | None = None


@dataclass(frozen=True, slots=True)
class StatsMode:
    """A value of ``metadata.stats-mode``. ``length`` (code points or bytes) is set for truncate only."""

    kind: str
    length: int | None = None

    def apply(self, stats: ColumnStats) -> ColumnStats:
        """Reduce exact statistics to what this mode keeps."""
        if self.kind == "none":
            return ColumnStats()
        if self.kind == "counts":
            return ColumnStats(null_count=stats.null_count)
        if self.length is None:
            return stats
        upper = truncate_max(stats.maximum, self.length)
        if upper is None:
            return ColumnStats(null_count=stats.null_count)
        return ColumnStats(truncate_min(stats.minimum, self.length), upper, stats.null_count)


def parse_stats_mode(text: str) -> StatsMode:
    """Parse ``none``, ``counts``, ``full`` or ``truncate(16)``.

    Raises:
        InvalidInputError: it is none of them.
    """
    upper = text.strip().upper()
    if upper in ("NONE", "COUNTS", "FULL"):
        return StatsMode(upper.lower())
    if match := _TRUNCATE.fullmatch(upper):
        return StatsMode("truncate", int(match[1]))
    raise InvalidInputError(f"Statistics mode {text!r} is unknown; use none, counts, full or truncate(16)")


def stats_modes(columns: Sequence[str], options: Mapping[str, str]) -> list[StatsMode]:
    """Return each column's mode: ``fields.<column>.stats-mode``, else the table's as far as
    ``metadata.stats-keep-first-n-columns`` reaches."""
    default = parse_stats_mode(options.get("metadata.stats-mode", "truncate(16)"))
    text = options.get("metadata.stats-keep-first-n-columns", "-1")
    try:
        keep = int(text)
    except ValueError:
        raise InvalidInputError(
            f"Table option metadata.stats-keep-first-n-columns should be a whole number, it is {text!r}"
        ) from None
    modes = []
    for position, column in enumerate(columns):
        own = options.get(f"fields.{column}.stats-mode")
        if own is not None:
            modes.append(parse_stats_mode(own))
        else:
            modes.append(default if keep < 0 or position < keep else StatsMode("none"))
    return modes


def truncate_min(value: Any, length: int) -> Any:
    """Return a lower bound of at most ``length`` code points (bytes for binary); other types unchanged."""
    return value[:length] if isinstance(value, str | bytes) else value


def truncate_max(value: Any, length: int) -> Any:
    """Return an upper bound of at most that length, None if there is none (all code points are the highest)."""
    if not isinstance(value, str | bytes) or len(value) <= length:
        return value
    if isinstance(value, bytes):
        short = value[:length].rstrip(b"\xff")
        return short[:-1] + bytes([short[-1] + 1]) if short else None
    text = value[:length].rstrip(chr(_MAX_CODE_POINT))
    # UTF-8 can't encode surrogates.
    return text[:-1] + ("\ue000" if text[-1] == "\ud7ff" else chr(ord(text[-1]) + 1)) if text else None


def order_key(value: Any) -> Any:
    """Return a sort key with Java's order: -0.0 before 0.0, NaN last; strings already sort by code point."""
    if isinstance(value, float):
        return math.isnan(value), value if value == value else 0.0, math.copysign(1.0, value)
    return value


def bounds(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return minimum and maximum of values of one type, nulls ignored; None for both if there are none."""
    present = [v for v in values if v is not None]
    if not present:
        return None, None
    return min(present, key=order_key), max(present, key=order_key)


def encode_stats(
    mins: Sequence[Any], maxs: Sequence[Any], null_counts: Sequence[int | None], types: Sequence[DataType]
) -> Stats:
    """Encode statistics of all columns, as key statistics and partition statistics are stored."""
    return Stats(encode_row(mins, types), encode_row(maxs, types), tuple(null_counts))


def stored_row_stats(rows: Iterable[bytes], types: Sequence[DataType]) -> Stats:
    """Return the statistics of rows that are given as they are stored, partitions for example. The bounds are exact."""
    number_of = Counter(rows)
    decoded = [(decode_row(row, types), number) for row, number in number_of.items()]
    limits = [bounds([values[i] for values, _ in decoded]) for i in range(len(types))]
    nulls = [sum(number for values, number in decoded if values[i] is None) for i in range(len(types))]
    return encode_stats([low for low, _ in limits], [high for _, high in limits], nulls, types)


def encode_value_stats(
    columns: Sequence[str], stats: Sequence[ColumnStats], types: Sequence[DataType], *, dense: bool = True
) -> tuple[Stats, tuple[str, ...] | None]:
    """Encode ``_VALUE_STATS``, and return it with ``_VALUE_STATS_COLS``.

    ``dense`` (``metadata.stats-dense-store``) leaves out columns without statistics; the names are None
    when none was left out.
    """
    kept = [i for i, s in enumerate(stats) if not dense or s != ColumnStats()]
    picked = [stats[i] for i in kept]
    mins, maxs, counts = [s.minimum for s in picked], [s.maximum for s in picked], [s.null_count for s in picked]
    encoded = encode_stats(mins, maxs, counts, [_widest(types[i]) for i in kept])
    return encoded, None if len(kept) == len(columns) else tuple(columns[i] for i in kept)


def _widest(data_type: DataType) -> DataType:
    """Return the longest DECIMAL that is encoded alike: Paimon stores sums with more digits than the type has."""
    if isinstance(data_type, AtomicType) and data_type.root == "DECIMAL" and is_compact(data_type):
        return replace(data_type, args=(COMPACT_DIGITS, data_type.args[1]))
    return data_type
