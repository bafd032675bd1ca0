"""Which columns of a branch are main's. Pure.

Main and a branch have given the columns that each got since the branch point ids of their own, so one id may mean two
columns. As for a publish, a column that a branch has got is the one that main has got under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_paimon.core.format.schema import TableSchema


def ids_on_main(main: Sequence[TableSchema], branch: Sequence[TableSchema]) -> Mapping[int, int]:
    """Return main's id of each column that a branch has ever had, below zero for one that main has never had.

    Both: all schema versions, ascending. Those of the branch point are the same in both.
    """
    own = {s.id: _columns(s) for s in main}
    shared = {f.id for s in branch if own.get(s.id) == _columns(s) for f in s.fields}
    got = {f.name: f.id for s in main for f in s.fields if f.id not in shared}
    names: dict[int, list[str]] = {}
    for field in (f for s in branch for f in s.fields):
        names.setdefault(field.id, []).insert(0, field.name)
    return {
        number: number if number in shared else next((got[n] for n in known if n in got), -1 - number)
        for number, known in names.items()
    }


def _columns(schema: TableSchema) -> list[tuple[int, str, str]]:
    return [(f.id, f.name, str(f.type)) for f in schema.fields]


def under_ids(schema: TableSchema, ids: Mapping[int, int]) -> TableSchema:
    """Return a schema version with other ids of its columns, given by their own."""
    return replace(schema, fields=tuple(replace(f, id=ids.get(f.id, f.id)) for f in schema.fields))
