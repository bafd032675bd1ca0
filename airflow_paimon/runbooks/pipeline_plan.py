"""The tables of ``pipeline_correction``'s form: what happens to each, and what it is made from. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, PaimonError, did_you_mean
from airflow_paimon.core.sql_text.statement import named_tables, statement_kind
from airflow_paimon.core.sql_text.tokens import split_statements
from airflow_paimon.core.streaming.replay_plan import named_snapshots
from airflow_paimon.core.table.paths import parse_identifier
from airflow_paimon.forms.rules import rules_as_json

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TEXTS = ("table", "correct", "replay", "mode")
_LISTS = ("partitions", "views", "sources")
_OF = {"correct": ("partitions", "views", "mode"), "replay": ("sources",)}
_KEYS = (*_TEXTS, *_LISTS, "all_rows", "checks")
EXAMPLE = (
    '[{"table": "flights.raw", "correct": "UPDATE branch SET delay = delay / 60 '
    "WHERE dt = '2026-11-18' AND delay BETWEEN 60 AND 3599\"}, "
    '{"table": "flights.daily", "replay": "INSERT OVERWRITE branch PARTITION (dt = \'2026-11-18\') SELECT carrier, '
    "sum(delay) FROM raw WHERE dt = '2026-11-18' GROUP BY carrier\"}]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """A table of the form. One of ``correct`` and ``replay`` is given: SQL, or ``module:name``.

    ``sources``: what a replay reads, tables by name; those of the form are read on the run's branch. ``checks``: rules
    that its branch must keep, as JSON.
    """

    table: str
    correct: str | None = None
    replay: str | None = None
    mode: str = "overwrite"
    partitions: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    sources: Mapping[str, str]
    all_rows: bool = False
    checks: str | None = None

    @property
    def text(self) -> str:
        """What runs."""
        return self.correct or self.replay or ""

    @property
    def runs(self) -> dict[str, str | None]:
        """Return ``sql`` and ``function``, one of which is None."""
        function = _FUNCTION.fullmatch(self.text.strip())
        return {"sql": None if function else self.text, "function": self.text.strip() if function else None}


def parse_tables(items: Sequence[Any]) -> tuple[PipelineTable, ...]:
    """Read the form's tables, upstream first.

    Raises:
        InvalidInputError: the message names the field, the table and what to write.
    """
    if not items:
        raise InvalidInputError(f"Tables is empty: write what happens to each, upstream first, such as {EXAMPLE}")
    found: list[PipelineTable] = []
    for number, item in enumerate(items, 1):
        name = _table_of(number, item)
        if name in (one.table for one in found):
            raise InvalidInputError(f"Tables: {name} occurs twice; each table is corrected or replayed once")
        later = {_name(one) for one in items[number - 1 :]}
        found.append(_parse(name, item, [one.table for one in found], later))
    return tuple(found)


def _name(item: Any) -> str:
    return str(item.get("table", "")).strip() if isinstance(item, Mapping) else ""


def _table_of(number: int, item: Any) -> str:
    if not isinstance(item, Mapping):
        raise InvalidInputError(
            f"Tables: entry {number} is {item!r}, not an object; write each table as one, such as {EXAMPLE}"
        )
    unknown = sorted(set(item) - set(_KEYS))
    if unknown:
        hints = [key + did_you_mean(key, _KEYS) for key in unknown]
        raise InvalidInputError(
            f"Tables: entry {number} ({_name(item) or 'without a table'}) has the unknown key {', '.join(hints)}. The "
            f"keys are: {', '.join(_KEYS)}"
        )
    name = _name(item)
    if not name:
        raise InvalidInputError(f'Tables: entry {number} names no table; write "table": "database.table"')
    try:
        found = parse_identifier(name)
    except PaimonError as error:
        raise InvalidInputError(f"Tables: entry {number}: {error.message}") from None
    if str(found) != f"{found.database}.{found.table}":
        raise InvalidInputError(f"Tables: entry {number}: {name!r} is not a table: write database.table, no branch")
    return name


def _parse(table: str, item: Mapping[str, Any], earlier: Sequence[str], later: set[str]) -> PipelineTable:
    texts = {key: _text(table, key, item.get(key)) for key in ("correct", "replay", "mode")}
    lists = {key: _list(table, key, item.get(key)) for key in _LISTS}
    if bool(texts["correct"]) == bool(texts["replay"]):
        raise InvalidInputError(
            f'Tables: {table}: give "correct" (a statement on the view branch) or "replay" (statements, or '
            f"module:name), one of the two"
        )
    kind = "correct" if texts["correct"] else "replay"
    for key in _OF["replay" if kind == "correct" else "correct"]:
        if item.get(key):
            raise InvalidInputError(f'Tables: {table}: "{key}" does not go with "{kind}": leave it out')
    if texts["mode"] not in (None, "overwrite", "upsert"):
        raise InvalidInputError(f'Tables: {table}: "mode" is overwrite or upsert, not {texts["mode"]!r}')
    if not isinstance(item.get("all_rows", False), bool):
        raise InvalidInputError(f'Tables: {table}: "all_rows" is true or false')
    found = PipelineTable(
        table=table,
        correct=texts["correct"],
        replay=texts["replay"],
        mode=texts["mode"] or "overwrite",
        partitions=lists["partitions"],
        views=lists["views"],
        sources=_sources(table, lists["sources"], earlier, later) if kind == "replay" else {},
        all_rows=item.get("all_rows", False),
        checks=rules_as_json(item.get("checks"), f"Tables: {table}: checks"),
    )
    _check_statements(found)
    return found


def _text(table: str, key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInputError(f'Tables: {table}: "{key}" must be a string, got {value!r}')
    return value if value and value.strip() else None


def _list(table: str, key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidInputError(f'Tables: {table}: "{key}" must be a list of strings, got {value!r}')
    return tuple(value)


def _sources(table: str, texts: Sequence[str], earlier: Sequence[str], later: set[str]) -> dict[str, str]:
    """Return tables by name: those that are given, or all tables before this one."""
    if not texts and not earlier:
        raise InvalidInputError(
            f"Tables: {table} is replayed, and nothing is before it: put the tables that it is made from first, or "
            f'name them: "sources": ["raw=flights.raw"]'
        )
    named = [text if "=" in text else f"{text.strip().partition('.')[2]}={text.strip()}" for text in texts or earlier]
    try:
        found = named_tables("sources", named)
    except InvalidInputError as error:
        error.set_message(f"Tables: {table}: {error.message}")
        raise
    wrong = next((source for source in found.values() if source in later), None)
    if wrong is not None:
        raise InvalidInputError(
            f"Tables: {table} reads {wrong}, which does not come before it: put the upstream tables first"
        )
    return found


def _check_statements(found: PipelineTable) -> None:
    """A SELECT replays nothing; of a correction, the columns of a SELECT are compared later."""
    sql = found.runs["sql"]
    if found.replay is None or sql is None:
        return
    statements = split_statements(sql)
    wrong = next((text for text in statements if statement_kind(text) is None), None)
    if wrong is not None or not statements:
        raise InvalidInputError(
            f'Tables: {found.table}: "replay" takes UPDATE, DELETE, MERGE and INSERT statements on the view branch, or '
            f"module:name; not {(wrong or sql)[:80]!r}"
        )


def start_snapshots(lines: Sequence[str], upstream: Sequence[str]) -> dict[str, int]:
    """Read ``database.table=ID`` lines, one for each upstream table; of one table the id is enough.

    Raises:
        InvalidInputError: another table, no number, or a table is missing.
    """
    try:
        found = named_snapshots("Start: snapshots", [line for line in lines if line.strip()], upstream)
    except InvalidInputError as error:
        raise InvalidInputError(error.message.replace("names no source", "names no upstream table")) from None
    missing = [name for name in upstream if name not in found]
    if missing:
        raise InvalidInputError(f"Start: snapshots: the start of {', '.join(missing)} is missing: add {missing[0]}=7")
    return found
