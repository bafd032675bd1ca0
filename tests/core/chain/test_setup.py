"""create_chain_table: new and converted tables, refusals before the first write, a crash at every store call."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.schema.schema_plan import AddColumn, SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import open_table
from tests.core.chain.setups import CONVERT, ENDS, HOURLY, NEW, made, plain_table, setup, shape, warehouse
from tests.core.chain.tables import DAILY as CHAIN_OPTIONS
from tests.core.chain.tables import add, alter_alone, make_chain
from tests.core.tables import alter_table, run

# -- a new table -----------------------------------------------------------------------------------------------------


def test_a_new_chain_table() -> None:
    folder = warehouse()
    result = setup(folder, **NEW)
    assert result.changed
    assert result.details["created"]
    table = open_table(folder, "d.t")
    assert shape(table)["main"] == shape(table)["snapshot"] == shape(table)["delta"]
    schema = table.schema()
    assert schema.options["scan.fallback-snapshot-branch"] == "snapshot"
    assert schema.field("v").description == "what it's worth"
    assert not schema.field("region").type.nullable, "a key column"
    assert gather_chain(table).layout.group_width == 1
    for branch in ("snapshot", "delta"):
        assert "write-only" not in table.branch(branch).schema().options, "it has files of its own, which must expire"
    again = setup(folder, **NEW)
    assert not again.changed
    assert again.details["snapshot_branch"] == "snapshot"


def test_options_that_no_engine_knows_are_warned_of() -> None:
    folder = warehouse()
    result = setup(folder, **{**NEW, "option": [*NEW.get("option", ()), "snapshot.tme-retained=1 h"]})
    assert "did you mean snapshot.time-retained?" in result.details["warnings"][0]
    table = open_table(folder, "d.t")
    altered = run(table, "alter_chain_table", change=["set target-file-sise=1 mb"])
    assert "did you mean target-file-size?" in altered.details["warnings"][0]
    assert "warnings" not in run(table, "alter_chain_table", change=["set target-file-size=1 mb"]).details


def test_other_names_of_the_branches() -> None:
    folder, names = warehouse(), {"snapshot_branch": "full", "delta_branch": "changes"}
    table = made(folder, **{**NEW, **names})
    assert not setup(folder, **CONVERT, **names).changed
    with pytest.raises(InvalidInputError, match="works on the whole table"):
        run(replace(table, name="d.t$branch_full"), "create_chain_table", **CONVERT, **names)
    assert sorted(table.branch_names()) == ["changes", "full"]
    assert gather_chain(table).layout.snapshot_branch == "full"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp_pattern": None}, "partition.timestamp-pattern is missing"),
        ({"timestamp_formatter": "yyyyMM"}, "complete date"),
        ({"timestamp_formatter": "yyyyMMdd'T'"}, "does not fit"),
        ({"timestamp_pattern": "$region"}, "group column"),
        ({"timestamp_formatter": "ddMMyyyy"}, "don't sort in the order of time"),
        ({"chain_partition_key": ["region"]}, "must be the last partition columns"),
        ({"option": ["bucket=-1"]}, "bucket must be greater than 0"),
        ({"option": ["bucket=2", "merge-engine=aggregation"]}, "merge-engine=aggregation"),
        ({"option": ["bucket=2", "changelog-producer=lookup"]}, "changelog-producer"),
        ({"option": ["bucket=2", "deletion-vectors.enabled=true"]}, "deletion-vectors.enabled must be false"),
        ({"option": ["bucket=2", "sequence.field=s"]}, "as argument sequence_field"),
        ({"option": ["bucket=2", "chain-table.enabled=false"]}, "must be true"),
        ({"option": ["bucket"]}, "key=value"),
        ({"option": ["bucket=2", "scan.fallback-branch=x"]}, "can't be both"),
        ({"sequence_field": []}, "sequence.field is required"),
        ({"sequence_field": "dt"}, "partition column"),
        ({"sequence_field": "x"}, "not a column"),
        ({"delta_branch": "snapshot"}, "same branch"),
        ({"delta_branch": "SNAPSHOT"}, "same branch"),
        ({"delta_branch": "main"}, "main"),
        ({"delta_branch": "a/b"}, "not allowed"),
        ({"primary_key": []}, "primary key is required"),
        ({"primary_key": ["dt", "k"]}, "must include the partition columns"),
        ({"primary_key": ["region", "dt"]}, "is the partition key as well"),
        ({"partition_key": []}, "must be partitioned"),
        ({"column": ["k"]}, "not of the form"),
        ({"column": ["k WHATEVER"]}, "is not a type"),
        ({"column": []}, "give its columns"),
        ({"column": ["k BIGINT", "s INT", "region STRING", "dt DATE"]}, "is a DATE"),
        ({"column": ["k BIGINT", "s INT", "region STRING", "dt TIMESTAMP(3)"]}, "text form varies"),
        ({"column": ["k BIGINT", "s INT", "region STRING", "dt SMALLINT"]}, "don't preserve"),
        ({**HOURLY, "column": ["k BIGINT", "s INT", "dt STRING", "hour INT"]}, "don't preserve"),
    ],
)
def test_what_is_refused_before_anything_is_written(change: dict[str, Any], message: str) -> None:
    folder = warehouse()
    with pytest.raises(InvalidInputError, match=message):
        setup(folder, **{**NEW, **change}, operation_id="op")
    assert open_table(folder, "d.t").store.walk("") == []


@pytest.mark.parametrize(
    "more",
    [
        {**HOURLY, "column": ["k BIGINT", "s INT", "dt INT", "hour STRING"]},
        {"column": ["k BIGINT", "s INT", "region STRING", "dt INT"]},
        {
            "column": ["k BIGINT", "s INT", "region STRING", "dt DATE"],
            "timestamp_formatter": "yyyy-MM-dd",
            "option": ["bucket=1", "partition.legacy-name=false"],
        },
    ],
)
def test_types_that_can_make_the_time(more: dict[str, Any]) -> None:
    folder = warehouse()
    setup(folder, **{**NEW, **more})
    gather_chain(open_table(folder, "d.t"))


def test_a_table_with_other_columns_is_left_alone() -> None:
    folder = warehouse()
    setup(folder, **NEW)
    with pytest.raises(AlreadyExistsError, match="other columns"):
        setup(folder, **{**NEW, "column": [*NEW["column"], "more INT"]})


# -- conversion ------------------------------------------------------------------------------------------------------


def test_a_table_with_data_becomes_a_chain_table() -> None:
    folder = warehouse()
    table = plain_table(folder, "CN/20250101", "US/20250102")
    result = setup(folder, **CONVERT)
    assert (result.changed, result.snapshot_after) == (True, 2)
    assert [s[0] for s in shape(table)["main"]] == [0, 1, 2]
    assert shape(table)["main"][-1:] == shape(table)["snapshot"] == shape(table)["delta"]
    assert gather_chain(table).partitions.main == {("CN", "20250101"), ("US", "20250102")}
    assert not setup(folder, **CONVERT).changed


def test_existing_branches_are_used_if_they_fit() -> None:
    folder = warehouse()
    table = plain_table(folder)
    run(table, "create_branch", branch="delta")
    add(table.branch("delta"), "CN/20250101")
    setup(folder, **CONVERT)
    assert [s[0] for s in shape(table)["delta"]] == [0, 1, 2]
    assert gather_chain(table).partitions.delta == {("CN", "20250101")}


def test_the_new_version_has_one_id_in_all_three_branches() -> None:
    folder = warehouse()
    table = plain_table(folder)
    run(table, "create_branch", branch="delta")
    alter_table(table.branch("delta"), [SetOption(key="target-file-size", value="64 mb")])
    setup(folder, **CONVERT)
    assert {n: table.branch(n).schema_ids()[-1] for n in ENDS} == dict.fromkeys(ENDS, 3)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ("CN/2025-01-01", "without a partition time"),
        ("CN/oops", "without a partition time"),
        ("CN/20250230", "not written as the formatter writes it"),
    ],
)
def test_partitions_without_a_partition_time(partition: str, message: str) -> None:
    folder = warehouse()
    table = plain_table(folder, "CN/20250101", partition)
    before = table.store.walk("")
    with pytest.raises(InvalidInputError, match=message):
        setup(folder, **CONVERT)
    assert table.store.walk("") == before


def test_what_a_conversion_refuses() -> None:
    folder = warehouse()
    table = plain_table(folder, "CN/20250101")
    with pytest.raises(InvalidInputError, match=r"sequence\.field determines how existing files are read"):
        setup(folder, **CONVERT, sequence_field="v")
    run(table, "create_branch", branch="fix", snapshot=1)
    with pytest.raises(InvalidInputError, match="shares files with main"):
        setup(folder, **CONVERT, delta_branch="fix")
    table.store.delete("branch/branch-fix/snapshot/snapshot-1")
    with pytest.raises(InvalidInputError, match="shares files with main"):
        setup(folder, **CONVERT, delta_branch="fix")  # half made: create_branch may be under way
    run(table, "create_branch", branch="other")
    alter_table(table.branch("other"), [AddColumn(name="w", type="INT")])
    with pytest.raises(InvalidInputError, match="other columns than main"):
        setup(folder, **CONVERT, delta_branch="other")
    alter_table(table.branch("other"), [SetOption(key="bucket", value="4")])
    setup(folder, **CONVERT)
    with pytest.raises(InvalidInputError, match=r"is a chain table already, with scan\.fallback-delta-branch"):
        setup(folder, **CONVERT, delta_branch="third")
    with pytest.raises(InvalidInputError, match="is a chain table already"):
        setup(folder, **{**CONVERT, "timestamp_formatter": "yyyyDDD"})
    with pytest.raises(NotFoundError, match="to convert; give its columns and keys to create it"):
        setup(warehouse(), **CONVERT)


def test_a_half_finished_set_up_by_hand_is_finished() -> None:
    folder = warehouse()
    table = plain_table(folder)
    half = {"chain-table.enabled": "true", "partition.timestamp-pattern": "$dt"}
    changes = [SetOption(key=k, value=v) for k, v in half.items()]
    with pytest.raises(InvalidInputError, match="create_chain_table to convert"):
        alter_table(table, changes)
    alter_alone(table, *changes)
    setup(folder, **CONVERT)
    gather_chain(table)


def test_branches_that_lack_mains_options_get_them() -> None:
    """As after Paimon's CREATE TABLE, two create_branch and only one of the three ALTERs."""
    folder = warehouse()
    table = plain_table(folder)
    for name in ("snapshot", "delta"):
        run(table, "create_branch", branch=name)
    setup(folder, **CONVERT, dry_run=True)
    changes = {**CHAIN_OPTIONS, "chain-table.chain-partition-keys": "dt"}
    with pytest.raises(InvalidInputError, match="is '' in branch 'delta', but"):
        alter_table(table, [SetOption(key=k, value=v) for k, v in changes.items()])
    alter_alone(table, *(SetOption(key=k, value=v) for k, v in changes.items()))
    result = setup(folder, snapshot_branch="snapshot")
    assert result.changed
    assert gather_chain(table).layout.group_width == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scan.fallback-delta-branch": ""}, "scan.fallback-delta-branch is missing"),
        ({"bucket": "-1"}, "bucket must be greater than 0"),
        ({"sequence.field": ""}, "sequence.field is required"),
        ({"partition.timestamp-formatter": "ddMMyyyy"}, "don't sort in the order of time"),
        ({"deletion-vectors.enabled": "true"}, "deletion-vectors.enabled must be false"),
    ],
)
def test_create_table_checks_chain_options_as_well(changed: dict[str, str], message: str) -> None:
    folder = f"memory://{uuid.uuid4()}/wh"
    make_chain(folder, name="d.right")
    options = {k: v for k, v in {"bucket": "2", **CHAIN_OPTIONS, **changed}.items() if v}
    sequence = {} if "sequence.field" in changed else {"sequence.field": "s"}
    with pytest.raises(InvalidInputError, match=message):
        create_table(
            folder,
            "d.t",
            [("k", "BIGINT"), ("s", "BIGINT"), ("dt", "STRING")],
            partition_keys=["dt"],
            primary_keys=["dt", "k"],
            options={**sequence, **options},
        )
    assert not open_table(folder, "d.t").exists()


def test_a_dry_run_writes_nothing() -> None:
    table = open_table(warehouse(), "d.t")
    result = run(table, "create_chain_table", **NEW, dry_run=True)
    assert result.changed
    assert [a["path"] for a in result.details["plan"]["actions"]][-1] == "schema/schema-0"
    assert table.store.walk("") == []


# -- the branches afterwards -----------------------------------------------------------------------------------------


def test_a_branch_of_a_chain_can_neither_be_deleted_nor_renamed() -> None:
    folder = warehouse()
    setup(folder, **NEW)
    table = open_table(folder, "d.t")
    for name in ("snapshot", "delta"):
        with pytest.raises(UnsafeOperationError, match="unset that option first"):
            run(table, "delete_branch", branch=name)
        with pytest.raises(UnsafeOperationError, match="unset that option first"):
            run(table, "rename_branch", branch=name, to_branch="x")
        with pytest.raises(UnsafeOperationError, match="unset that option first"):
            run(table, "create_branch", branch=name, if_exists="replace", from_branch="main")
    gather_chain(table)
