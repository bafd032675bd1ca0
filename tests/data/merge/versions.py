"""Versions of keys as short rows, merged as a table with some options merges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import merge_runs
from airflow_paimon.data.merge.versions import LEVEL

KINDS = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}
Version = tuple[Any, ...]
"""The kind, then the values of all columns."""


def schema_of(columns: Mapping[str, Any], options: Mapping[str, str]) -> TableSchema:
    """The first column is the key."""
    fields = tuple(DataField(i, n, parse_type(t)) for i, (n, t) in enumerate(columns.items()))
    keys = (next(iter(columns)),)
    return TableSchema(
        id=0, fields=fields, highest_field_id=len(fields), primary_keys=keys, options={"bucket": "1", **options}
    )


def merged(
    columns: Mapping[str, Any],
    options: Mapping[str, str],
    versions: Sequence[Version],
    *,
    numbers: Sequence[int] | None = None,
    levels: Sequence[int] | None = None,
) -> list[Version]:
    """Merge versions, each in a run of its own, oldest first; the rows that are left, with their kind."""
    schema = schema_of(columns, options)
    types = {n: arrow_type(parse_type(t)) for n, t in columns.items()}
    runs = []
    for at, version in enumerate(versions):
        row = {n: pa.array([v], types[n]) for n, v in zip(columns, version[1:], strict=True)}
        row["_SEQUENCE_NUMBER"] = pa.array([at if numbers is None else numbers[at]], pa.int64())
        row["_VALUE_KIND"] = pa.array([KINDS[version[0]]], pa.int8())
        if levels is not None:
            row[LEVEL] = pa.array([levels[at]], pa.int32())
        runs.append(iter([pa.RecordBatch.from_pydict(row)]))
    texts = {v: k for k, v in KINDS.items()}
    found = [r for batch in merge_runs(runs, merge_rules(schema)) for r in batch.to_pylist()]
    return [(texts[r["_VALUE_KIND"]], *(r[n] for n in columns)) for r in found]


def row_of(columns: Mapping[str, Any], options: Mapping[str, str], *versions: Version, **more: Any) -> Version | None:
    """The values after the key of the row that versions of one key are merged into; None: there is none."""
    found = merged(columns, options, versions, **more)
    assert len(found) < 2
    return found[0][2:] if found else None
