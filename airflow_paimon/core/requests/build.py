"""Builds and checks a request from plain values: the flags of a job, the arguments of an operator."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.base import Request, flag_name
from airflow_paimon.core.requests.operations import operation_of

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
    clean = {k: v for k, v in values.items() if v is not None}
    request = cls(**{k: _coerce(known[k], v) for k, v in clean.items()})
    _check(request)
    return request


def _coerce(spec: dataclasses.Field[Any], value: Any) -> Any:
    if spec.metadata.get("repeat"):
        return (value,) if isinstance(value, str) else tuple(value)
    annotation = str(spec.type)
    if annotation.startswith("int"):
        if isinstance(value, bool) or not _NUMBER.fullmatch(str(value).strip()):
            raise InvalidInputError(f"{spec.name} must be a whole number, got {value!r}")
        return int(value)
    if annotation == "bool":
        return _coerce_bool(spec.name, value)
    return value


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
            name = flag_name(spec.name)
            raise InvalidInputError(f"{request.operation} needs {spec.name} ({name}): {spec.metadata['help']}")
        choices = spec.metadata.get("choices")
        if choices and value is not None and value not in choices:
            raise InvalidInputError(f"{spec.name} must be one of {', '.join(choices)}; got {value!r}")
        minimum = spec.metadata.get("minimum")
        if minimum is not None and value is not None and value < minimum:
            raise InvalidInputError(f"{spec.name} must be at least {minimum}; got {value}")
