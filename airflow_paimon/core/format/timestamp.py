"""Paimon's timestamp: milliseconds and the nanoseconds of that millisecond, because ``datetime`` loses nanoseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError

_EPOCH = datetime(1970, 1, 1)
_MILLI = timedelta(milliseconds=1)
_MICRO = timedelta(microseconds=1)


class Timestamp(NamedTuple):
    """A TIMESTAMP (local date and time, as if in UTC) or TIMESTAMP_LTZ (instant). Sorts in time order.

    ``nanos_of_milli`` is 0 to 999,999, also before 1970.
    """

    millis: int
    nanos_of_milli: int = 0

    @classmethod
    def from_datetime(cls, value: datetime) -> Timestamp:
        """From an aware datetime its instant, from a naive one its local date and time."""
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        millis, rest = divmod(value - _EPOCH, _MILLI)
        return cls(millis, rest // _MICRO * 1000)

    @classmethod
    def from_nanos(cls, nanos: int) -> Timestamp:
        """From nanoseconds since 1970."""
        return cls(*divmod(nanos, 1_000_000))

    @classmethod
    def from_iso(cls, text: str) -> Timestamp:
        """Parse ``2025-01-02`` or ``2025-01-02 03:04:05[.123456789]``; with an offset it is the instant.

        Raises:
            ValueError: it is none of these.
        """
        head, dot, tail = text.strip().partition(".")
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        if dot and not 1 <= len(digits) <= 9:
            raise ValueError(f"not a timestamp: {text!r}")
        moment = datetime.fromisoformat(head + tail[len(digits) :])
        nanos = int(digits.ljust(9, "0")) if digits else 0
        seconds = cls.from_datetime(moment)
        return cls.from_nanos(seconds.to_nanos() + nanos)

    def to_nanos(self) -> int:
        """Return nanoseconds since 1970; may exceed 64 bits."""
        return self.millis * 1_000_000 + self.nanos_of_milli

    def to_datetime(self) -> datetime:
        """Return a naive datetime; digits below a microsecond are cut off.

        Raises:
            UnsupportedFeatureError: the year is not in 1 to 9999, which Python can't express.
        """
        try:
            return _EPOCH + timedelta(milliseconds=self.millis, microseconds=self.nanos_of_milli // 1000)
        except OverflowError:
            raise UnsupportedFeatureError(
                f"A timestamp of {self.millis} ms lies outside the years 1 to 9999 that Python can express"
            ) from None

    @property
    def nanos_of_second(self) -> int:
        return self.millis % 1000 * 1_000_000 + self.nanos_of_milli

    def to_java(self) -> str:
        """Return what Java's ``LocalDateTime.toString`` gives: zero seconds left out, fraction in groups of three."""
        text = self.to_datetime().strftime("%H:%M:%S")
        nanos = self.nanos_of_second
        if nanos:
            digits = f"{nanos:09d}"
            while digits.endswith("000"):
                digits = digits[:-3]
            text += "." + digits
        elif text.endswith(":00"):
            text = text[:-3]
        return f"{self._date()}T{text}"

    def to_sql(self, precision: int) -> str:
        """Return what a SQL cast to string gives: ``precision`` digits of fraction, more where they aren't zero."""
        digits = f"{self.nanos_of_second:09d}"
        while len(digits) > precision and digits.endswith("0"):
            digits = digits[:-1]
        text = f"{self._date()} {self.to_datetime().strftime('%H:%M:%S')}"
        return f"{text}.{digits}" if digits else text

    def _date(self) -> str:
        # strftime("%Y") doesn't pad years below 1000 on Linux.
        return self.to_datetime().date().isoformat()


def utc_text(millis: int, timespec: str = "seconds") -> str:
    """Write epoch milliseconds as ISO time in UTC; those that no calendar has as ``1 ms``."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec=timespec)
    except (OverflowError, ValueError, OSError):
        return f"{millis} ms"


def timestamp_of(value: object, *, local_zone: bool) -> Timestamp:
    """Convert a datetime (a Timestamp stays as it is): aware for TIMESTAMP_LTZ (``local_zone``), naive for TIMESTAMP.

    Raises:
        InvalidInputError: it is something else, or a datetime of the wrong kind, which would shift the value silently.
    """
    if isinstance(value, Timestamp):
        return value
    if isinstance(value, datetime):
        if (value.tzinfo is not None) == local_zone:
            return Timestamp.from_datetime(value)
        need = "with a time zone" if local_zone else "without a time zone"
        raise InvalidInputError(f"{value!r} can't be stored here: give a datetime {need}")
    raise InvalidInputError(f"{value!r} is not a timestamp: give a datetime or a Timestamp")
