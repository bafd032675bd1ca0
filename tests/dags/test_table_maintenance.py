"""dags/table_maintenance.py: several real tables, of which one is damaged and one has a primary key."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.runbooks import table_maintenance as night
from tests.core.tables import run as operate
from tests.dags.conftest import load_dag, run_dag, states
from tests.soundness import assert_sound, files_on_disk

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

DAG = "table_maintenance"
AT_ONCE = {
    "older_than": "0 s",
    "retain_min": 1,
    "grace": "0 s",
    "writers_stopped": True,
    "min_files": 2,
    "orphan_day": "every day",
}
"""Everything but the newest snapshot, and without a grace time."""
ORPHAN = "bucket-0/data-11111111-2222-3333-4444-555555555555-0.parquet"


def form(**conf: Any) -> dict[str, Any]:
    params = load_dag(DAG).params
    return {key: params.get_param(key).value for key in params if key != "tables"} | conf


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "note": [f"row {n}" for n in numbers]})


def make(warehouse: Path, name: str, *, key: bool = False) -> Table:
    """A table whose first rows were all replaced, and then three small commits; an old file that nothing names."""
    table = create_table(
        str(warehouse),
        name,
        [("id", "BIGINT NOT NULL"), ("note", "STRING")],
        primary_keys=["id"] if key else [],
        options={"bucket": "1", "write-only": "true"} if key else {"bucket": "-1"},
    )
    write_arrow(table, rows(*range(1000)))
    write_arrow(table, rows(1), mode="overwrite")
    write_arrow(table, rows(2))
    write_arrow(table, rows(3))
    path = place(table) / ORPHAN
    path.write_bytes(b"left by a writer that died")
    long_ago = time.time() - timedelta(days=9).total_seconds()
    os.utime(path, (long_ago, long_ago))
    return table


def place(table: Table) -> Path:
    return Path(table.store.uri.removeprefix("file://"))


def ids(table: Table) -> list[int]:
    return sorted(row["id"] for row in read_arrow(table).to_pylist())


def everything(table: Table) -> dict[str, bytes]:
    return {str(p.relative_to(place(table))): p.read_bytes() for p in place(table).rglob("*") if p.is_file()}


def damage(table: Table) -> None:
    """Make a manifest of the newest snapshot unreadable: what the table names can't be known."""
    snapshot = table.latest_snapshot()
    assert snapshot is not None
    (place(table) / f"manifest/{snapshot.base_manifest_list}").write_bytes(b"no manifest list")


# -- which tables -------------------------------------------------------------------------------------------------


@pytest.fixture
def found(warehouse: Path) -> Path:
    for name in ("sales.orders", "sales.items", "raw.orders"):
        create_table(str(warehouse), name, [("id", "BIGINT")])
    (warehouse / "sales.db" / "no_table").mkdir()
    return warehouse


@pytest.mark.parametrize(
    ("tables", "exclude", "chosen", "missed"),
    [
        (["*"], [], ["raw.orders", "sales.items", "sales.orders"], []),
        (["sales.*", "sales.orders"], [], ["sales.items", "sales.orders"], []),
        (["*.orders", "x.*"], ["raw.*"], ["sales.orders"], ["x.*"]),
        ([" sales.items ", "", "sales.gone"], [], ["sales.gone", "sales.items"], []),
    ],
)
def test_tables_are_named_or_match(
    found: Path, tables: list[str], exclude: list[str], chosen: list[str], missed: list[str]
) -> None:
    assert night.choose_tables(form(tables=tables, exclude=exclude)) == {"tables": chosen, "missed": missed}


@pytest.mark.parametrize(
    ("conf", "error", "says"),
    [
        ({"tables": [""]}, InvalidInputError, "Tables is empty: write one name or pattern a line"),
        ({"tables": ["orders"]}, InvalidInputError, "not of the form db.table"),
        ({"tables": ["sales.orders$branch_b"]}, InvalidInputError, "without a branch"),
        ({"tables": ["sale.*"]}, NotFoundError, r"'paimon_default' matches sale\.\*\. Its databases are raw, sales"),
        ({"tables": ["raw.*"], "exclude": ["*"]}, NotFoundError, r"matches raw\.\* and is not excluded by \*"),
        ({"tables": ["*"]}, InvalidInputError, "3 tables match, and Airflow maps at most 2"),
    ],
)
def test_a_form_without_a_table_says_what_to_write(
    found: Path, monkeypatch: pytest.MonkeyPatch, conf: Mapping[str, Any], error: type[PaimonError], says: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
    with pytest.raises(error, match=says):
        night.choose_tables(form(**conf))


def test_orphan_files_have_their_day() -> None:
    sunday = datetime(2026, 11, 22, 3, tzinfo=UTC)
    assert night.why_no_orphan_cleaning("sunday", sunday) is None
    assert night.why_no_orphan_cleaning("every day", sunday) is None
    assert night.why_no_orphan_cleaning("never", sunday) == "the form says never"
    told = night.why_no_orphan_cleaning("sunday", sunday + timedelta(days=1))
    assert told == "it is Monday; orphan files go on Sunday"


# -- the night ----------------------------------------------------------------------------------------------------


@pytest.mark.damages_metadata
@pytest.mark.slow
def test_a_night_of_several_tables_of_which_one_is_damaged(warehouse: Path) -> None:
    tables = [make(warehouse, f"sales.{name}", key=name == "keyed") for name in ("broken", "keyed", "plain")]
    broken, keyed, plain = tables
    few = make(warehouse, "sales.left_alone", key=True)
    for _ in range(4):  # its writers don't compact: now it has more sorted runs than the form allows
        write_arrow(keyed, rows(3))
    operate(plain, "create_branch", branch="old", retention="1 d", now="2026-01-01T00:00:00+00:00")
    operate(plain, "create_branch", branch="soon", retention="36 h", owner="me")
    operate(plain, "create_tag", tag="old", snapshot=1, time_retained="1 d", now="2026-01-01T00:00:00+00:00")
    damage(broken)
    before, first = everything(broken), files_on_disk(plain)
    of_keyed = {path: (place(keyed) / path).stat().st_size for path in files_on_disk(keyed)}
    conf = {"tables": ["sales.*", "gone.*"], "exclude": ["sales.left_alone"], **AT_ONCE}

    dry = run_dag(DAG, {**AT_ONCE, "tables": ["sales.plain"], "dry_run": True})
    assert dry.asset_events == []
    assert files_on_disk(plain) == first
    assert states(dry)["maintain.compact[0]"] == "skipped"
    (planned,) = dry.xcom("summary")["by_table"]
    assert planned["skipped"] == {"compact": "dry run: 3 files in 1 partition would be written again"}
    assert (planned["tags"], planned["branches"]) == (1, 1)

    run = run_dag(DAG, conf)
    assert run.state == "failed"
    found = states(run)
    assert {name: state for name, state in found.items() if not name.startswith("maintain")} == {
        "find_tables": "success", "summary": "success", "nothing_failed": "failed"
    }  # fmt: skip
    by_table = [{step: found[f"maintain.{step}[{n}]"] for step in night.STEPS} for n in range(3)]
    assert by_table[0] == {"compact": "failed"} | dict.fromkeys(night.STEPS[1:], "upstream_failed")
    assert by_table[1] == dict.fromkeys(night.STEPS, "success")
    assert by_table[2] == dict.fromkeys(night.STEPS, "success")

    assert everything(broken) == before, "nothing of a damaged table is deleted"
    for table in (keyed, plain):
        assert_sound(table)
        assert not (place(table) / ORPHAN).exists()
    assert (ids(keyed), ids(plain)) == ([1, 2, 3], [1, 2, 3])
    assert (keyed.snapshot_ids(), plain.snapshot_ids()) == ([9], [5])
    assert [(f.level, f.row_count) for s in plan_scan(keyed).splits for f in s.files] == [(5, 3)]
    assert plain.branch_names() == ["soon"]
    assert [tag.name for tag in plain.tags()] == []

    summary = run.xcom("summary")
    rows_ = {row["table"]: row for row in summary["by_table"]}
    assert next(iter(rows_)) == "sales.broken"
    assert "compact" in rows_["sales.broken"]["failed"]
    assert (rows_["sales.keyed"]["compacted_files"], rows_["sales.keyed"]["compacted_to"]) == (7, 1)
    assert "no bucket enough sorted runs" in (night.why_not_compacted(form(), few.name, retried=False) or "")
    freed = {path: size for path, size in of_keyed.items() if path not in files_on_disk(keyed)}
    assert len([path for path in freed if "data-" in path]) == 9, "the replaced and the merged rows, the orphan file"
    assert rows_["sales.keyed"]["freed_files"] == len(freed)
    assert rows_["sales.keyed"]["freed_bytes"] == sum(freed.values())
    assert (rows_["sales.plain"]["compacted_files"], rows_["sales.plain"]["compacted_to"]) == (3, 1)
    assert (rows_["sales.plain"]["tags"], rows_["sales.plain"]["branches"]) == (1, 1)
    assert (summary["tables"], summary["tables_failed"]) == (3, 1)
    assert any("sales.broken: compact: " in line for line in summary["failed"])
    assert "No table matches gone.*" in summary["failed"]
    assert [extra for uri, extra in run.asset_events if DAG in uri] == [summary]
    (soon,) = summary["expiring_soon"]
    assert (soon["table"], soon["branch"], soon["owner"]) == ("sales.plain", "soon", "me")
    markdown = run.xcom("summary", key="markdown")
    assert f"| sales.plain | soon | me | {soon['expires_at']} |" in markdown
    assert "| sales.plain | 3 to 1 |" in markdown
    assert "**compact failed**" in markdown
