"""The result of an operation in the log of its task, for people: its warnings, then its details as YAML."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import yaml

_MOST_ENTRIES = 50
_MOST_WITHIN_ENTRY = 5
_MOST_LINES = 200


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # C is ten times as fast
    """YAML in which an entry of a list takes one line."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.Node:
        node: yaml.SequenceNode = super().represent_sequence(tag, sequence, flow_style)
        for entry in node.value:
            if isinstance(entry, yaml.CollectionNode):
                entry.flow_style = True
        return node


def log_lines(result: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the lines, each with its log level; what is too long is cut, and a line says so."""
    # Plain types, none of them twice. The file system may give names that are no text.
    plain = json.loads(json.dumps(_cut(result), ensure_ascii=False).encode(errors="replace"))
    details = plain["details"]
    known = {**plain, **details}.items()
    if isinstance(details.get("warnings"), list):  # some checks have a number there
        for warning in details.pop("warnings"):
            yield logging.WARNING, str(warning)
    if plain["dry_run"]:
        yield logging.INFO, "Dry run, nothing was changed. It would give:"
        plan = details.pop("plan", {}).items()
        if rest := {name: value for name, value in plan if value != [] and (name, value) not in known}:
            details["plan"] = rest
    lines = [line for name, value in details.items() for line in _as_yaml(name, value)]
    for line in lines[:_MOST_LINES]:
        yield logging.INFO, line
    if len(lines) > _MOST_LINES:
        yield logging.INFO, f"({len(lines) - _MOST_LINES:,} more lines: see the result)"


def _as_yaml(name: str, value: Any) -> list[str]:
    # No text is wrapped: Airflow masks secrets line by line.
    flow = None if isinstance(value, list | dict) else False
    text: str = yaml.dump(
        {name: value}, Dumper=_Dumper, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=1 << 20
    )
    return text.splitlines()


def _cut(value: Any, most: int = _MOST_ENTRIES) -> Any:
    """Copy a value with the first entries of each list and mapping in it."""
    if isinstance(value, Mapping):
        first = {name: _cut(one, most) for name, one in islice(value.items(), _MOST_ENTRIES)}
        left = len(value) - len(first)
        return {**first, "and": f"{left:,} more"} if left else first
    if isinstance(value, list | tuple):
        entries = [_cut(one, _MOST_WITHIN_ENTRY) for one in value[:most]]
        left = len(value) - len(entries)
        return [*entries, f"and {left:,} more"] if left else entries
    return value
