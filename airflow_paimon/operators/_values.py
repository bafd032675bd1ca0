"""Arguments as operators get them: values, or the text that a template rendered to."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.errors import InvalidInputError


def as_list(name: str, value: Any) -> list[str]:
    """Take a list, one text, or a template that rendered to the text of a list."""
    if value is None:
        return []
    if isinstance(value, str):
        text = value.strip()
        parsed = _literal(name, text) if text.startswith(("[", "(")) else [text] if text else []
    else:
        parsed = value
    return [str(item) for item in parsed]


def as_dict(name: str, value: Any) -> dict[str, Any]:
    """Take a mapping, or a template that rendered to the text of one."""
    parsed = _literal(name, value) if isinstance(value, str) and value.strip() else value or {}
    if not isinstance(parsed, Mapping):
        raise InvalidInputError(f"{name} must be a mapping, got {type(parsed).__name__}")
    return dict(parsed)


def _literal(name: str, text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    raise InvalidInputError(f"{name} rendered to {text!r}, which is neither JSON nor a Python literal")
