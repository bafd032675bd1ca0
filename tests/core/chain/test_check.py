"""check_chain_table: one finding for each thing that Paimon finds out late or never."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.chain.check import find_chain_problems
from airflow_paimon.core.chain.layout import Partitions
from airflow_paimon.core.chain.read_plan import MAX_GRID, report_groups
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.schema_plan import AddColumn, RemoveOption, SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from tests.core.chain.tables import (
    DAILY,
    add,
    alter_alone,
    as_another_engine,
    build,
    make_chain,
    message,
    overwrite,
    parts,
)
from tests.core.chain.test_read_plan import held, layout_of
from tests.core.tables import alter_table, run
from tests.stores import delete_tree


@pytest.fixture
def table() -> Table:
    table = make_chain(f"memory://{uuid.uuid4()}/wh")
    add(table.branch("snapshot"), "20250101")
    for day in ("20250102", "20250103"):
        add(table.branch("delta"), day)
    return table


def found(table: Table) -> dict[str, dict[str, Any]]:
    """Findings by kind; a kind that is there twice fails."""
    findings = run(table, "check_chain_table").details["findings"]
    by_kind = {f["id"].partition(":")[0]: f for f in findings}
    assert len(by_kind) == len(findings)
    return by_kind


def test_a_correct_chain_table_has_no_findings(table: Table) -> None:
    build(table, "20250103", "20250101", ["20250102", "20250103"])
    result = run(table, "check_chain_table")
    assert not result.changed
    assert result.details == {
        "ok": True,
        "findings": [],
        "errors": 0,
        "warnings": 0,
        "groups": 1,
        "anchors": 2,
        "deltas": 2,
        "gaps": 0,
        "stale": [],
        "recorded": 1,
    }


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"table": "d.t$branch_delta"}, r"check_chain_table works on the whole table: name it d\.t, without"),
        ({"now": "yesterday"}, r"check_chain_table: now \(--now\): 'yesterday' is not an ISO time"),
    ],
)
def test_what_every_operation_refuses(table: Table, values: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        run(table, "check_chain_table", **values)


def test_a_plain_table_is_not_a_chain_table() -> None:
    table = make_chain(f"memory://{uuid.uuid4()}/wh", options={"merge-engine": "aggregation"})
    messages = [f["message"] for f in run(table, "check_chain_table").details["findings"]]
    assert any("it is not a chain table" in m for m in messages)
    assert any("merge-engine=aggregation" in m for m in messages)
    assert any("partition.timestamp-pattern is missing" in m for m in messages)


def test_a_date_that_paimon_spells_as_a_number() -> None:
    table = create_table(
        f"memory://{uuid.uuid4()}/wh",
        "d.t",
        [("k", "INT"), ("s", "INT"), ("dt", "DATE")],
        primary_keys=["dt", "k"],
        partition_keys=["dt"],
        options={"bucket": "1", "sequence.field": "s"},
    )
    form = {**DAILY, "partition.timestamp-formatter": "yyyy-MM-dd"}
    alter_alone(table, *(SetOption(key=k, value=v) for k, v in form.items()))
    messages = [f["message"] for f in run(table, "check_chain_table").details["findings"] if f["severity"] == "error"]
    assert any("partition column dt is a DATE" in m for m in messages)


def test_a_missing_branch(table: Table) -> None:
    delete_tree(table.store, "branch/branch-delta")
    finding = found(table)["missing-branch"]
    assert finding["id"] == "missing-branch:delta"
    assert (finding["severity"], finding["repair"]) == ("error", "run create_chain_table without columns")
    run(table, "create_chain_table")
    assert found(table) == {}
    alter_alone(table, SetOption(key="scan.fallback-delta-branch", value="a/b"))
    assert found(table)["missing-branch"]["id"] == "missing-branch:a/b"


def test_drift_of_columns_options_and_schema_ids(table: Table) -> None:
    alter_alone(table.branch("delta"), AddColumn(name="w", type="INT"))
    assert found(table)["branch-drift"]["id"] == "branch-drift:delta/columns"
    for branch in (table, table.branch("snapshot")):
        alter_alone(branch, AddColumn(name="x", type="INT"))
    assert "Schema 1 of branch 'delta'" in found(table)["schema-id-clash"]["message"]


def test_drift_of_options(table: Table) -> None:
    alter_alone(table.branch("snapshot"), SetOption(key="bucket", value="4"))
    finding = found(table)["branch-drift"]
    assert finding["id"] == "branch-drift:snapshot/bucket"
    assert finding["message"] == "option bucket is '4' in branch 'snapshot', but '2' in main: make them equal"
    alter_table(table.branch("snapshot"), [SetOption(key="bucket", value="2")])
    alter_table(table.branch("snapshot"), [SetOption(key="target-file-size", value="1 gb")])
    assert found(table)["option-drift"]["severity"] == "info"
    assert run(table, "check_chain_table").details["ok"]
    alter_table(table.branch("snapshot"), [SetOption(key="write-only", value="true")])
    assert "write-only" in found(table)["never-expires"]["message"]


def test_rescaled_partitions(table: Table) -> None:
    wide = replace(message(table.branch("delta"), parts("20250104")), total_buckets=8)
    as_another_engine(table, lambda: commit_append(table.branch("delta"), [wide], planned_on=None))
    assert "dt=20250104" in found(table)["bucket-drift"]["message"]


def test_partitions_that_belong_to_no_chain(table: Table) -> None:
    for strange in ("oops", "2025-01-05", "20250230"):
        as_another_engine(table, partial(add, table.branch("delta"), strange))
    add(table.branch("snapshot"), "20250106")
    kinds = found(table)
    assert "dt=2025-01-05, dt=oops" in kinds["unparsable-partition"]["message"]
    assert "dt=20250230" in kinds["misspelt-partition"]["message"]
    assert kinds["gaps"]["message"] == "2 gaps without any partition: dt=20250104, dt=20250105"
    assert run(table, "check_chain_table").details["gaps"] == 2


def test_partitions_of_main_that_hide_others(table: Table) -> None:
    add(table, "20250102")
    add(table, "20250104")
    kinds = found(table)
    assert "dt=20250102" in kinds["shadowed-by-main"]["message"]
    assert (kinds["in-main"]["severity"], "dt=20250104" in kinds["in-main"]["message"]) == ("info", True)


def test_stale_partitions(table: Table) -> None:
    build(table, "20250103", "20250101", ["20250102", "20250103"])
    overwrite(table.branch("delta"), "20250102")
    assert found(table)["stale-partition"]["id"] == "stale-partition:dt=20250103"
    assert run(table, "check_chain_table").details["stale"] == ["dt=20250103"]


def written_at(branch: Table, text: str, millis: int, source: int = 0) -> None:
    new = message(branch, parts(text))
    file = new.new_files[0]._replace(creation_time_ms=millis, file_source=source)
    commit_append(branch, [replace(new, new_files=(file,))], planned_on=branch.latest_snapshot())


def test_a_delta_that_a_snapshot_partition_of_another_engine_hides(table: Table) -> None:
    def before() -> None:
        written_at(table.branch("snapshot"), "20250105", 2000, source=1)
        written_at(table.branch("delta"), "20250105", 1000)
        written_at(table.branch("delta"), "20250105", 3000, source=1)

    as_another_engine(table, before)
    assert "hidden-delta" not in found(table)
    as_another_engine(table, lambda: written_at(table.branch("delta"), "20250105", 2500))
    assert found(table)["hidden-delta"]["id"] == "hidden-delta:dt=20250105"


def test_groups_are_distinguished() -> None:
    table = make_chain(
        f"memory://{uuid.uuid4()}/wh",
        partitions=("region", "dt"),
        options={**DAILY, "chain-table.chain-partition-keys": "dt"},
    )
    for partition in ("CN/20250101", "CN/20250103", "US/20250101"):
        add(table.branch("delta"), partition)
    assert found(table)["gaps"]["id"] == "gaps:region=CN"


def test_unreadable_metadata_is_a_finding(table: Table) -> None:
    head = table.branch("delta").latest_snapshot()
    assert head is not None
    table.store.delete(f"manifest/{head.delta_manifest_list}")
    assert "manifest list" in found(table)["unreadable-metadata"]["message"]


def test_incomplete_options(table: Table) -> None:
    alter_alone(table, RemoveOption(key="scan.fallback-delta-branch"))
    assert "scan.fallback-delta-branch is missing" in found(table)["chain-settings"]["message"]


def test_a_grid_that_is_too_long_is_not_enumerated() -> None:
    layout = layout_of("dt", form=("$dt", "yyyyMMddHHmmss"))
    (report,) = report_groups(layout, held_in_delta("20200101000000", "20250101000000"))
    assert report.gaps is None
    (report,) = report_groups(layout, held_in_delta("20250101000000", "20250101000003"))
    assert len(report.gaps or ()) == 2 < MAX_GRID


def held_in_delta(*texts: str) -> Partitions:
    return Partitions(delta=held(*texts))


def test_tables_written_by_paimon_have_no_findings(golden: Callable[[str], Path]) -> None:
    """Connector 2.0.0's chain tables: no error in any; a delta overwritten under its full partition is told."""
    warehouse = str(golden("paimon-2.0.0") / "wh")
    checks = {n: find_chain_problems(open_table(warehouse, f"d.{n}")) for n in ("ch_daily", "ch_delete", "ch_group")}
    assert not any(f.severity == "error" for check in checks.values() for f in check.findings)
    late = [f.id for f in checks["ch_daily"].findings if f.severity == "warning"]
    assert late == ["hidden-delta:dt=20250810"]
    assert checks["ch_delete"].findings == ()
