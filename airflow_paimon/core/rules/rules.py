"""Rules that a branch has to keep, as people write them: a list of JSON objects, each with one kind of rule.

The names of kinds and of ``severity`` are those of dbt's data tests.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import parse_json
from airflow_paimon.core.requests.text_files import read_text

ERROR, WARN = "error", "warn"
CHANGED, ALL = "changed", "all"
BASE, WEEK_BEFORE = "base", "week-before"
MEASURES = ("sum", "mean", "count", "min", "max")
ROW_KINDS = ("added", "changed", "deleted")
VIEWS = ("branch", "base", "main", "diff")
"""What SQL and functions see besides further views."""
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Amount:
    """A bound: a number, or a part of what there was before. ``percent``: ``value`` is one."""

    value: float
    percent: bool

    def __str__(self) -> str:
        return f"{self.value:g} %" if self.percent else f"{self.value:,.15g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What all rules have.

    ``text``: the rule as JSON in one form, by which a result is known to be this rule's. ``rows``: ``changed``: the
    rows that the branch adds or changes; ``all``: every row of the branch.
    """

    kind: ClassVar[str] = ""
    name: str
    severity: str
    rows: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sql(Rule):
    """A SELECT that gives the rows that break the rule."""

    kind = "sql"
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNull(Rule):
    kind = "not_null"
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique(Rule):
    """No two rows of the branch have the same values; rows with a NULL among them don't count."""

    kind = "unique"
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedValues(Rule):
    """NULL is accepted, too."""

    kind = "accepted_values"
    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relationships(Rule):
    """Values without a NULL among them are found in the ``fields`` of another table, ``to``."""

    kind = "relationships"
    columns: tuple[str, ...]
    to: str
    fields: tuple[str, ...]


ColumnRule = NotNull | Unique | AcceptedValues | Relationships
"""The rules that name columns and nothing else; ``spark/jobs/check_rows.py`` has what each of them means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits(Rule):
    """The most rows that the branch adds, changes or deletes: in all, or as a part of what each partition had."""

    kind = "row_limits"
    limits: tuple[tuple[str, Amount], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift(Rule):
    """By how much a measure of a partition may differ from what it was, or from the partition a week before.

    ``date``: the partition column by which that is found; None: the one that holds dates.
    """

    kind = "drift"
    measure: str
    column: str | None
    against: str
    most: Amount
    date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Rule):
    """``module:name``, called with the Spark session and the views; returns the rows that break the rule."""

    kind = "function"
    function: str


def parse_rules(raw: Any, where: str) -> tuple[Rule, ...]:
    """Parse a list of rules; ``where`` says in messages where it is written.

    Raises:
        InvalidInputError: names the rule, what is wrong with it, and what there is instead.
    """
    if not isinstance(raw, list):
        raise InvalidInputError(f"{where}: rules are a list, such as [{{'not_null': ['amount']}}]; it is {_short(raw)}")
    rules = tuple(_parse(one, f"{where}: rule {number}") for number, one in enumerate(raw, 1))
    seen: dict[str, str] = {}
    for rule in rules:
        if seen.setdefault(rule.name, rule.text) != rule.text:
            raise InvalidInputError(f"{where}: two rules have the name {rule.name!r}; give one of them another name")
    return rules


def is_module(module: str, allowed: Collection[str]) -> bool:
    """Whether a module is one of these; ``rules.*`` stands for ``rules`` and all below it."""
    below = [one.removesuffix("*") for one in allowed if one.endswith(".*")]
    return module in {*allowed, *(one[:-1] for one in below)} or module.startswith(tuple(below))


def parse_rules_text(text: str, where: str) -> tuple[Rule, ...]:
    """Parse rules that are written as JSON; none in an empty text.

    Raises:
        InvalidInputError: as ``parse_rules``, or it is not JSON.
    """
    if not text.strip():
        return ()
    try:
        raw = parse_json(text)
    except ValueError as error:
        raise InvalidInputError(f"{where} is not JSON: {error}") from None
    return parse_rules(raw, where)


def read_rules(path: str, table: str) -> tuple[Rule, ...]:
    """Read a file of rules.

    Raises:
        InvalidInputError: it can't be read, is not JSON, or holds something else than rules.
    """
    text = read_text(path, f"{table}: rules (--rules) takes the path of a JSON file, and {path!r}")
    return parse_rules_text(text, f"{table}: --rules")


def _parse(raw: Any, where: str) -> Rule:
    if not isinstance(raw, Mapping):
        raise InvalidInputError(f"{where} must be an object, such as {{'not_null': ['amount']}}; it is {_short(raw)}")
    kinds = [key for key in raw if key in _KINDS]
    if len(kinds) != 1:
        found = f"it has {' and '.join(kinds)}" if kinds else f"it has {', '.join(map(repr, raw)) or 'nothing'}"
        raise InvalidInputError(f"{where} needs one of {', '.join(_KINDS)}; {found}")
    kind = kinds[0]
    _only(raw, (kind, "name", "severity", "rows"), where)
    name = _optional_text(raw, "name", where) or _default_name(kind, raw[kind])
    common = {
        "name": name[:_LONGEST_NAME],
        "severity": _choice(raw, "severity", (ERROR, WARN), where),
        "rows": _choice(raw, "rows", (CHANGED, ALL), where),
        "text": json.dumps(dict(raw), sort_keys=True, separators=(",", ":"), default=str),
    }
    if "rows" in raw and kind not in _CHOOSES_ROWS:
        raise InvalidInputError(f"{where}: rows is of {', '.join(_CHOOSES_ROWS)} only, not of {kind}")
    return _KINDS[kind](raw[kind], f"{where} ({kind})", common)


_CHOOSES_ROWS = tuple(rule.kind for rule in get_args(ColumnRule))
_Common = Mapping[str, Any]


def _sql(value: Any, where: str, common: _Common) -> Rule:
    text = _text(value, where).strip().rstrip(";").strip()
    if text[:6].lower() not in ("select", "with\n", "with\t") and text[:5].lower() != "with ":
        raise InvalidInputError(f"{where} takes a SELECT that gives the rows that break the rule; it is {_short(text)}")
    return Sql(sql=text, **common)


def _accepted_values(value: Any, where: str, common: _Common) -> Rule:
    raw = _object(value, ("column", "values"), where)
    values = raw.get("values")
    if not isinstance(values, list) or not values or any(isinstance(v, list | dict) or v is None for v in values):
        raise InvalidInputError(f"{where}: values must be a list of strings, numbers or booleans, got {_short(values)}")
    return AcceptedValues(column=_text(raw.get("column"), f"{where}: column"), values=tuple(values), **common)


def _relationships(value: Any, where: str, common: _Common) -> Rule:
    raw = _object(value, ("columns", "to", "fields"), where)
    columns, fields = (_texts(raw.get(key), f"{where}: {key}") for key in ("columns", "fields"))
    if len(columns) != len(fields):
        raise InvalidInputError(f"{where}: columns has {len(columns)} names and fields {len(fields)}; pair them")
    return Relationships(columns=columns, to=_text(raw.get("to"), f"{where}: to"), fields=fields, **common)


def _row_limits(value: Any, where: str, common: _Common) -> Rule:
    raw = _object(value, ROW_KINDS, where)
    if not raw:
        raise InvalidInputError(f"{where} needs one of {', '.join(ROW_KINDS)}, such as {{'deleted': 0}}")
    limits = tuple((kind, _amount(raw[kind], f"{where}: {kind}")) for kind in ROW_KINDS if kind in raw)
    return RowLimits(limits=limits, **common)


def _drift(value: Any, where: str, common: _Common) -> Rule:
    raw = _object(value, ("measure", "column", "against", "most", "date"), where)
    measure = _choice(raw, "measure", MEASURES, where)
    column = _optional_text(raw, "column", where)
    if column is None and measure != "count":
        raise InvalidInputError(f"{where}: {measure} needs a column")
    if "most" not in raw:
        raise InvalidInputError(f"{where} needs most, such as '5 %'")
    most = _amount(raw["most"], f"{where}: most")
    against, date = _choice(raw, "against", (BASE, WEEK_BEFORE), where), _optional_text(raw, "date", where)
    if date is not None and against != WEEK_BEFORE:
        raise InvalidInputError(f"{where}: date goes with against: {WEEK_BEFORE} only")
    return Drift(measure=measure, column=column, against=against, most=most, date=date, **common)


def _function(value: Any, where: str, common: _Common) -> Rule:
    text = _text(value, where)
    if not all(text.partition(":")):
        raise InvalidInputError(f"{where}: {text!r} is not of the form module:name")
    return Function(function=text, **common)


_KINDS: Mapping[str, Callable[[Any, str, _Common], Rule]] = {
    "sql": _sql,
    "not_null": lambda value, where, common: NotNull(columns=_texts(value, where), **common),
    "unique": lambda value, where, common: Unique(columns=_texts(value, where), **common),
    "accepted_values": _accepted_values,
    "relationships": _relationships,
    "row_limits": _row_limits,
    "drift": _drift,
    "function": _function,
}


def _default_name(kind: str, value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{kind} {' '.join(shown.split())}"


def _only(raw: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    if unknown := [str(key) for key in raw if key not in known]:
        raise InvalidInputError(f"{where} has no {', '.join(unknown)}; there are: {', '.join(known)}")


def _object(value: Any, known: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where} must be an object with {', '.join(known)}, got {_short(value)}")
    _only(value, known, where)
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidInputError(f"{where} must be a string, got {_short(value)}")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise InvalidInputError(f"{where} must be a column or a list of columns, got {_short(value)}")
    return tuple(value)


def _optional_text(raw: Mapping[str, Any], key: str, where: str) -> str | None:
    return _text(raw[key], f"{where}: {key}") if key in raw else None


def _choice(raw: Mapping[str, Any], key: str, choices: tuple[str, ...], where: str) -> str:
    value = raw.get(key, choices[0])
    if value not in choices:
        raise InvalidInputError(f"{where}: {key} must be one of {', '.join(choices)}, got {_short(value)}")
    return str(value)


def _amount(value: Any, where: str) -> Amount:
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    number = _finite(value if match is None else float(match[1]))
    if number is None:
        raise InvalidInputError(f"{where} must be a number from 0 on, or a part such as '5 %', got {_short(value)}")
    return Amount(number, percent=match is not None)


def _finite(value: Any) -> float | None:
    """Return a number from 0 on that is neither NaN nor infinite; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
