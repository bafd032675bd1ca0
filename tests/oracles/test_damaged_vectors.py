"""Deletion vectors that are damaged, cut off, missing or too new: no operation returns or keeps a wrong row."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import FormatError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from tests.core.tables import run as operate
from tests.data.corrections import change, correct, whole_rows
from tests.data.test_compact import run as compact
from tests.oracles.drivers import JavaOracle

pytestmark = pytest.mark.oracle

WIDTHS = {"32": "false", "64": "true"}
ROWS = [("x", k, "a" if k % 2 else "b") for k in range(10)]


def text_of(table: Table, **how: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table, **how).to_pylist())


@pytest.fixture(scope="module")
def made(java_oracle: JavaOracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with a table of each width: Java's second write deleted half of the rows of the first file. Its
    branch ``fix`` has three more."""
    folder = tmp_path_factory.mktemp("vectors")
    compacting = {"options": {"write-only": "false"}}  # our branches are write-only
    for width, wide in WIDTHS.items():
        name = f"d.t{width}"
        options = {"bucket": "1", "deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
        columns = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "v": "STRING"}
        java_oracle.create_table(folder, name, columns, primary_keys=["p", "k"], partition_keys=["p"], options=options)
        java_oracle.write(folder, name, [{"p": "x", "k": k, "v": "a"} for k in range(10)])
        java_oracle.do("compact", folder, name, full=True)
        java_oracle.write(folder, name, [{"p": "x", "k": k, "v": "b"} for k in range(0, 10, 2)])
        java_oracle.do("create_tag", folder, name, name="base")
        operate(open_table(str(folder), name), "create_branch", branch="fix", tag="base")
        java_oracle.write(folder, name, [{"p": "x", "k": k, "v": "c"} for k in (1, 3, 5)], branch="fix", **compacting)
    return folder


@pytest.fixture(params=WIDTHS)
def table(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    name = f"t{request.param}"
    shutil.copytree(made / "d.db" / name, tmp_path / "d.db" / name)
    return open_table(str(tmp_path), f"d.{name}")


def vectors(table: Table) -> IndexEntry:
    (entry,) = [e for e in read_index_entries(table, table.latest_snapshot()) if e.index_type == "DELETION_VECTORS"]
    assert entry.deletion_vector_ranges
    return entry


def put(table: Table, entry: IndexEntry, data: bytes | None) -> None:
    path = f"index/{entry.file_name}"
    if data is None:
        table.store.delete(path)
    else:
        table.store.replace(path, data)


def too_new(data: bytes) -> bytes:
    return bytes([2]) + data[1:]


def flipped(data: bytes) -> bytes:
    """One bit of the last position that is deleted: only the checksum tells."""
    at = len(data) - 5
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "cut": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "flipped": flipped,
    "too new": too_new,
}


def test_the_tables_are_what_the_tests_say(table: Table) -> None:
    assert text_of(table) == ROWS
    assert text_of(table.branch("fix")) == [(p, k, "c" if k in (1, 3, 5) else v) for p, k, v in ROWS]
    assert vectors(table).file_name != vectors(table.branch("fix")).file_name


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_reads_the_vectors_is_refused(table: Table, damage: str) -> None:
    """Everything that needs them says so and changes nothing; what replaces the partition goes on."""
    entry = vectors(table)
    put(table, entry, DAMAGES[damage](table.store.read(f"index/{entry.file_name}")))
    row = {"p": "x", "k": 3, "v": "c"}
    base = table.latest_snapshot_id()
    operate(table, "create_branch", branch="again", snapshot=base)
    works: dict[str, Callable[[], Any]] = {
        "read": lambda: read_arrow(table),
        "time travel": lambda: read_arrow(table, version="base"),
        "whole": lambda: whole_rows(table),
        "statement": lambda: change(table, [{**row, "_row_kind": "+U"}]),
        "upsert on a branch": lambda: correct(table, "again", [row], mode="upsert"),
        "compact": lambda: compact(table),
    }
    for name, work in works.items():
        with pytest.raises((FormatError, UnsupportedFeatureError)) as caught:
            work()
        assert entry.file_name in caught.value.message, name
        assert isinstance(caught.value, UnsupportedFeatureError) is (damage in ("too new", "zeros")), name
    assert table.latest_snapshot_id() == base
    assert table.branch("again").latest_snapshot_id() == base
    kinds = {f["id"].partition(":")[0] for f in operate(table, "check_table").details["findings"]}
    assert kinds & {"missing-files", "deletion-vectors"}
    correct(table, "again", [row], partitions=("p=x",))
    operate(table, "merge_branch", branch="again")
    assert text_of(table) == [("x", 3, "c")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_branch_with_damaged_vectors_is_not_published(table: Table, damage: str) -> None:
    branch = table.branch("fix")
    entry, head = vectors(branch), table.latest_snapshot_id()
    put(table, entry, DAMAGES[damage](table.store.read(f"index/{entry.file_name}")))
    for operation in ("merge_branch", "fast_forward", "replace_main"):
        how: dict[str, Any] = {"keep_old_as": "old"} if operation == "replace_main" else {}
        with pytest.raises(PaimonError) as caught:
            operate(table, operation, branch="fix", writers_stopped=True, **how)
        assert entry.file_name in caught.value.message, operation
        assert table.latest_snapshot_id() == head, operation
        assert text_of(table) == ROWS


def test_every_bit_of_a_vector_file_counts(table: Table) -> None:
    """Whatever bit flips: the rows are right, or the read is refused."""
    entry = vectors(table)
    data = table.store.read(f"index/{entry.file_name}")
    refused = 0
    for at in range(len(data)):
        for bit in (1, 128):
            put(table, entry, data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                assert text_of(table) == ROWS, at
            except (FormatError, UnsupportedFeatureError):
                refused += 1
    assert refused > len(data)


def test_every_length_of_a_vector_file_but_its_own_is_refused(table: Table) -> None:
    entry = vectors(table)
    data = table.store.read(f"index/{entry.file_name}")
    for length in range(len(data)):
        put(table, entry, data[:length])
        with pytest.raises(FormatError):
            read_arrow(table)
    put(table, entry, data + b"more")
    assert text_of(table) == ROWS
