"""The time of a partition: ``partition.timestamp-pattern`` and ``-formatter``.

The pattern combines partition columns and constants (``$dt $hour:00:00``); the formatter parses the resulting text as a
time. Together they determine which part of a time each column holds, and so the step from one partition to the next.

See docs/chain-tables.md, Partitions and time.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.java_time import DateTimeFormat, Element, TimeUnit, parse_format

MAX_STEPS = 10_000_000
"""The number of steps after which Paimon stops looking."""

_FIXED = {
    TimeUnit.DAY: timedelta(days=1),
    TimeUnit.HOUR: timedelta(hours=1),
    TimeUnit.MINUTE: timedelta(minutes=1),
    TimeUnit.SECOND: timedelta(seconds=1),
}

_Part = tuple[str, str]
"""``("$", column)`` or ``("", one character)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionClock:
    """Maps texts of ``columns`` to local times and back. ``covered``: the formatter's elements that columns hold."""

    columns: tuple[str, ...]
    pattern: str
    formatter: DateTimeFormat
    parts: tuple[_Part, ...]
    covered: tuple[tuple[Element, ...], ...]

    @property
    def step(self) -> TimeUnit:
        """The smallest unit of time that a column holds."""
        return max(e.unit for elements in self.covered for e in elements if e.unit is not None)

    def time_of(self, texts: Sequence[str]) -> datetime:
        """Return the time of a partition, given the texts of its columns in order.

        Raises:
            ValueError: they are not a time.
        """
        by_column = dict(zip(self.columns, texts, strict=True))
        return self.formatter.parse("".join(by_column[t] if kind else t for kind, t in self.parts))

    def texts_at(self, moment: datetime) -> tuple[str, ...]:
        """Return the column texts of the partition at a time, as Paimon writes them to look up partitions."""
        return tuple(self.formatter.format(moment, elements) for elements in self.covered)

    def times_between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Return the times of the partitions after ``after`` up to and including ``until``; none if that is earlier.

        Raises:
            InvalidInputError: there are more than ``MAX_STEPS``.
        """
        if self.step in _FIXED and (until - after) // _FIXED[self.step] > MAX_STEPS:
            raise InvalidInputError(
                f"More than {MAX_STEPS} partitions between {after} and {until} (pattern {self.pattern!r}, formatter "
                f"{self.formatter.text!r}): ask for a shorter range"
            )
        for count in range(1, MAX_STEPS + 1):
            try:
                moment = _plus(after, self.step, count)
            except (ValueError, OverflowError):  # after the year 9999
                return
            if moment > until:
                return
            yield moment

    @property
    def sort_problem(self) -> str | None:
        """Return why the texts, compared column by column, do not sort chronologically; None if they do.

        Paimon finds the nearest earlier partition by comparing texts.
        """
        last = -1
        for column, elements in zip(self.columns, self.covered, strict=True):
            for e in elements:
                if e.unit is None:
                    continue
                if e.unit <= last:
                    return f"column {column} has its {e.unit.name.lower()} after a smaller unit"
                if not e.is_fixed:
                    return f"the {e.unit.name.lower()} in column {column} has no fixed number of digits"
                if e.letter == "k":
                    return f"column {column} writes midnight as hour 24"
                last = e.unit
        return None


def partition_clock(
    pattern: str, formatter: str, columns: Sequence[str], other_columns: Sequence[str] = ()
) -> PartitionClock:
    """Match a pattern with a formatter. ``columns`` make up the time; ``other_columns`` must not occur.

    Raises:
        InvalidInputError: they don't match, or match in several ways, or a column is unknown, missing or repeated.
    """
    if not pattern:
        raise InvalidInputError("partition.timestamp-pattern is missing: set it, e.g. to $dt")
    if not formatter:
        raise InvalidInputError("partition.timestamp-formatter is missing: set it, e.g. to yyyyMMdd")
    form = parse_format(formatter)
    parts = _parts(pattern, columns, other_columns)
    found = list(_alignments(parts, form.elements, 0, 0))
    if not found:
        raise InvalidInputError(
            f"partition.timestamp-pattern {pattern!r} does not fit partition.timestamp-formatter {formatter!r}"
        )
    if len(found) > 1:
        raise InvalidInputError(
            f"partition.timestamp-pattern {pattern!r} fits partition.timestamp-formatter {formatter!r} in more than "
            f"one way: put a literal between adjacent columns, in both"
        )
    covered = tuple(found[0][c] for c in columns)
    return PartitionClock(columns=tuple(columns), pattern=pattern, formatter=form, parts=tuple(parts), covered=covered)


def _parts(pattern: str, columns: Sequence[str], other_columns: Sequence[str]) -> list[_Part]:
    known = sorted(columns, key=len, reverse=True)
    out: list[_Part] = []
    at = 0
    while at < len(pattern):
        if pattern[at] != "$":
            out.append(("", pattern[at]))
            at += 1
            continue
        rest = pattern[at + 1 :]
        name = next((c for c in known if rest.startswith(c)), None)
        if name is None:
            strange = next((c for c in other_columns if rest.startswith(c)), None)
            why = f": {strange} is a group column, not a time column" if strange else ""
            raise InvalidInputError(
                f"Unknown variable in pattern {pattern!r} at position {at}{why} (columns: {', '.join(columns)})"
            )
        out.append(("$", name))
        at += 1 + len(name)
    used = [text for kind, text in out if kind]
    wrong = next((c for c in columns if used.count(c) != 1), None)
    if wrong is not None:
        times = "is missing in" if wrong not in used else "is more than once in"
        raise InvalidInputError(f"Column {wrong} {times} partition.timestamp-pattern {pattern!r}")
    return out


_Alignment = dict[str, tuple[Element, ...]]


def _alignments(parts: Sequence[_Part], elements: Sequence[Element], i: int, j: int) -> Iterator[_Alignment]:
    """Return every match of the pattern from part ``i`` on with the formatter from element ``j`` on."""
    if i == len(parts):
        if j == len(elements):
            yield {}
        return
    if j == len(elements):
        return
    kind, text = parts[i]
    if kind:
        for end in range(j + 1, len(elements) + 1):
            own = tuple(elements[j:end])
            # literals at its edges must belong to the pattern, otherwise two matches would mean the same
            if not own[0].literal and not own[-1].literal:
                yield from ({text: own, **rest} for rest in _alignments(parts, elements, i + 1, end))
    elif elements[j].literal == text:
        yield from _alignments(parts, elements, i + 1, j + 1)
    elif not elements[j].literal:
        for end in _constants(parts, elements[j], i):
            yield from _alignments(parts, elements, end, j + 1)


def _constants(parts: Sequence[_Part], element: Element, start: int) -> Iterator[int]:
    """Return the possible end positions of a value of this field that starts at part ``start``."""
    digits = ""
    for at in range(start, len(parts)):
        kind, text = parts[at]
        if kind or not text.isdigit():
            return
        digits += text
        if element.accepts(digits):
            yield at + 1


def _plus(moment: datetime, unit: TimeUnit, count: int) -> datetime:
    if unit in _FIXED:
        return moment + count * _FIXED[unit]
    months = moment.year * 12 + moment.month - 1 + count * (12 if unit == TimeUnit.YEAR else 1)
    year, month = divmod(months, 12)
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)
