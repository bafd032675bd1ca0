"""Metadata as a later release of Paimon may write it: more fields in every file, nested ones too."""

from __future__ import annotations

import json
from typing import Any

from airflow_paimon.core.format.avro.container import read_container, write_container
from airflow_paimon.core.table.table import Table
from tests.core.format.avro_files import fastavro_records, write_with_fastavro

JSON = {"later": {"deep": [1, "x"]}}
FIELDS = [
    {"name": "_LATER", "type": ["null", "string"], "default": None},
    {"name": "_LATER_MAP", "type": ["null", {"type": "map", "values": ["null", "long"]}], "default": None},
    {"name": "_LATER_NULL", "type": ["null", "long"], "default": None},
]
VALUES = {"_LATER": "x", "_LATER_MAP": {"a": 1, "b": None}, "_LATER_NULL": None}


def records_of(value: Any) -> list[dict[str, Any]]:
    """All records in stored ones, or in a schema: outer ones first."""
    if isinstance(value, list):
        return [record for one in value for record in records_of(one)]
    return [value, *records_of(list(value.values()))] if isinstance(value, dict) else []


def with_later_fields(data: bytes) -> bytes:
    """The same Avro file with the later fields in each of its records."""
    schema, stored = json.loads(read_container(data).schema), fastavro_records(data)
    if "_LATER" in {f["name"] for f in schema["fields"]}:
        return data
    for record in [r for r in records_of(schema) if r.get("type") == "record"]:
        record["fields"].extend(FIELDS)
    for record in records_of(stored):
        record |= VALUES
    return _container(schema, stored)


def _container(schema: Any, stored: list[Any]) -> bytes:
    blocks = list(read_container(write_with_fastavro(schema, stored)).blocks)
    return write_container(json.dumps(schema), blocks)  # with its logical types


def plant(table: Table, *, snapshots: bool = False) -> None:
    """Add fields to the table's files; to snapshots, tags and changelogs only if asked to."""
    store, sizes = table.store, {}
    paths = sorted(store.walk(""))
    for path in [p for p in paths if p.startswith("manifest/manifest-") and "-list-" not in p]:
        sizes[path.rpartition("/")[2]] = _put(table, path, with_later_fields(store.read(path)))
    for path in [p for p in paths if p.startswith("manifest/manifest-list-")]:
        data = store.read(path)
        records = [{**r, "_FILE_SIZE": sizes[r["_FILE_NAME"]]} for r in fastavro_records(data)]
        again = _container(json.loads(read_container(data).schema), records)
        sizes[path.rpartition("/")[2]] = _put(table, path, with_later_fields(again))
    for path in paths:
        kind = path.split("/")[-2:][0]
        if kind in ("snapshot", "tag", "changelog", "schema", "consumer") and not path.endswith(("LATEST", "EARLIEST")):
            _plant_json(table, path, kind, sizes, whole=snapshots or kind in ("schema", "consumer"))


def _plant_json(table: Table, path: str, kind: str, sizes: dict[str, int], *, whole: bool) -> None:
    value = json.loads(table.store.read(path))
    for key in [k for k in value if k.endswith("ManifestListSize")]:
        value[key] = sizes[value[key.removesuffix("Size")]]
    for field in [r for r in records_of(value["fields"]) if "type" in r] if kind == "schema" else []:
        field |= JSON
    _put(table, path, json.dumps({**value, **JSON} if whole else value).encode())


def _put(table: Table, path: str, data: bytes) -> int:
    table.store.replace(path, data)
    return len(data)
