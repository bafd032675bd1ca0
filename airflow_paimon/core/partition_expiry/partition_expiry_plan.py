"""Selects the expired partitions of an ordinary table, by their values or their last update. Values, no storage.

The rules are those of Paimon's ``PartitionExpire``: a partition expires when its time is strictly before now minus
``partition.expiration-time``; what can't be read as a time stays. Where we differ: a DATE column is read as its date
(Paimon sees a number of days and keeps such partitions for ever), an impossible date is not a time (Paimon rolls
it over), and an age needs a unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_paimon.core.commit.partition_contents import PartitionContent
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.java_time import DateTimeFormat, parse_format
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.requests.requests import STRATEGIES, UPDATE_TIME, VALUES_TIME
from airflow_paimon.core.table.options import TableOptions, parse_duration
from airflow_paimon.core.table.partition_values import partition_texts

EXPIRATION_TIME = "partition.expiration-time"
MAX_EXPIRE_NUM = 100
"""Paimon's default of ``partition.expiration-max-num``."""

_PLAIN = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?: (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.\d{1,9})?)?", re.ASCII)
"""The forms that Paimon parses without a formatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRule:
    """The expiry rule. ``pattern`` None = the first partition column; ``formatter`` None = ``y-M-d[ H:m:s]``."""

    strategy: str
    age: timedelta
    pattern: str | None = None
    formatter: DateTimeFormat | None = None

    def time_of(self, schema: TableSchema, held: PartitionContent) -> datetime | None:
        """Return the time of a partition under the rule, None if it has none and so stays."""
        if self.strategy == UPDATE_TIME:
            return held.updated
        return self._values_time(schema, held.values)

    def _values_time(self, schema: TableSchema, values: Sequence[Any]) -> datetime | None:
        texts = partition_texts(values, schema.partition_keys, schema.partition_types)
        text = next(iter(texts.values())) if self.pattern is None else _filled(self.pattern, texts)
        if text is None:
            return None
        try:
            return _plain_time(text) if self.formatter is None else self.formatter.parse(text)
        except ValueError:
            return None


def expiry_age(expiration_time: str | None, options: TableOptions, label: str) -> timedelta:
    """Return the age from the request, else from option ``partition.expiration-time``.

    Raises:
        InvalidInputError: neither is given, it has no unit, or it is 0.
    """
    name = EXPIRATION_TIME
    text = expiration_time or options.text(name)
    if not text:
        raise InvalidInputError(f"{label}: no age is given: give expiration_time, or set option {name}")
    if text.strip().isdigit():
        raise InvalidInputError(
            f"{label}: an expiration time of {text!r} would be milliseconds; write the unit, e.g. '30 d'"
        )
    age = parse_duration(text, "expiration_time" if expiration_time else f"Table option {name}")
    if not age:
        raise InvalidInputError(f"{label}: an expiration time of {text!r} would drop everything up to now")
    return age


def expiry_rule(
    schema: TableSchema,
    label: str,
    *,
    expiration_time: str | None = None,
    strategy: str | None = None,
    pattern: str | None = None,
    formatter: str | None = None,
) -> ExpiryRule:
    """Return the rule from the request, else from the table's options.

    Raises:
        InvalidInputError: the table is not partitioned, or age, strategy, pattern or formatter are invalid.
    """
    if not schema.partition_keys:
        raise InvalidInputError(f"{label} is not partitioned: there is nothing to expire")
    options = TableOptions(schema.options)
    age = expiry_age(expiration_time, options, label)
    chosen = strategy or options.text("partition.expiration-strategy", VALUES_TIME).lower()
    if chosen not in STRATEGIES:
        raise InvalidInputError(
            f"{label}: partition.expiration-strategy must be one of {', '.join(STRATEGIES)}, it is {chosen!r}"
        )
    if chosen == UPDATE_TIME:
        return ExpiryRule(strategy=chosen, age=age)
    pattern = pattern or options.text("partition.timestamp-pattern") or None
    form = formatter or options.text("partition.timestamp-formatter")
    if pattern is not None and _filled(pattern, dict.fromkeys(schema.partition_keys, "")) == pattern:
        raise InvalidInputError(
            f"{label}: partition.timestamp-pattern {pattern!r} contains no partition column; write e.g. "
            f"'${schema.partition_keys[0]}' (partition columns: {', '.join(schema.partition_keys)})"
        )
    return ExpiryRule(strategy=chosen, age=age, pattern=pattern, formatter=parse_format(form) if form else None)


def cutoff_at(now: datetime, age: timedelta, label: str) -> datetime:
    """Return the local time before which partitions expire."""
    try:
        return now - age
    except OverflowError:
        raise InvalidInputError(f"{label}: an age of {age} is too long") from None


def expiry_limit(limit: int | None, options: TableOptions, label: str) -> int:
    """Return the limit per run, from the request or else option ``partition.expiration-max-num``."""
    found = options.number("partition.expiration-max-num", MAX_EXPIRE_NUM) if limit is None else limit
    if found < 1:
        raise InvalidInputError(f"{label}: the limit of a run must be at least 1, not {found}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExpiry:
    """The expired partitions, oldest first, each with its time. ``unreadable`` ones have no time and stay."""

    expired: tuple[tuple[PartitionContent, datetime], ...]
    unreadable: tuple[PartitionContent, ...]
    over_limit: int
    younger: int


def plan_partition_expiry(
    schema: TableSchema, held: Sequence[PartitionContent], rule: ExpiryRule, cutoff: datetime, limit: int
) -> PartitionExpiry:
    """Choose partitions older than ``cutoff`` (a local time, exclusive): the oldest first, at most ``limit``."""
    timed = [(h, rule.time_of(schema, h)) for h in held]
    readable = [(h, t) for h, t in timed if t is not None]
    old = sorted(((h, t) for h, t in readable if t < cutoff), key=lambda pair: (pair[1], pair[0].text))
    return PartitionExpiry(
        expired=tuple(old[:limit]),
        unreadable=tuple(h for h, t in timed if t is None),
        over_limit=max(0, len(old) - limit),
        younger=len(readable) - len(old),
    )


def _filled(pattern: str, texts: Mapping[str, str | None]) -> str | None:
    """Insert the columns' texts into a pattern; of two names that match the longer one. None: one of them is null."""
    names = "|".join(re.escape(n) for n in sorted(texts, key=len, reverse=True))
    if any(texts[name] is None for name in re.findall(rf"\$({names})", pattern)):
        return None
    return re.sub(rf"\$({names})", lambda match: str(texts[match[1]]), pattern)


def _plain_time(text: str) -> datetime:
    match = _PLAIN.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return datetime(*(int(part or 0) for part in match.groups()))  # type: ignore[arg-type]
