"""Index manifests: golden files, nothing lost on a rewrite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.avro.container import read_container
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES
from airflow_paimon.core.format.manifest import DeletionVectorRange, GlobalIndex, IndexEntry
from airflow_paimon.core.format.manifest_io import INDEX_SCHEMA, read_index_manifest, write_index_manifest
from tests.core.format.avro_files import fastavro_records, write_with_fastavro

ENTRY = IndexEntry(
    0, EMPTY_ROW_BYTES, 2, "DELETION_VECTORS", "index-1", 31, 2,
    (DeletionVectorRange("data-1", 1, 22, 1), DeletionVectorRange("data-2", 31, 22)), None,
    GlobalIndex(0, 99, 3, (4, 5), b"meta", None),
)  # fmt: skip

_longs = st.integers(-(2**63), 2**63 - 1)
_ints = st.integers(-(2**31), 2**31 - 1)
_ranges = st.lists(
    st.none() | st.builds(DeletionVectorRange, st.text(), _ints, _ints, st.none() | _longs, st.just(())), max_size=4
).map(tuple)
_globals = st.builds(
    GlobalIndex, _longs, _longs, _ints, st.none() | st.lists(_ints, max_size=3).map(tuple), st.none() | st.binary(),
    st.none() | st.binary(), st.just(()),
)  # fmt: skip
_entries = st.builds(
    IndexEntry, st.integers(0, 1), st.binary(max_size=20), _ints, st.text(), st.text(), _longs, _longs,
    st.none() | _ranges, st.none() | st.text(), st.none() | _globals, st.just(()),
)  # fmt: skip


@given(st.lists(_entries, max_size=6))
@example([ENTRY, ENTRY._replace(global_index=None), ENTRY])
def test_round_trip(entries: list[IndexEntry]) -> None:
    data = write_index_manifest(entries)
    assert read_index_manifest(data) == entries
    assert len(fastavro_records(data)) == len(entries)


def test_as_fastavro_reads_it() -> None:
    (record,) = fastavro_records(write_index_manifest([ENTRY]))
    assert record["_VERSION"] == 1
    assert record["_DELETIONS_VECTORS_RANGES"][1] == {"f0": "data-2", "f1": 31, "f2": 22, "_CARDINALITY": None}
    assert record["_GLOBAL_INDEX"]["_EXTRA_FIELD_IDS"] == [4, 5]


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0"])
def test_golden_index_manifests(golden: Callable[[str], Path], archive: str) -> None:
    kinds = set()
    for path in golden(archive).glob("wh/d.db/*/manifest/index-manifest-*"):
        data = path.read_bytes()
        entries = read_index_manifest(data, name=path.name)
        assert entries
        assert [e.file_name for e in entries] == [r["_FILE_NAME"] for r in fastavro_records(data)]
        assert read_index_manifest(write_index_manifest(entries)) == entries
        kinds |= {e.index_type for e in entries}
        if archive == "paimon-2.0.0":
            assert json.dumps(INDEX_SCHEMA) == json.dumps(json.loads(read_container(data).schema))
    assert kinds == {"DELETION_VECTORS", "HASH"}


def test_fields_of_a_later_release_are_not_lost_silently() -> None:
    schema = json.loads(json.dumps(INDEX_SCHEMA))
    schema["fields"].append({"name": "_LATER", "type": ["null", "string"], "default": None})
    records = fastavro_records(write_index_manifest([ENTRY]))
    records[0]["_LATER"] = None
    (entry,) = read_index_manifest(write_with_fastavro(schema, records))
    assert entry == ENTRY
    records[0]["_LATER"] = "x"
    (entry,) = read_index_manifest(write_with_fastavro(schema, records))
    assert entry._replace(unknown=()) == ENTRY
    assert entry.unknown_names() == ["_LATER"]
    with pytest.raises(UnsupportedFeatureError, match="_LATER"):
        write_index_manifest([entry])


@pytest.mark.parametrize("part", ["_GLOBAL_INDEX", "_DELETIONS_VECTORS_RANGES"])
def test_fields_of_a_part_are_not_lost_either(part: str) -> None:
    schema = json.loads(json.dumps(INDEX_SCHEMA))
    records = fastavro_records(write_index_manifest([ENTRY]))
    inner = next(f for f in schema["fields"] if f["name"] == part)["type"][1]
    inner = inner.get("items", ["", inner])[1]
    inner["fields"].append({"name": "_LATER", "type": ["null", "int"], "default": None})
    stored = records[0][part]
    (stored[1] if isinstance(stored, list) else stored)["_LATER"] = 3
    (entry,) = read_index_manifest(write_with_fastavro(schema, records))
    with pytest.raises(UnsupportedFeatureError, match="_LATER"):
        write_index_manifest([entry])


def test_versions_and_corruption() -> None:
    data = write_index_manifest([ENTRY])
    records = fastavro_records(data)
    records[0]["_VERSION"] = 2
    with pytest.raises(UnsupportedFeatureError, match=r"^i: .*version 2, only 1"):
        read_index_manifest(write_with_fastavro(INDEX_SCHEMA, records), name="i")
    with pytest.raises(FormatError, match=r"^i: "):
        read_index_manifest(data[:-20], name="i")
