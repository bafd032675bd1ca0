"""Manifests and manifest lists: golden files of 2.0.0 and 0.9.0, other writers' schemas, corruption, round trips."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import FormatError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format import manifest_io
from airflow_paimon.core.format.avro.container import (
    SYNC_BYTES,
    read_container,
    read_header,
    read_long,
    write_container,
    write_long,
)
from airflow_paimon.core.format.binary_row import decode_row, encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry, ManifestFile, Stats
from airflow_paimon.core.format.manifest_io import (
    ENTRY_SCHEMA,
    LIST_SCHEMA,
    describe_manifest,
    read_manifest_columns,
    read_manifest_list,
    rolling_manifests,
    write_manifest,
    write_manifest_list,
    written_manifests,
)
from airflow_paimon.core.format.types import AtomicType, DataType, parse_type
from airflow_paimon.core.format.unpack import CODECS, FILE_BYTES, Unpacker, zstd
from tests.core.format.avro_files import Only, fastavro_records, write_with_fastavro
from tests.core.later_fields import VALUES, records_of, with_later_fields
from tests.randomness import every

INT, STRING = AtomicType("INT"), AtomicType("STRING")


def read_manifest(data: bytes, *, name: str | None = None) -> list[ManifestEntry]:
    """Read entries, and check that reading some fields of them, or some of them, gives the same values."""
    entries = manifest_io.read_manifest(data, name=name)
    for wanted in ({e.partition for e in entries[:1]}, set()):
        some = manifest_io.read_manifest(data, name=name, only=Only(*wanted))
        assert some == [e for e in entries if e.partition in wanted]
    columns = read_manifest_columns(data, name=name)
    assert list(columns.identifiers()) == [e.identifier for e in entries]
    assert columns.kinds == [e.kind for e in entries]
    shown = (columns.file_sizes, columns.row_counts, columns.schema_ids, columns.creation_times_ms,
             columns.file_sources, columns.max_sequence_numbers, columns.first_row_ids)  # fmt: skip
    assert list(zip(*shown, strict=True)) == [
        (f.file_size, f.row_count, f.schema_id, f.creation_time_ms, f.file_source, f.max_sequence_number,
         f.first_row_id)
        for f in (e.file for e in entries)
    ]  # fmt: skip
    return entries


def _file(name: str = "data-1.parquet", **changes: Any) -> DataFile:
    row = encode_row([7], [INT])
    stats = Stats(row, row, (0,))
    return DataFile(name, 1000, 10, row, row, stats, stats, 0, 9, 0, 0, (), 1795244527803, 0)._replace(**changes)


def _entry(kind: int = 0, partition: bytes = EMPTY_STATS.min_values, bucket: int = 0, **changes: Any) -> ManifestEntry:
    return ManifestEntry(kind, partition, bucket, 4, _file(**changes))


_longs = st.integers(-(2**63), 2**63 - 1)
_counts = st.none() | st.lists(st.none() | _longs, max_size=5).map(tuple)
_names = st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple)
_stats = st.builds(Stats, st.binary(max_size=80), st.binary(max_size=9), _counts, st.just(()))
_files = st.builds(
    DataFile, st.text(max_size=200), _longs, _longs, st.binary(max_size=9), st.binary(max_size=9), _stats, _stats,
    _longs, _longs, _longs, st.integers(0, 5), st.lists(st.text(max_size=5), max_size=3).map(tuple),
    st.none() | _longs, st.none() | _longs, st.none() | st.binary(), st.none() | st.integers(0, 1), _names,
    st.none() | st.text(), st.none() | _longs, _names, st.none() | st.lists(_longs, max_size=3).map(tuple),
    st.just(()),
)  # fmt: skip
_entries = st.builds(
    ManifestEntry, st.integers(0, 1), st.binary(max_size=40), st.integers(-2, 2**31 - 1), st.integers(-2, 2**31 - 1),
    _files, st.just(()),
)  # fmt: skip
_bounds = st.none() | st.integers(-(2**31), 2**31 - 1)
_rows = st.builds(
    ManifestFile, st.text(max_size=60), _longs, _longs, _longs, _stats, _longs, _bounds, _bounds, _bounds, _bounds,
    st.none() | _longs, st.none() | _longs, st.just(()),
)  # fmt: skip


@given(st.lists(_entries, max_size=8))
def test_entries_round_trip(entries: list[ManifestEntry]) -> None:
    data = write_manifest(entries)
    assert read_manifest(data) == entries
    assert write_manifest(entries) == data
    assert [r["_FILE"]["_FILE_NAME"] for r in fastavro_records(data)] == [e.file.file_name for e in entries]


@given(st.lists(_rows, max_size=8))
def test_lists_round_trip(rows: list[ManifestFile]) -> None:
    data = write_manifest_list(rows)
    assert read_manifest_list(data) == rows
    assert [r["_MIN_ROW_ID"] for r in fastavro_records(data)] == [r.min_row_id for r in rows]


def test_several_blocks() -> None:
    entries = [_entry(kind=i % 2, file_name=f"data-{i}", row_count=i) for i in range(5000)]
    data = write_manifest(entries)
    assert len(list(read_container(data).blocks)) > 5
    assert read_manifest(data) == entries


def test_values_are_named_tuples() -> None:
    entry = read_manifest(write_manifest([_entry()]))[0]
    assert isinstance(entry, ManifestEntry)
    assert isinstance(entry.file, DataFile)
    assert isinstance(entry.file.value_stats, Stats)
    assert entry.deleted().identifier == entry.identifier


def test_no_numbers_beyond_64_bits() -> None:
    with pytest.raises(OverflowError):
        write_manifest([_entry(row_count=2**63)])


def _golden_files(folder: Path, kind: str) -> list[Path]:
    """A quarter of the files of a kind, the same in each run; all of them where all cases are asked for."""
    found = [
        path
        for path in sorted((folder / "wh" / "d.db").glob("*/manifest/*"))
        if path.name.startswith(kind) and path.name.startswith("manifest-list-") == (kind == "manifest-list-")
    ]
    few = min(len(found), max(20, len(found) // 12))
    return every(len(found) // few, found) if found else []


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0", "table-fuzz", "chain-fuzz"])
def test_golden_manifests(golden: Callable[[str], Path], archive: str) -> None:
    read = 0
    for path in _golden_files(golden(archive), "manifest-"):
        data = path.read_bytes()
        entries = read_manifest(data, name=path.name)
        expected = fastavro_records(data)
        assert [_plain(e) for e in entries] == [_plain_record(r) for r in expected]
        assert read_manifest(write_manifest(entries)) == entries
        read += len(entries)
    assert read > 30


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0", "table-fuzz", "chain-fuzz"])
def test_golden_lists(golden: Callable[[str], Path], archive: str) -> None:
    read = 0
    for path in _golden_files(golden(archive), "manifest-list-"):
        rows = read_manifest_list(path.read_bytes(), name=path.name)
        assert read_manifest_list(write_manifest_list(rows)) == rows
        for row in rows:
            assert (path.parent / row.file_name).stat().st_size == row.file_size
            entries = read_manifest((path.parent / row.file_name).read_bytes())
            ours = describe_manifest(row.file_name, row.file_size, entries, _partition_types(path.parent.parent))
            if archive == "paimon-0.9.0":
                assert row[-7:-1] == (None,) * 6
                ours = ours._replace(**dict.fromkeys(ManifestFile._fields[-7:-1]))
            assert ours == row
            read += 1
    assert read > 10


def _partition_types(table: Path) -> list[DataType]:
    schema = json.loads((table / "schema" / "schema-0").read_text())
    types = {f["name"]: f["type"] for f in schema["fields"]}
    return [parse_type(types[k]) for k in schema["partitionKeys"]]


def _plain(value: Any) -> Any:
    """Return tuples as lists, and those of records, which have ``unknown`` at their end, without it."""
    if not isinstance(value, tuple):
        return value
    return [_plain(v) for v in (value[:-1] if hasattr(value, "unknown") else value)]


def _plain_record(record: dict[str, Any]) -> Any:
    record = dict(record)
    file = dict(record["_FILE"])
    for name in ("_KEY_STATS", "_VALUE_STATS"):
        file[name] = list(file[name].values())
    fields = [f["name"] for f in ENTRY_SCHEMA["fields"][5]["type"]["fields"]]
    return [*(record[n] for n in ("_KIND", "_PARTITION", "_BUCKET", "_TOTAL_BUCKETS")), [file.get(f) for f in fields]]


def test_schema_is_javas(golden: Callable[[str], Path]) -> None:
    """Connector 2.0.0 writes what we write, but for the last field, which came later."""
    folder = golden("paimon-2.0.0")
    theirs = json.loads(read_container(_golden_files(folder, "manifest-")[0].read_bytes()).schema)
    ours = json.loads(read_container(write_manifest([])).schema)
    assert ours == ENTRY_SCHEMA
    newest = ours["fields"][5]["type"]["fields"].pop()
    assert newest["name"] == "_WRITE_COLS_SEQUENCES"
    assert json.dumps(ours) == json.dumps(theirs)
    theirs = json.loads(read_container(_golden_files(folder, "manifest-list-")[0].read_bytes()).schema)
    assert json.dumps(LIST_SCHEMA) == json.dumps(theirs)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_every_codec(codec: str) -> None:
    entries = [_entry(file_name=f"data-{i}") for i in range(300)]
    data = write_manifest(entries)
    if codec == "snappy":
        assert read_manifest(_as_snappy(data)) == entries
        with pytest.raises(FormatError, match="checksum"):
            read_manifest(_as_snappy(data, spoil=True))
    else:
        assert read_manifest(write_with_fastavro(ENTRY_SCHEMA, fastavro_records(data), codec)) == entries


def _as_snappy(data: bytes, *, spoil: bool = False) -> bytes:
    container = read_container(data)
    out = bytearray(b"Obj\x01") + write_long(2)
    for text in ("avro.schema", container.schema, "avro.codec", "snappy"):
        out += write_long(len(text.encode())) + text.encode()
    out += b"\0" + b"s" * 16
    for number, block in container.blocks:
        checksum = zlib.crc32(block) ^ (1 if spoil else 0)
        packed = pa.Codec("snappy").compress(block, asbytes=True) + checksum.to_bytes(4, "big")
        out += write_long(number) + write_long(len(packed)) + packed + b"s" * 16
    return bytes(out)


def _without(fields: set[str], schema: dict[str, Any]) -> dict[str, Any]:
    schema = json.loads(json.dumps(schema))
    file = schema["fields"][5]["type"]
    file["fields"] = [f for f in file["fields"] if f["name"] not in fields]
    return schema


def test_older_schema() -> None:
    """What 0.4 to 0.7 wrote: the missing fields are None."""
    late = {"_DELETE_ROW_COUNT", "_EMBEDDED_FILE_INDEX", "_FILE_SOURCE", "_VALUE_STATS_COLS", "_EXTERNAL_PATH",
            "_FIRST_ROW_ID", "_WRITE_COLS", "_WRITE_COLS_SEQUENCES"}  # fmt: skip
    data = write_with_fastavro(_without(late, ENTRY_SCHEMA), fastavro_records(write_manifest([_entry(), _entry(1)])))
    assert read_manifest(data) == [_entry(delete_row_count=None), _entry(1, delete_row_count=None)]


def test_later_and_foreign_schemas() -> None:
    """Other names, other order, more fields, unions where Java has none (pypaimon-rust), null last."""
    schema = json.loads(json.dumps(ENTRY_SCHEMA).replace("record__", "rec_").replace(json.dumps("_KIND"), '"K"'))
    schema["fields"][1]["name"] = "_KIND"
    schema["name"] = "entry"
    del schema["namespace"]
    file = schema["fields"][5]["type"]
    file["fields"].reverse()
    extra = [
        {"name": "_NEW_MAP", "type": ["null", {"type": "array", "items": {"type": "record", "name": "pair", "fields": [
            {"name": "k", "type": "string"}, {"name": "v", "type": ["null", "double"]}]}}]},
        {"name": "_NEW_FLAG", "type": "boolean"},
        {"name": "_NEW_FLOAT", "type": "float"},
        {"name": "_NEW_FIXED", "type": {"type": "fixed", "name": "four", "size": 4}},
        {"name": "_NEW_ENUM", "type": {"type": "enum", "name": "e", "symbols": ["A", "B"]}},
        {"name": "_NEW_NULL", "type": "null"},
    ]  # fmt: skip
    file["fields"][3:3] = extra
    for field in file["fields"]:
        if field["name"] == "_FILE_SIZE":
            field["type"] = ["long", "null"]
        if field["name"] == "_LEVEL":
            field["type"] = ["int"]
        field.pop("default", None)
    schema["fields"].reverse()
    records = fastavro_records(write_manifest([_entry(), _entry(1, bucket=3, level=2)]))
    later = {"_NEW_MAP": [{"k": "a", "v": 1.5}, {"k": "b", "v": None}], "_NEW_FLAG": True,
             "_NEW_FLOAT": 2.5, "_NEW_FIXED": b"1234", "_NEW_ENUM": "B", "_NEW_NULL": None}  # fmt: skip
    for record in records:
        record["_FILE"] |= later
    data = write_with_fastavro(["null", schema], records)
    entries = read_manifest(data)
    assert [e._replace(file=e.file._replace(unknown=())) for e in entries] == [_entry(), _entry(1, bucket=3, level=2)]
    kept = [record["_FILE"] for record in fastavro_records(write_manifest(entries))]
    assert [{f["name"]: file[f["name"]] for f in extra} for file in kept] == [later] * 2
    with pytest.raises(UnsupportedFeatureError, match="The field _NEW_FLAG of a later Paimon release has a value in e"):
        write_manifest([*entries, _entry()])


@pytest.mark.parametrize("kind", ["manifest", "list"])
def test_fields_of_a_later_release_survive(kind: str) -> None:
    """In every record, and beside records of ours, which have none of them; wherever the file comes from."""
    keyed: tuple[Any, Any] = (read_manifest, write_manifest)
    read, write = keyed if kind == "manifest" else (read_manifest_list, write_manifest_list)
    ours: list[Any] = [_entry(), _entry(1)]
    if kind == "list":
        ours = [describe_manifest(f"m-{i}", 5, [entry], ()) for i, entry in enumerate(ours)]
    data = with_later_fields(write(ours))
    stored, theirs = fastavro_records(data), read(data)
    again = write([*ours, *theirs])
    assert read(again) == [*ours, *theirs] and theirs != ours
    written = fastavro_records(again)
    for record in records_of(written[:2]):
        assert {name: record.get(name) for name in VALUES} == dict.fromkeys(VALUES)
    for record in [r for r in records_of(stored) if "_LATER_NULL" in r]:
        del record["_LATER_NULL"]  # it has no value in any record
    assert written[2:] == stored
    assert write(theirs[:1]) == write(read(write(theirs[:1])))


def test_one_name_with_two_types() -> None:
    entries = []
    for kind, value in (("string", "x"), ("long", 1)):
        schema = json.loads(json.dumps(ENTRY_SCHEMA))
        schema["fields"].append({"name": "_LATER", "type": ["null", kind], "default": None})
        records = fastavro_records(write_manifest([_entry()]))
        records[0]["_LATER"] = value
        entries += read_manifest(write_with_fastavro(schema, records))
    with pytest.raises(UnsupportedFeatureError, match="_LATER of a later Paimon release has two types"):
        write_manifest(entries)


def test_null_where_none_may_be() -> None:
    schema = json.loads(json.dumps(ENTRY_SCHEMA))
    schema["fields"][3]["type"] = ["null", "int"]
    records = fastavro_records(write_manifest([_entry()]))
    records[0]["_BUCKET"] = None
    with pytest.raises(FormatError, match="m: its field _BUCKET is null"):
        read_manifest(write_with_fastavro(schema, records), name="m")


def test_missing_required_field() -> None:
    with pytest.raises(FormatError, match="lack the field _KIND"):
        read_manifest(write_manifest_list([]))
    data = write_with_fastavro(_without({"_LEVEL"}, ENTRY_SCHEMA), fastavro_records(write_manifest([_entry()])))
    with pytest.raises(FormatError, match="lack the field _LEVEL"):
        read_manifest(data)


def test_field_of_another_type() -> None:
    schema = json.loads(json.dumps(LIST_SCHEMA))
    schema["fields"][1]["type"] = "long"
    with pytest.raises(FormatError, match="_FILE_NAME is of type long, string expected"):
        read_manifest_list(write_with_fastavro(schema, []))


@pytest.mark.parametrize("version", [1, 3])
def test_other_format_versions(version: int) -> None:
    records = fastavro_records(write_manifest([_entry()]))
    records[0]["_VERSION"] = version
    with pytest.raises(UnsupportedFeatureError, match=f"manifest-1: its records are of format version {version}"):
        read_manifest(write_with_fastavro(ENTRY_SCHEMA, records), name="manifest-1")
    with pytest.raises(UnsupportedFeatureError, match=f"manifest-1: its records are of format version {version}"):
        read_manifest_columns(write_with_fastavro(ENTRY_SCHEMA, records), name="manifest-1")


def test_unknown_kind() -> None:
    records = fastavro_records(write_manifest([_entry()]))
    records[0]["_KIND"] = 2
    with pytest.raises(FormatError, match="_KIND is 2, 0 or 1 expected"):
        read_manifest(write_with_fastavro(ENTRY_SCHEMA, records))


def test_every_truncation_is_an_error() -> None:
    entries = [_entry(file_name=f"data-{i}") for i in range(3)]
    data = write_manifest(entries)
    # A file that ends right behind its header is a valid file of no entries; Avro can't tell.
    header = len(write_manifest([]))
    for size in range(len(data)):
        if size == header:
            continue
        for read in (read_manifest, read_manifest_columns):
            with pytest.raises(FormatError, match=r"^m: "):
                read(data[:size], name="m")


def test_truncated_block_content() -> None:
    container = read_container(write_manifest([_entry()]))
    ((_, block),) = container.blocks
    spoilt = block[: block.rindex(b"\0\0\0")] + b"\xff" * 200
    for number, content in ((1, block[:-1]), (1, block + b"\0"), (2, block), (0, block), (1, b""), (1, spoilt)):
        for read in (read_manifest, read_manifest_columns):
            with pytest.raises(FormatError, match="corrupt"):
                read(write_container(container.schema, [(number, content)]))


def test_what_would_be_unpacked_to_far_more_than_is_stored_is_refused() -> None:
    schema, good = read_container(write_manifest([_entry()])).schema, read_container(write_manifest([_entry()]))
    one = zstd.ZstdCompressor()
    packed = b"".join(one.compress(bytes(1 << 20)) for _ in range(100)) + one.flush()
    assert len(packed) < 20_000  # of 100 MiB
    head = write_container(schema, [])
    sync, block = head[-SYNC_BYTES:], next(iter(good.blocks))
    bomb = head + write_long(1) + write_long(len(packed)) + packed + sync
    for read in (read_manifest, read_manifest_columns):
        with pytest.raises(FormatError, match=r"m: a block of it would be unpacked to more than 67,108,864 bytes"):
            read(bomb, name="m")
        with pytest.raises(FormatError, match="more records than bytes"):
            read(write_container(schema, [(1 << 62, block[1])]), name="m")


@pytest.mark.parametrize("codec", sorted(CODECS - {"null"}))
def test_each_codec_is_bounded(codec: str) -> None:
    plain = bytes(100_000)
    if codec == "snappy":
        packed = pa.Codec("snappy").compress(plain, asbytes=True) + zlib.crc32(plain).to_bytes(4, "big")
    else:
        schema = {"type": "record", "name": "r", "fields": [{"name": "b", "type": "bytes"}]}
        data = write_with_fastavro(schema, [{"b": plain}], codec)
        header = read_header(data)
        _, at = read_long(data, header.end)
        size, at = read_long(data, at)
        packed, plain = data[at : at + size], write_long(len(plain)) + plain
    assert Unpacker(codec, len(packed), len(plain)).block(packed) == plain
    with pytest.raises(FormatError, match="would be unpacked to more than"):
        Unpacker(codec, len(packed), len(plain) - 1).block(packed)
    whole = Unpacker(codec, 0, len(plain))
    with pytest.raises(FormatError, match="would be unpacked to more than"):
        for _ in range(FILE_BYTES // len(plain) + 1):
            whole.block(packed)
    with pytest.raises(FormatError, match="can't be decompressed"):
        Unpacker(codec, len(packed)).block(packed[:-5])


BOTTOMLESS: list[Any] = [
    {"type": "fixed", "name": "f", "size": -16}, {"type": "fixed", "name": "f", "size": 1 << 40},
    {"type": "array", "items": "null"}, {"type": "array", "items": {"type": "record", "name": "e", "fields": []}},
    {"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}},
]  # fmt: skip


@pytest.mark.parametrize("kind", BOTTOMLESS)
def test_types_that_never_end_are_refused(kind: Any) -> None:
    schema = json.loads(json.dumps(ENTRY_SCHEMA))
    schema["fields"].append({"name": "_X", "type": kind})
    block = next(iter(read_container(write_manifest([_entry()])).blocks))[1]
    data = write_container(json.dumps(schema), [(1, block + b"\x7e" * 9)])
    for read in (read_manifest, read_manifest_columns):
        with pytest.raises(FormatError, match="its Avro schema has"):
            read(data)


def test_a_schema_that_names_itself_again_and_again_is_refused() -> None:
    kind: Any = {"type": "record", "name": "r0", "fields": [{"name": "a", "type": "long"}]}
    for i in range(1, 20):
        again = [{"name": f"f{n}", "type": f"r{i - 1}"} for n in range(9)]
        kind = {"type": "record", "name": f"r{i}", "fields": [{"name": "first", "type": kind}, *again]}
    schema = json.loads(json.dumps(ENTRY_SCHEMA))
    schema["fields"].append({"name": "_X", "type": kind})
    with pytest.raises(FormatError, match="parts"):
        read_manifest(write_container(json.dumps(schema), [(1, b"\0")]))


@given(st.data())
def test_spoilt_bytes_raise_only_our_errors(data: st.DataObject) -> None:
    container = read_container(_SAMPLE)
    schema, ((number, block),) = container.schema, list(container.blocks)
    at = data.draw(st.integers(0, len(block) - 1))
    spoilt = block[:at] + data.draw(st.binary(min_size=1, max_size=12)) + block[at + 1 :]
    for candidate in (write_container(schema, [(number, spoilt)]), _spoil(_SAMPLE, data)):
        for read in (manifest_io.read_manifest, read_manifest_columns):
            try:
                read(candidate)
            except PaimonError as e:
                assert isinstance(e, FormatError | UnsupportedFeatureError)


def _spoil(content: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, len(content) - 1))
    return content[:at] + data.draw(st.binary(max_size=4)) + content[at + 1 :]


_SAMPLE = write_manifest([_entry(extra_files=("a", "b"), value_stats_cols=("x",), write_cols_sequences=(1,))] * 3)


def test_not_avro() -> None:
    for data, message in ((b"", "empty"), (b"{}", "not an Avro file"), (b"Obj\x01", "truncated")):
        with pytest.raises(FormatError, match=message):
            read_manifest(data)


def test_rolling() -> None:
    entries = [_entry(file_name=f"data-{i * 7919 % 10_007}", row_count=i) for i in range(5000)]
    whole = len(write_manifest(entries))
    parts = rolling_manifests(entries, whole // 4)
    assert [e for p in parts for e in p] == entries
    assert 4 <= len(parts) <= 6
    assert all(len(write_manifest(p)) < whole // 4 * 1.3 for p in parts)
    assert rolling_manifests(entries) == [entries]
    assert rolling_manifests([]) == []
    assert [len(p) for p in rolling_manifests(entries[:3], 1)] == [1, 1, 1]


@pytest.mark.parametrize("number", [0, 1, 7, 999, 1000, 1500])
def test_what_is_written_is_what_rolling_gives(number: int) -> None:
    entries = [_entry(file_name=f"data-{i * 7919 % 10_007}", row_count=i) for i in range(number)]
    size = len(write_manifest(entries, []))
    for target in (1 << 20, size, size - 1, size // 3 + 1):
        parts = rolling_manifests(entries, target)
        assert written_manifests(entries, [], target) == [(p, write_manifest(p, [])) for p in parts]


def test_a_file_that_begins_as_another_one_is_checked_as_that_one() -> None:
    whole = write_manifest([_entry()])
    header = read_header(whole)
    other = bytearray(whole)
    other[header.end - 1] ^= 1
    assert read_header(bytes(other)).sync == bytes(other[header.end - SYNC_BYTES : header.end]) != header.sync
    for damaged in (bytes(other), *(whole[:end] for end in range(header.end - 20, len(whole)) if end != header.end)):
        with pytest.raises(FormatError, match="m: it is"):
            manifest_io.read_manifest(damaged, name="m")


def test_describe() -> None:
    types = [INT, STRING]
    places = [encode_row(v, types) for v in ((3, "b"), (None, "a"), (-5, "c"), (3, "b"))]
    entries = [
        _entry(i == 1, p, bucket=5 - i, level=i, schema_id=i % 3, first_row_id=10 * i) for i, p in enumerate(places)
    ]
    row = describe_manifest("m", 77, entries, types)
    assert row[:4] == ("m", 77, 3, 1)
    assert decode_row(row.partition_stats.min_values, types) == (-5, "a")
    assert decode_row(row.partition_stats.max_values, types) == (3, "c")
    assert row.partition_stats.null_counts == (1, 0)
    assert row[5:-1] == (2, 2, 5, 0, 3, 0, 39)
    entries.append(_entry(partition=places[0]))
    assert describe_manifest("m", 77, entries, types)[-3:-1] == (None, None)


def test_describe_unpartitioned_and_empty() -> None:
    assert describe_manifest("m", 1, [_entry()], []).partition_stats == EMPTY_STATS
    empty = describe_manifest("m", 1, [], [INT])
    assert empty[2:4] == (0, 0)
    assert empty[6:-1] == (None,) * 6
    assert decode_row(empty.partition_stats.min_values, [INT]) == (None,)


def test_describe_floats_as_java_orders_them() -> None:
    double = [AtomicType("DOUBLE")]
    entries = [_entry(partition=encode_row([v], double)) for v in (0.0, -0.0, float("nan"), 1e300)]
    stats = describe_manifest("m", 1, entries, double).partition_stats
    assert str(decode_row(stats.min_values, double)[0]) == "-0.0"
    assert str(decode_row(stats.max_values, double)[0]) == "nan"


def test_arrays_whose_blocks_tell_their_size() -> None:
    entry = _entry(extra_files=("a", "b"))
    container = read_container(write_manifest([entry]))
    ((_, block),) = container.blocks
    plain, sized, split = b"\x04\x02a\x02b\x00", b"\x03\x08\x02a\x02b\x00", b"\x01\x04\x02a\x02\x02b\x00"
    assert block.count(plain) == 1
    for form in (sized, split):
        data = write_container(container.schema, [(2, block.replace(plain, form) * 2)])
        assert read_manifest(data) == [entry, entry]


def test_names_from_files_never_become_code() -> None:
    schema = _without(set(), ENTRY_SCHEMA)
    evil = "x'); raise SystemExit(1) #"
    schema["fields"].append({"name": evil.replace(" ", "_"), "type": ["null", "string"]})
    text = json.dumps(schema).replace(evil.replace(" ", "_"), evil)
    container = read_container(write_manifest([]))
    assert list(container.blocks) == []
    assert read_manifest(write_container(text, [])) == []
    with pytest.raises(FormatError, match="truncated or corrupt"):
        read_manifest(write_container(text, [(1, b"\x04")]))
