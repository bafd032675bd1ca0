"""Fields of a trigger form that a DAG's author fixes: the form hides them, and no run says something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

_LOCK: dict[str, Any] = {"$schema": "http://json-schema.org/draft-04/schema#", "const": "locked"}
"""Airflow's form hides a field whose schema has a ``const``, unless that is false, 0 or empty. Draft 4 has no such
keyword and leaves it to the form; the value itself stands in ``enum``, by which Airflow refuses any other, at the
trigger and in each task."""


def lock(param: Param, value: Any) -> Param:
    """Fix a field at a value that its own schema allows.

    Raises:
        ParamValidationError: it does not.
    """
    Param(value, **param.schema).resolve()
    kept: dict[str, Any] = {name: param.schema[name] for name in ("title", "section") if name in param.schema}
    return Param(value, param.description, enum=[value], **kept, **_LOCK)


def locked_names(params: Any) -> frozenset[str]:
    """Name the locked fields among the parameters of a DAG."""
    found = {name: params.get_param(name) for name in params} if hasattr(params, "get_param") else dict(params or {})
    return frozenset(name for name, param in found.items() if is_locked(getattr(param, "schema", None) or {}))


def is_locked(schema: Mapping[str, Any]) -> bool:
    """Say whether this is the schema of a parameter that was made by :func:`lock`."""
    return _LOCK.items() <= schema.items()
