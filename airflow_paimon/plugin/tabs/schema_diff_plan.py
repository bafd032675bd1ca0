"""How a schema version differs from the one before it, in lines. Columns are the same when their field id is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField


@dataclass(frozen=True, slots=True)
class Change:
    """``kind``: added, removed or changed."""

    kind: str
    text: str


def schema_changes(before: TableSchema | None, after: TableSchema) -> list[Change]:
    """List what changed between two versions; all columns of a first one."""
    if before is None:
        return [Change("added", f"column {_column(f)}") for f in after.fields]
    return [*_columns(before, after), *_keys(before, after), *_options(before, after)]


def _columns(before: TableSchema, after: TableSchema) -> Iterator[Change]:
    old = {f.id: f for f in before.fields}
    new = {f.id: f for f in after.fields}
    for field in after.fields:
        if field.id not in old:
            yield Change("added", f"column {_column(field)}")
        else:
            yield from _field(old[field.id], field)
    for field in before.fields:
        if field.id not in new:
            yield Change("removed", f"column {_column(field)}")
    if [f.id for f in before.fields if f.id in new] != [f.id for f in after.fields if f.id in old]:
        yield Change("changed", f"order of columns: {', '.join(after.field_names)}")


def _field(old: DataField, new: DataField) -> Iterator[Change]:
    if old.name != new.name:
        yield Change("changed", f"column {old.name} is now {new.name}")
    if old.type != new.type:
        yield Change("changed", f"column {new.name}: {old.type} is now {new.type}")
    if old.description != new.description:
        yield Change("changed", f"column {new.name}: comment {old.description!r} is now {new.description!r}")
    if old.default_value != new.default_value:
        yield Change("changed", f"column {new.name}: default {old.default_value!r} is now {new.default_value!r}")


def _keys(before: TableSchema, after: TableSchema) -> Iterator[Change]:
    for what in ("primary_keys", "partition_keys", "comment"):
        old, new = getattr(before, what), getattr(after, what)
        if old != new:
            yield Change("changed", f"{what.replace('_', ' ')}: {_text(old)} is now {_text(new)}")


def _options(before: TableSchema, after: TableSchema) -> Iterator[Change]:
    old, new = before.options, after.options
    for key in sorted(old.keys() | new.keys()):
        if key not in old:
            yield Change("added", f"option {key} = {new[key]}")
        elif key not in new:
            yield Change("removed", f"option {key} = {old[key]}")
        elif old[key] != new[key]:
            yield Change("changed", f"option {key}: {old[key]} is now {new[key]}")


def _column(field: DataField) -> str:
    return f"{field.name} {field.type}"


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
