"""The strict reader of metadata finds what Paimon's Java can't read, and nothing in what Java wrote."""

import importlib.util
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.core.tables import append, make_table, run
from tests.environment import REPO_ROOT
from tests.strict_metadata import findings

pytestmark = pytest.mark.damages_metadata

SHARED = REPO_ROOT.parent / "shared" / "tools" / "strict_metadata.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table with a tag, a branch, a consumer and deletion-vector ranges of its own."""
    table = make_table(tmp_path)
    append(table, "1")
    append(table, "2")
    run(table, "create_tag", tag="t", time_retained="7 d")
    run(table, "create_branch", branch="b", tag="t")
    append(table.branch("b"), "1")
    consumer = tmp_path / "d.db" / "t" / "consumer" / "consumer-c"
    consumer.parent.mkdir()
    consumer.write_text('{"nextSnapshot": 2}')
    return tmp_path / "d.db" / "t"


def change(path: Path, **values: Any) -> None:
    read = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({k: v for k, v in read.items() if v is not ...}))


def change_field(path: Path, **values: Any) -> None:
    fields = json.loads(path.read_text())["fields"]
    change(path, fields=[{**fields[0], **values}, *fields[1:]])


def change_records(
    root: Path, kind: str, change: Callable[[dict[str, Any]], None], schema: Callable[[Any], None] | None = None
) -> None:
    """Write the first Avro file of a kind anew, with other records and, on demand, another schema."""
    path = min(p for p in (root / "manifest").iterdir() if p.name.startswith(f"{kind}-") and "list" not in p.name[9:])
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        written = json.loads(reader.metadata["avro.schema"])
        records = list(reader)
    for record in records:
        change(record)
    if schema:
        schema(written)
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(written), records)


def lists(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the records of the first snapshot's delta; a base list may have none."""
    path = root / "manifest" / json.loads((root / "snapshot" / "snapshot-1").read_text())["deltaManifestList"]
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema, records = reader.writer_schema, list(reader)
    for record in records:
        change(record)
    with path.open("wb") as file:
        fastavro.writer(file, schema, records)


def of_file(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["_FILE"].update(values)


def null_last(schema: Any) -> None:
    """Turn a union of the data file's round: Java then takes each value for a null and each null for a value."""
    for field in schema["fields"]:
        if field["name"] == "_FILE":
            of = {f["name"]: f for f in field["type"]["fields"]}
            of["_FILE_SOURCE"]["type"] = list(reversed(of["_FILE_SOURCE"]["type"]))


# name: the damage, and whether the tool that all share finds it too.
DAMAGES: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "operation": (lambda r: change(r / "snapshot" / "snapshot-1", operation="COMPACT"), True),
    "operation of a tag": (lambda r: change(r / "tag" / "tag-t", operation="COMPACT"), True),
    "operation of a branch": (lambda r: change(r / "branch/branch-b/snapshot/snapshot-3", operation="COMPACT"), True),
    "kind": (lambda r: change(r / "snapshot" / "snapshot-2", commitKind="append"), True),
    "no kind": (lambda r: change(r / "snapshot" / "snapshot-2", commitKind=...), True),
    "count as text": (lambda r: change(r / "snapshot" / "snapshot-2", totalRecordCount="2"), True),
    "a number too long": (lambda r: change(r / "snapshot" / "snapshot-2", watermark=2**63), True),
    "another id": (lambda r: change(r / "snapshot" / "snapshot-2", id=1), True),
    "a property that is a number": (lambda r: change(r / "snapshot" / "snapshot-2", properties={"a": 1}), True),
    "writer version": (lambda r: change(r / "snapshot" / "snapshot-2", writerVersion=2), False),
    "half a snapshot": (lambda r: (r / "snapshot" / "snapshot-2").write_text("{"), True),
    "hint": (lambda r: (r / "snapshot" / "LATEST").write_text("two"), True),
    "hint with a line end": (lambda r: (r / "snapshot" / "LATEST").write_text("2\n"), False),
    "time of a tag": (lambda r: change(r / "tag" / "tag-t", tagCreateTime=1795409498), True),
    "retention of a tag": (lambda r: change(r / "tag" / "tag-t", tagTimeRetained="7 d"), False),
    "consumer": (lambda r: (r / "consumer" / "consumer-c").write_text('{"nextSnapshot": "x"}'), True),
    "options": (lambda r: change(r / "schema" / "schema-0", options={"bucket": 2}), True),
    "merge engine": (lambda r: change(r / "schema" / "schema-0", options={"merge-engine": "last"}), False),
    "type": (lambda r: change_field(r / "schema" / "schema-0", type="BIGINTEGER NOT NULL"), False),
    "nested type": (
        lambda r: change_field(r / "schema" / "schema-0", type={"type": "ARRAY", "element": "LIST"}),
        False,
    ),
    "key that is no field": (lambda r: change(r / "schema" / "schema-0", primaryKeys=["nope"]), False),
    "field id": (lambda r: change(r / "schema" / "schema-0", highestFieldId=0), False),
    "half a manifest": (lambda r: next((r / "manifest").iterdir()).write_bytes(b"Obj\x01"), True),
    "file kind": (lambda r: change_records(r, "manifest", lambda record: record.update(_KIND=2)), True),
    "file source": (lambda r: change_records(r, "manifest", of_file(_FILE_SOURCE=2)), True),
    "format version": (lambda r: change_records(r, "manifest", lambda record: record.update(_VERSION=1)), False),
    "version of a list": (lambda r: lists(r, lambda record: record.update(_VERSION=3)), True),
    "partition": (lambda r: change_records(r, "manifest", lambda record: record.update(_PARTITION=b"\0\0\0\1")), False),
    "key": (lambda r: change_records(r, "manifest", of_file(_MIN_KEY=b"")), False),
    "statistics": (
        lambda r: change_records(r, "manifest", lambda record: record["_FILE"]["_KEY_STATS"].update(_NULL_COUNTS=[1])),
        False,
    ),
    "null last in a union": (lambda r: change_records(r, "manifest", lambda _: None, null_last), False),
}


def findings_of_shared(folder: Path) -> list[Any]:
    if not SHARED.is_file():
        pytest.skip("the shared tool is not beside this clone")
    spec = importlib.util.spec_from_file_location("shared_strict_metadata", SHARED)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.problems(folder))


def test_a_sound_table(root: Path) -> None:
    os.mkfifo(root / "snapshot" / "snapshot-9")  # read by nobody: it would wait for a writer
    assert list(findings(root)) == []


@pytest.mark.parametrize("content", [b"", b"Obj\x01"])
def test_what_a_killed_writer_leaves_counts_only_if_it_is_named(root: Path, content: bytes) -> None:
    named = list((root / "manifest").iterdir())
    for kind in ("manifest", "manifest-list", "index-manifest"):
        (root / "manifest" / f"{kind}-{uuid.uuid4()}-0").write_bytes(content)
    assert list(findings(root)) == []
    for path in named:
        kept = path.read_bytes()
        path.write_bytes(content)
        assert [found for found, _ in findings(root)] == [path]
        path.write_bytes(kept)


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found(root: Path, name: str) -> None:
    DAMAGES[name][0](root)
    found = list(findings(root))
    assert found and len({path for path, _ in found}) == 1, found


@pytest.mark.parametrize("name", [name for name, (_, shared) in DAMAGES.items() if shared])
def test_what_the_shared_tool_finds_is_found(root: Path, name: str) -> None:
    DAMAGES[name][0](root)
    theirs = {path for path, _ in findings_of_shared(root)}
    assert theirs and theirs == {path for path, _ in findings(root)}


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0", "table-fuzz", "row-tracking-fuzz"])
def test_nothing_is_found_in_what_java_wrote(golden: Callable[[str], Path], archive: str) -> None:
    folder = golden(archive)
    assert list(folder.rglob("snapshot-*"))
    assert list(findings(folder)) == []


def test_nor_does_the_shared_tool(golden: Callable[[str], Path]) -> None:
    assert findings_of_shared(golden("paimon-2.0.0")) == []
