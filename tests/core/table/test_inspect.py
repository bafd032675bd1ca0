"""System tables: Paimon's own answers for the golden tables, and what only we know about branches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.partition_text import DEFAULT_PARTITION, parse_partition_text
from airflow_paimon.core.table.table import open_table
from tests.core.tables import append, make_table, run
from tests.stores import delete_tree
from tests.strict_metadata import damaged_on_purpose


def _rows(table: pa.Table) -> list[str]:
    return sorted(json.dumps(r, sort_keys=True, default=str) for r in table.to_pylist())


def _unquoted(partition: str) -> str:
    values = parse_partition_text(partition).items()
    return "/".join(f"{key}={value if value and value.strip() else DEFAULT_PARTITION}" for key, value in values)


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0"])
def test_golden_system_tables(golden: Callable[[str], Path], archive: str) -> None:
    folder = golden(archive)
    checked = 0
    for case in json.loads((folder / "index.json").read_text()):
        system_table = case["sql"].replace("$branch_", "").partition("$")[2].rstrip("` ")
        if not system_table or not case["as_stored"]:
            continue
        expected = pq.read_table(folder / case["expected"])
        actual = inspect(open_table(str(folder / "wh"), case["table"]), system_table).select(expected.schema.names)
        if archive == "paimon-0.9.0" and system_table == "partitions":
            # 0.9.0 shows the internal values in brackets; the counts are what can be compared.
            expected, actual = expected.drop(["partition"]), actual.drop(["partition"])
        elif system_table == "partitions":
            # Paimon quotes nothing, and shows null and blank values by one name.
            texts = list(map(_unquoted, actual.column("partition").to_pylist()))
            actual = actual.set_column(actual.schema.names.index("partition"), "partition", pa.array(texts))
        assert _rows(actual) == _rows(expected), case["case"]
        checked += 1
    assert checked >= 17


def test_every_system_table_of_every_golden_branch_can_be_read(golden: Callable[[str], Path]) -> None:
    warehouse = golden("paimon-2.0.0") / "wh"
    for folder in (warehouse / "d.db").iterdir():
        table = open_table(str(warehouse), f"d.{folder.name}")
        for branch in ("main", *table.branch_names()):
            view = table.branch(branch)
            assert inspect(view, "$snapshots").num_rows == len(view.snapshot_ids())
            files, partitions = inspect(view, "files"), inspect(view, "partitions")
            assert pa.compute.sum(files["record_count"]) == pa.compute.sum(partitions["record_count"])
            for name in ("schemas", "tags", "branches", "manifests", "options"):
                assert inspect(view, name).num_columns > 1


def test_branches_say_where_they_came_from(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", tag="t", owner="ana", reason="prices")
    run(table, "create_branch", branch="fresh")
    rows = {r["branch_name"]: r for r in inspect(table, "$branches").to_pylist()}
    assert (rows["fix"]["tag_name"], rows["fix"]["tagged_snapshot_id"]) == ("t", 1)
    assert (rows["fix"]["owner"], rows["fix"]["reason"]) == ("ana", "prices")
    assert rows["fresh"]["tagged_snapshot_id"] is None
    # A branch of that name that another engine made later is not the one the record speaks of.
    delete_tree(table.store, "branch/branch-fix")
    table.store.create("branch/branch-fix/schema/schema-0", table.store.read("schema/schema-0"))
    rows = {r["branch_name"]: r for r in inspect(table, "$branches").to_pylist()}
    assert rows["fix"]["tag_name"] is None


def test_files_of_a_tag(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    run(table, "create_tag", tag="t")
    append(table, "b")
    assert inspect(table, "files", "t").num_rows == 1
    assert inspect(table, "files").num_rows == 2
    assert inspect(table, "partitions").column("partition").to_pylist() == ["dt=a", "dt=b"]


def test_unknown_system_table_and_branch(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    with pytest.raises(InvalidInputError, match=r"\$snapshots"):
        inspect(table, "$nope")
    with pytest.raises(InvalidInputError, match="version"):
        inspect(table, "$tags", "t")
    with pytest.raises(NotFoundError, match="no branch 'x'"):
        inspect(table.branch("x"), "files")


def test_consumers_and_statistics_of_a_branch(tmp_path: Path) -> None:
    main = make_table(tmp_path)
    append(main, "1")
    run(main, "create_branch", branch="fix", snapshot=1)
    fix = main.branch("fix")
    append(fix, "2")
    fix.store.create(f"{fix.paths.consumer_dir}/consumer-nightly", b'{"nextSnapshot": 2}')
    assert inspect(fix, "consumers").to_pylist() == [{"consumer_id": "nightly", "next_snapshot_id": 2}]
    assert inspect(main, "$consumers").num_rows == 0
    assert inspect(fix, "statistics").num_rows == 0
    found = {"snapshotId": 2, "schemaId": 0, "mergedRecordCount": 7, "colStats": {"k": {"colId": 0}}}
    fix.store.create("statistics/stat-1", json.dumps(found).encode())
    path = fix.paths.snapshot(2)
    head = json.loads(fix.store.read(path)) | {"statistics": "stat-1"}
    fix.store.replace(path, json.dumps(head).encode())
    (row,) = inspect(fix, "statistics").to_pylist()
    assert row == {
        "snapshot_id": 2, "schema_id": 0, "mergedRecordCount": 7, "mergedRecordSize": None,
        "colstat": '{"k":{"colId":0}}',
    }  # fmt: skip
    assert inspect(fix, "statistics", 1).num_rows == 0
    damaged_on_purpose(tmp_path)
    fix.store.replace(f"{fix.paths.consumer_dir}/consumer-nightly", b"{}")
    with pytest.raises(FormatError, match="consumer-nightly"):
        inspect(fix, "consumers")
