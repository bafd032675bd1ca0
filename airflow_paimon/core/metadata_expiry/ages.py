"""The ages and times that requests give."""

from __future__ import annotations

from datetime import timedelta

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import LEAST_GRACE, EraseRows, Expiry
from airflow_paimon.core.table.options import requested_duration
from airflow_paimon.core.table.table import Table, parse_timestamp

_EPOCH_DIGITS = 12
"""Of milliseconds since 1973: a smaller number is an age that lacks its unit."""


def grace_millis(table: Table, request: Expiry | EraseRows) -> int:
    """Check the grace time: who makes a tag or branch of a snapshot, and doesn't look again, needs some."""
    grace_ms = duration_ms(request.grace, "grace")
    if grace_ms < duration_ms(LEAST_GRACE, "grace") and not request.writers_stopped:
        raise InvalidInputError(
            f"{table.name}: grace must be at least {LEAST_GRACE}, got {request.grace!r}: other processes may still "
            "read what expires now, or tag it. If all writers and readers are stopped, set writers_stopped "
            "(--writers-stopped)"
        )
    return grace_ms


def duration_ms(text: str, name: str) -> int:
    """Parse a duration of a request into milliseconds."""
    return requested_duration(text, name) // timedelta(milliseconds=1)


def time_before(text: str | None, now_ms: int, where: str) -> int | None:
    """Return the time that ``older_than`` means: an age (``7 d``), an ISO time with an offset, or epoch milliseconds.

    Raises:
        InvalidInputError: neither, or it lies in the future.
    """
    if text is None:
        return None
    bare = text.strip()
    if bare.isdecimal() and len(bare.lstrip("0")) < _EPOCH_DIGITS:
        raise InvalidInputError(
            f"{where}: older_than {text!r} is neither an age with its unit (e.g. '{bare} d') nor a time in "
            f"epoch milliseconds"
        )
    try:
        found = parse_timestamp(text) if bare.isdecimal() else now_ms - duration_ms(text, "older_than")
    except InvalidInputError:
        try:
            found = parse_timestamp(text)
        except InvalidInputError:
            raise InvalidInputError(
                f"{where}: older_than is an age (e.g. '7 d') or a time with an offset (e.g. "
                f"2026-11-21T02:00:00+00:00), not {text!r}"
            ) from None
    if found > now_ms:
        raise InvalidInputError(f"{where}: older_than ({text}) is in the future; nothing was deleted")
    return found
