"""The part of Java's ``DateTimeFormatter`` that partition values are written in: digits and literals, no zones.

``DateTimeFormat`` parses and formats as ``DateTimeFormatter.ofPattern(text, Locale.ROOT)`` does (strict parsing, SMART
resolving): fixed widths after a variable one are reserved for their fields, a day after the end of its month is its
last, ``24:00:00`` is the next day. Years outside 1 to 9999, and any sign, are rejected.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from airflow_paimon.core.errors import InvalidInputError

_DIGITS = frozenset("0123456789")
_MAX_WIDTH = 19


class TimeUnit(IntEnum):
    """From the coarsest to the finest."""

    YEAR = 0
    MONTH = 1
    DAY = 2
    HOUR = 3
    MINUTE = 4
    SECOND = 5


_UNITS = {
    letter: unit
    for unit, letters in zip(TimeUnit, ("yu", "ML", "dD", "Hk", "m", "s"), strict=True)
    for letter in letters
}
_RANGES = {"y": (1, 9999), "M": (1, 12), "d": (1, 31), "D": (1, 366), "H": (0, 24), "m": (0, 59), "s": (0, 59)}
_SAME_FIELD = {"u": "y", "L": "M", "k": "H"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A number of ``min_width`` to ``max_width`` digits for ``letter``, or one literal character (no letter).

    ``reserved``: how many digits of what follows directly belong to other fields. ``exact``: no more than ``min_width``
    digits without a sign, though the width is open (``yyyy``).
    """

    letter: str = ""
    literal: str = ""
    min_width: int = 1
    max_width: int = 1
    reserved: int = 0
    exact: bool = False

    @property
    def unit(self) -> TimeUnit | None:
        return _UNITS.get(self.letter)

    @property
    def is_fixed(self) -> bool:
        """Whether all its values have the same number of characters."""
        return self.exact or self.min_width == self.max_width

    def accepts(self, digits: str) -> bool:
        """Return whether these characters, by themselves, are a value of this field."""
        widest = self.min_width if self.exact else self.max_width
        if not self.min_width <= len(digits) <= widest or not set(digits) <= _DIGITS:
            return False
        low, high = _RANGES[_SAME_FIELD.get(self.letter, self.letter)]
        return (self.letter in "yu" and self.max_width == 2) or low <= int(digits) <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class DateTimeFormat:
    """``text`` is the pattern, ``elements`` its parts in order."""

    text: str
    elements: tuple[Element, ...]

    def parse(self, value: str) -> datetime:
        """Parse a text as a local time; fields that the format lacks are 0.

        Raises:
            ValueError: the text is not of this format.
        """
        return _parse(self.text, value)

    def format(self, moment: datetime, elements: Sequence[Element] | None = None) -> str:
        """Format a time, or some elements of it."""
        return "".join(_written(e, moment) for e in (self.elements if elements is None else elements))


@lru_cache(maxsize=64)
def parse_format(text: str) -> DateTimeFormat:
    """Read a formatter pattern such as ``yyyyMMdd HH:mm:ss``.

    Raises:
        InvalidInputError: a letter that is not one of ``y u M L d D H k m s``, a count that Java refuses or writes as
            a word, or a format that does not give a complete date.
    """
    elements = _with_reserved([e for run in _runs(text) for e in run])
    units = {e.letter if e.letter == "D" else _SAME_FIELD.get(e.letter, e.letter) for e in elements if e.letter}
    if not ("y" in units and ({"M", "d"} <= units or "D" in units)):
        raise InvalidInputError(
            f"Formatter {text!r} does not give a complete date: it needs a year, a month and a day (or a day of the "
            f"year); write the missing ones as constants in the pattern, e.g. pattern $month01 with formatter yyyyMMdd"
        )
    if ("s" in units and "m" not in units) or ("m" in units and "H" not in units):
        raise InvalidInputError(f"Formatter {text!r} has seconds or minutes without the unit above them: add it")
    return DateTimeFormat(text=text, elements=elements)


def _runs(text: str) -> list[list[Element]]:
    out: list[list[Element]] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "'":
            literal, at = _quoted(text, at)
            out.append([Element(literal=c) for c in literal])
        elif char.isascii() and char.isalpha():
            count = len(next("".join(g) for _, g in groupby(text[at:])))
            out.append([_field(char, count, text)])
            at += count
        elif char in "[]{}#":
            raise InvalidInputError(f"Formatter {text!r}: {char!r} is not supported; quote it if it is a literal")
        else:
            out.append([Element(literal=char)])
            at += 1
    return out


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the literal that begins with the quote at ``at``, and where it ends; two quotes are one in the text."""
    literal, position = "", at + 1
    while position < len(text):
        if text[position] != "'":
            literal += text[position]
            position += 1
        elif text[position + 1 : position + 2] == "'":
            literal += "'"
            position += 2
        else:
            return literal or "'", position + 1
    raise InvalidInputError(f"Formatter {text!r}: a quote is not closed")


def _field(letter: str, count: int, text: str) -> Element:
    if letter not in _UNITS:
        raise InvalidInputError(
            f"Unsupported formatter pattern letter {letter!r} in formatter {text!r}: partition times are made of "
            f"y u M L d D H k m s, as in yyyy-MM-dd"
        )
    if letter in "yu":
        if count == 2:
            return Element(letter=letter, min_width=2, max_width=2)
        return Element(letter=letter, min_width=count, max_width=_MAX_WIDTH, exact=count >= 4)
    most = 3 if letter == "D" else 2
    if count > most:
        raise InvalidInputError(f"Formatter {text!r}: {letter * count} is not a number of up to {most} digits")
    if count == 1:
        return Element(letter=letter, min_width=1, max_width=_MAX_WIDTH)
    return Element(letter=letter, min_width=count, max_width=most)


def _with_reserved(elements: Sequence[Element]) -> tuple[Element, ...]:
    """Reserve digits for the fixed-width numbers directly after a number: Java's adjacent value parsing."""
    out = list(elements)
    first: int | None = None
    for at, element in enumerate(elements):
        if element.literal:
            first = None
        elif first is None:
            first = at
        elif element.min_width == element.max_width:
            out[first] = replace(out[first], reserved=out[first].reserved + element.max_width)
        else:  # Java forgets what it reserved
            out[first] = replace(out[first], reserved=0)
            first = at
    return tuple(out)


def _end_of_number(value: str, start: int, element: Element) -> int:
    most = min(len(value), start + element.max_width + element.reserved)
    end = start
    while end < most and value[end] in _DIGITS:
        end += 1
    if element.reserved:
        end = start + min(max(element.min_width, end - start - element.reserved), end - start, element.max_width)
    width = end - start
    if width < element.min_width or (element.exact and width > element.min_width):
        raise ValueError(value)
    return end


def _number(element: Element, number: int) -> int:
    if element.letter in "yu" and element.max_width == 2:
        return 2000 + number
    if element.letter == "k":
        if number > 24:
            raise ValueError(number)
        return number % 24
    return number


@lru_cache(maxsize=2**16)
def _parse(text: str, value: str) -> datetime:
    """Cached: many groups and branches hold the same values. A format is identified by its text."""
    fields: dict[str, int] = {}
    at = 0
    for element in parse_format(text).elements:
        if element.literal:
            if value[at : at + 1] != element.literal:
                raise ValueError(value)
            at += 1
            continue
        end = _end_of_number(value, at, element)
        number = _number(element, int(value[at:end]))
        at = end
        field = _SAME_FIELD.get(element.letter, element.letter)
        if fields.setdefault(field, number) != number:
            raise ValueError(value)
    if at != len(value):
        raise ValueError(value)
    return _resolved(fields)


def _resolved(fields: dict[str, int]) -> datetime:
    for letter, number in fields.items():
        low, high = _RANGES[letter]
        if not low <= number <= high:
            raise ValueError(number)
    year = fields["y"]
    if "M" in fields and "d" in fields:
        last = calendar.monthrange(year, fields["M"])[1]
        day = datetime(year, fields["M"], min(fields["d"], last))
    else:
        day = datetime(year, 1, 1) + timedelta(days=fields["D"] - 1)
    if day.year != year or fields.get("M", day.month) != day.month:
        raise ValueError(fields)
    if "D" in fields and fields["D"] != day.timetuple().tm_yday:
        raise ValueError(fields)
    if "d" in fields and "M" not in fields and fields["d"] != day.day:
        raise ValueError(fields)
    hour, minute, second = (fields.get(letter, 0) for letter in "Hms")
    if hour == 24 and (minute or second):
        raise ValueError(fields)
    try:
        return day + timedelta(hours=hour, minutes=minute, seconds=second)
    except OverflowError:
        raise ValueError(fields) from None


_NUMBER_OF: Mapping[str, Callable[[datetime], int]] = {
    "y": attrgetter("year"),
    "M": attrgetter("month"),
    "d": attrgetter("day"),
    "D": lambda moment: moment.timetuple().tm_yday,
    "H": attrgetter("hour"),
    "m": attrgetter("minute"),
    "s": attrgetter("second"),
}


def _written(element: Element, moment: datetime) -> str:
    if element.literal:
        return element.literal
    number = _NUMBER_OF[_SAME_FIELD.get(element.letter, element.letter)](moment)
    if element.letter == "k":
        number = number or 24
    if element.letter in "yu" and element.max_width == 2:
        number %= 100
    return f"{number:0{element.min_width}d}"
