"""Index manifests that are damaged, missing or of a later Paimon: no operation works with a part of what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import GlobalIndex
from airflow_paimon.core.format.manifest_io import write_index_manifest
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import alter_table, run
from tests.data.corrections import arrow, change, correct, whole_rows
from tests.data.tables import make_table
from tests.data.test_compact import run as compact

pytestmark = pytest.mark.damages_metadata

COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "v": "STRING"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two buckets of dynamic ones, and a branch ``fix`` with a row of its own."""
    options = {"bucket": "-1", "dynamic_bucket__target_row_num": "3", "write_only": "true"}
    table = make_table(tmp_path, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], **options)
    write_arrow(table, arrow(table, [row(k, "a") for k in range(5)]))
    run(table, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), arrow(table, [row(2, "fix"), row(9, "fix")]))
    write_arrow(table, arrow(table, [row(1, "b", "y")]))
    return table


def row(k: int, v: str, p: str = "x") -> dict[str, Any]:
    return {"p": p, "k": k, "v": v}


def manifest_of(table: Table) -> str:
    head = table.latest_snapshot()
    assert head is not None and head.index_manifest is not None
    return f"manifest/{head.index_manifest}"


def lost(table: Table) -> None:
    table.store.delete(manifest_of(table))


def cut(table: Table) -> None:
    path = manifest_of(table)
    table.store.replace(path, table.store.read(path)[:-20])


def empty(table: Table) -> None:
    table.store.replace(manifest_of(table), b"")


def of_a_later_type(table: Table) -> None:
    entries = read_index_entries(table, table.latest_snapshot())
    more = entries[0]._replace(index_type="PARTIAL_DELETES", file_name="index-later")
    table.store.create(f"index/{more.file_name}", b"later")
    table.store.replace(manifest_of(table), write_index_manifest([*entries, more._replace(file_size=5)]))


def test_an_index_of_a_later_type_that_only_speeds_up_scans(table: Table) -> None:
    """Paimon adds types with each release; all of them say which row ids or source files they cover."""
    before = read_arrow(table)
    (first, *_) = entries = read_index_entries(table, table.latest_snapshot())
    covered = GlobalIndex(row_range_start=0, row_range_end=9, index_field_id=0)
    more = first._replace(index_type="ivf-hnsw", file_name="index-later", global_index=covered, file_size=5)
    table.store.create(f"index/{more.file_name}", b"later")
    table.store.replace(manifest_of(table), write_index_manifest([*entries, more]))
    assert read_arrow(table).equals(before)


def test_manifests_in_another_format(table: Table) -> None:
    """Paimon can write them in ORC: that is no damage."""
    head = table.latest_snapshot()
    assert head is not None
    path = f"manifest/{head.base_manifest_list}"
    table.store.replace(path, b"ORC" + table.store.read(path)[3:])
    with pytest.raises(UnsupportedFeatureError, match=r"manifest-list-.*: it is an ORC or Parquet file"):
        read_arrow(table)


def test_no_commit_where_manifests_have_another_format(tmp_path: Path) -> None:
    """Paimon could not read ours."""
    table = make_table(tmp_path, COLUMNS, primary_keys=["p", "k"], partition_keys=["p"], bucket="1")
    with pytest.raises(InvalidInputError, match=r"manifest.format='orc' is not one of avro"):
        alter_table(table, [SetOption(key="manifest.format", value="orc")])
    path = "schema/schema-0"
    by_another = table.store.read(path).replace(b'"bucket":', b'"manifest.format": "orc", "bucket":')
    assert b"orc" in by_another
    table.store.replace(path, by_another)
    with pytest.raises(UnsupportedFeatureError, match=r"option manifest.format=orc; keep"):
        write_arrow(table, arrow(table, [row(1, "a")]))
    assert table.latest_snapshot() is None


DAMAGES: dict[str, tuple[Callable[[Table], None], type[PaimonError]]] = {
    "lost": (lost, FormatError),
    "cut": (cut, FormatError),
    "empty": (empty, FormatError),
    "later type": (of_a_later_type, UnsupportedFeatureError),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("branch", ["main", "fix"])
def test_nothing_goes_on_with_it(table: Table, damage: str, branch: str) -> None:
    act, error = DAMAGES[damage]
    view = table.branch(branch)
    act(view)
    main, fix = table.latest_snapshot_id(), table.branch("fix").latest_snapshot_id()

    def publish() -> None:
        run(table, "merge_branch", branch="fix", writers_stopped=True)

    works: dict[str, Callable[[], Any]] = {
        "read": lambda: read_arrow(view),
        "whole": lambda: whole_rows(view),
        "append": lambda: write_arrow(view, arrow(view, [row(3, "c"), row(20, "c")])),
        "statement": lambda: change(table, [{**row(3, "c"), "_row_kind": "+U"}], branch),
        "compact": lambda: compact(table, branch=branch),
        **({} if damage == "later type" else {"publish": publish}),
    }
    if branch == "fix":
        works["correct"] = lambda: correct(table, "fix", [row(3, "c")], mode="upsert")
        works["overwrite"] = lambda: correct(table, "fix", [row(3, "c")], partitions=("p=x",))
    went = []
    for name, work in works.items():
        try:
            work()
            went.append(name)
        except PaimonError as found:
            assert isinstance(found, error), (name, found)
    if damage == "later type":  # an append replaces nothing that such an index may tell of
        assert went == ["append"]
        return
    assert not went
    assert (table.latest_snapshot_id(), table.branch("fix").latest_snapshot_id()) == (main, fix)
    assert not run(table, "check_table").details["ok"]


def test_a_publish_brings_indexes_of_a_later_type_along(table: Table) -> None:
    """Whoever knows them finds them beside the files that they belong to."""
    of_a_later_type(table.branch("fix"))
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    assert "PARTIAL_DELETES" in {e.index_type for e in read_index_entries(table, table.latest_snapshot())}
    with pytest.raises(UnsupportedFeatureError, match="PARTIAL_DELETES"):
        read_arrow(table)
