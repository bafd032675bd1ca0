"""Avro files through fastavro, an implementation that is not ours, and a filter of their entries."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from airflow_paimon.core.format.manifest_blocks import Bounded, EntryFilter


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return [_without_logical_types(s) for s in schema] if isinstance(schema, list) else schema


def fastavro_records(data: bytes) -> list[Any]:
    """Records as dictionaries, times as plain numbers."""
    schema = _without_logical_types(json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"]))
    records = []
    parsed = fastavro.parse_schema(schema)
    for block in fastavro.block_reader(io.BytesIO(data)):
        stream = block.bytes_
        records += [fastavro.schemaless_reader(stream, parsed, None) for _ in range(block.num_records)]
    return records


def write_with_fastavro(schema: Any, records: list[Any], codec: str = "deflate") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(_without_logical_types(json.loads(json.dumps(schema)))), records, codec)
    return out.getvalue()


class Only(EntryFilter):
    """Entries of some partitions."""

    def __init__(self, *partitions: bytes) -> None:
        self.partitions = partitions

    def __call__(self, stored: bytes) -> bool:
        return stored in self.partitions

    def may_be_in(self, part: Bounded) -> bool:
        return True
