"""Builds and checks requests from plain values: the flags of a job, the arguments of an operator."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.operations import operation_of
from airflow_paimon.core.requests.requests import Request, flag_name
from airflow_paimon.core.table.paths import BRANCH_PREFIX, LONGEST_NAME, TAG_PREFIX

_BRANCHES = frozenset({"branch", "to_branch", "from_branch", "against", "snapshot_branch", "delta_branch"})
_NUMBER = re.compile(r"-?[0-9]+")


def build_request(operation: str, values: Mapping[str, Any]) -> Request:
    """Build and check a request from plain values (an operator's arguments).

    Raises:
        InvalidInputError: the operation or a key is unknown, a required value is missing, a choice is not offered.
    """
    cls = operation_of(operation).request
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidInputError(f"{operation} has no option {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
    given = {k: _coerce(operation, known[k], v) for k, v in values.items() if v is not None}
    request = cls(**{k: v for k, v in given.items() if v is not None})
    _check(request)
    return request


def _coerce(operation: str, spec: dataclasses.Field[Any], value: Any) -> Any:
    if spec.metadata.get("repeat"):
        items = (value,) if isinstance(value, str) else tuple(value)
        for item in items:
            _refuse_nothing(operation, spec, item)
        return items
    if isinstance(value, str):
        if _is_nothing(value) and spec.metadata.get("may_be_blank"):
            return None
        _refuse_nothing(operation, spec, value)
        value = value.strip()
    annotation = str(spec.type)
    if annotation.startswith("int"):
        if isinstance(value, bool) or not _NUMBER.fullmatch(str(value)):
            raise InvalidInputError(f"{spec.name} must be a whole number, got {value!r}")
        return int(value)
    if annotation == "bool":
        return _coerce_bool(spec.name, value)
    return _coerce_text(spec.name, value) if annotation.startswith("str") else value


def _is_nothing(value: Any) -> bool:
    return isinstance(value, str) and value.strip() in ("", "None")


def _refuse_nothing(operation: str, spec: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a blank value, as left by an empty template or shell variable: it would silently switch off a check."""
    if not _is_nothing(value):
        return
    if spec.default == "":
        raise InvalidInputError(_needed(operation, spec))
    raise InvalidInputError(
        f"{operation}: {spec.name} ({flag_name(spec.name)}) is {value!r}, so a template or a variable in it was empty. "
        f"Leave it out if it should not apply"
    )


def _needed(operation: str, spec: dataclasses.Field[Any]) -> str:
    return f"{operation} needs {spec.name} ({flag_name(spec.name)}): {spec.metadata['help']}"


def _coerce_text(name: str, value: Any) -> str:
    """Take a text; of what a native template made of one, whole numbers and times."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidInputError(
        f"{name} must be a text, got {value!r}. With render_template_as_native_obj a template that looks like a Python "
        f"value becomes one; put quotes into it, or switch that off"
    )


def _coerce_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidInputError(f"{name} must be true or false, got {value!r}")
    return text == "true"


def _check(request: Request) -> None:
    for spec in dataclasses.fields(request):
        value = getattr(request, spec.name)
        if spec.default == "" and not value:
            raise InvalidInputError(_needed(request.operation, spec))
        _check_length(request.operation, spec, value)
        choices = spec.metadata.get("choices")
        if choices and value is not None and value not in choices:
            raise InvalidInputError(f"{spec.name} must be one of {', '.join(choices)}; got {value!r}")
        minimum = spec.metadata.get("minimum")
        if minimum is not None and value is not None and value < minimum:
            raise InvalidInputError(f"{spec.name} must be at least {minimum}; got {value}")


def _check_length(operation: str, spec: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a name that is too long for a file or folder of the storage."""
    prefix = TAG_PREFIX if spec.name == "tag" else BRANCH_PREFIX if spec.name in _BRANCHES else None
    if prefix is None or not isinstance(value, str):
        return
    size, most = len(value.encode()), LONGEST_NAME - len(prefix)
    if size > most:
        raise InvalidInputError(
            f"{operation}: {spec.name} ({flag_name(spec.name)}) is {size} bytes long; names of branches and tags have "
            f"at most {most}, new ones at most 200"
        )
