"""Snapshot files: what is written is what Java's and Python's JSON writers make, and comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot, parse_snapshot

NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SNAPSHOTS = st.builds(
    Snapshot,
    id=NUMBERS,
    schema_id=NUMBERS,
    base_manifest_list=st.text(),
    delta_manifest_list=st.text(),
    commit_user=st.text(),
    commit_identifier=NUMBERS,
    commit_kind=st.sampled_from(CommitKind),
    time_millis=NUMBERS,
    uuid=st.none() | st.text(),
    watermark=st.none() | NUMBERS,
    properties=st.dictionaries(st.text(), st.text(), max_size=3),
    unknown=st.dictionaries(st.text(min_size=1).map("new-{}".format), VALUES.filter(lambda v: v is not None)),
)


@settings(max_examples=60, deadline=None)
@given(snapshot=SNAPSHOTS)
def test_a_file_is_what_json_writes_and_comes_back_as_it_was(snapshot: Snapshot) -> None:
    data = snapshot.to_bytes()
    assert data == json.dumps(snapshot.to_json(), indent=2, ensure_ascii=False).encode()
    assert parse_snapshot(data, "it") == snapshot


@pytest.mark.parametrize(
    ("key", "value"),
    [("id", "1"), ("id", True), ("id", 2**63), ("commitUser", 1), ("commitKind", "OTHER"), ("properties", [])],
)
def test_a_value_of_another_type_is_found(key: str, value: Any) -> None:
    raw: dict[str, Any] = {
        "id": 1, "schemaId": 0, "baseManifestList": "a", "deltaManifestList": "b", "commitUser": "u",
        "commitIdentifier": 1, "commitKind": "APPEND", "timeMillis": 0,
    }  # fmt: skip
    assert parse_snapshot(json.dumps(raw).encode(), "it").id == 1
    with pytest.raises(FormatError, match="it"):
        parse_snapshot(json.dumps(raw | {key: value}).encode(), "it")
