"""Metadata that no engine writes is reported as corrupt, with the file's name, by whatever reads it."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.avro.types import parse_avro_schema
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, run

DEEP = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
LONG = b'{"id": ' + b"9" * 6_000 + b"}"


@pytest.fixture
def table() -> Table:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    return table


def changed(table: Table, path: str, **values: object) -> bytes:
    return json.dumps({**json.loads(table.store.read(path)), **values}).encode()


@pytest.mark.parametrize("data", [DEEP, LONG], ids=["nested", "digits"])
@pytest.mark.parametrize(
    "path",
    [
        "snapshot/snapshot-3",
        "tag/tag-t",
        "consumer/consumer-c",
        "branch/branch-b/snapshot/snapshot-1",
        "_airflow_paimon/trash/main/snapshot-7-x.json",
        "_airflow_paimon/operations/x.json",
        "_airflow_paimon/streams/x.json",
    ],
)
def test_what_an_expiry_reads(table: Table, path: str, data: bytes) -> None:
    append(table, "a")
    table.store.create(path, data)
    now = str(int(time.time() * 1000) + 1000)
    expires = {"older_than": "0 s", "retain_min": 1, "retry_window": "0 s", "keep_undo": False, "now": now}
    asked = expires if path.startswith("branch/") else {}  # snapshots of others are read when something expires
    with pytest.raises(FormatError, match=path.rpartition("/")[2].removeprefix("tag-").removeprefix("snapshot-")):
        run(table, "expire_snapshots", **asked)
    assert table.snapshot_ids()[0] == 1
    run(table, "check_table")


@pytest.mark.parametrize("data", [DEEP, LONG], ids=["nested", "digits"])
def test_schemas(table: Table, data: bytes) -> None:
    table.store.create("schema/schema-1", data)
    with pytest.raises(FormatError, match="schema-1"):
        table.schema()


def test_an_avro_schema_that_is_nested_too_deeply() -> None:
    with pytest.raises(FormatError, match="nested too deeply"):
        parse_avro_schema("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize("name", ["snapshot/snapshot-9223372036854775807", f"snapshot/snapshot-{'9' * 200}"])
def test_numbers_of_files_beyond_64_bits(table: Table, name: str) -> None:
    table.store.create(name, table.store.read("snapshot/snapshot-1"))
    with pytest.raises(FormatError, match=r"snapshot-9.* has more than 64 bits"):
        table.latest_snapshot()
    with pytest.raises(FormatError, match=r"snapshot-9.* has more than 64 bits"):
        append(table, "a")


def test_numbers_in_a_snapshot_beyond_64_bits(table: Table) -> None:
    table.store.create("snapshot/snapshot-2", changed(table, "snapshot/snapshot-1", id=2, nextRowId=2**63))
    with pytest.raises(FormatError, match="snapshot-2: nextRowId is not a number of 64 bits"):
        table.latest_snapshot()


@pytest.mark.parametrize("hint", [b"9" * 6_000, b"\xff\xfe", "٣".encode(), b"-1", b""])
def test_hints(table: Table, hint: bytes) -> None:
    """A hint is only a hint: whoever can't use it lists the folder."""
    append(table, "a")
    for path in (table.paths.latest_hint, table.paths.earliest_hint):
        table.store.replace(path, hint)
    found = table.hinted_snapshot()
    assert found is not None and found.id == 2
    assert not run(table, "expire_snapshots").changed
    assert {f["id"] for f in run(table, "check_table").details["findings"]} == {
        "wrong-hint:main/LATEST",
        "wrong-hint:main/EARLIEST",
    }


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["../secret", "a/b", "..", "", "/etc/passwd"])
@pytest.mark.parametrize("key", ["baseManifestList", "deltaManifestList", "indexManifest"])
def test_names_that_lead_out_of_their_folder(table: Table, key: str, name: str) -> None:
    if key == "indexManifest" and not name:
        return
    table.store.create("tag/tag-t", changed(table, "snapshot/snapshot-1", **{key: name}))
    append(table, "a")
    with pytest.raises(FormatError, match="which is not a file name"):
        run(table, "expire_snapshots", retain_max=1)


def test_data_files_that_lead_out_of_their_folder(table: Table) -> None:
    (entry,) = live_entries(table, table.latest_snapshot()).values()
    with pytest.raises(FormatError, match="which is not a file name"):
        data_file_path(table.schema(), ("a",), 0, entry.file._replace(file_name="../../x"))
