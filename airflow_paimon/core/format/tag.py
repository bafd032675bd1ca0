"""Tag files: a snapshot's JSON and, with a retention, two more keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import Snapshot, load_json_object, snapshot_from_json

_TAG_KEYS = ("tagCreateTime", "tagTimeRetained")
_MARKER = "\0tagTimeRetained\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A named snapshot. ``create_time`` is local time without a zone, as Paimon stores it; None without retention."""

    name: str
    snapshot: Snapshot
    create_time: datetime | None = None
    time_retained: timedelta | None = None

    def expires_at(self) -> datetime | None:
        """When it may be deleted (local time); None = never."""
        if self.create_time is None or self.time_retained is None:
            return None
        try:
            return self.create_time + self.time_retained
        except OverflowError:
            return None

    def to_bytes(self) -> bytes:
        """Return the tag file. Without a retention it is a plain snapshot, so that old releases can read it."""
        if self.create_time is None or self.time_retained is None:
            return self.snapshot.to_bytes()
        t, micros = self.create_time, self.time_retained // timedelta(microseconds=1)
        out = self.snapshot.to_json()
        out["tagCreateTime"] = [t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond * 1000]
        out["tagTimeRetained"] = _MARKER
        text = json.dumps(out, indent=2, ensure_ascii=False)
        # Java's Duration as Jackson writes it: decimal seconds with nine digits, a number and not a string
        return text.replace(json.dumps(_MARKER), f"{micros // 1_000_000}.{micros % 1_000_000:06d}000").encode()


def parse_tag(data: bytes, name: str) -> Tag:
    """Parse a tag file; ``name`` is the tag's name.

    Raises:
        FormatError: truncated, or the two extra keys are not what Paimon writes.
    """
    where = f"Tag {name!r}"
    raw = load_json_object(data, where)
    snapshot = snapshot_from_json({k: v for k, v in raw.items() if k not in _TAG_KEYS}, where)
    try:
        return Tag(
            name=name,
            snapshot=snapshot,
            create_time=_create_time(raw.get("tagCreateTime")),
            time_retained=_retained(raw.get("tagTimeRetained")),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"{where} has an unreadable retention: {error}") from None


def _create_time(value: Any) -> datetime | None:
    if value is None:
        return None
    year, month, day, hour, minute, second, nanos = [int(p) for p in value] + [0] * (7 - len(value))
    return datetime(year, month, day, hour, minute, second, nanos // 1000)


def _retained(value: Any) -> timedelta | None:
    if value is None:
        return None
    try:
        return timedelta(seconds=float(value))
    except OverflowError:
        return timedelta.max
