"""dags/table_maintenance.py: several real tables, of which one is damaged and one has a primary key."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.runbooks import table_maintenance as night
from airflow_paimon.runbooks.maintenance_plan import Budget, parse_budget
from airflow_paimon.task_run import ERROR_KEY
from tests.airflow.conftest import set_connection
from tests.airflow.test_approval_people import CLASS
from tests.core.tables import append
from tests.core.tables import make_table as make_metadata_table
from tests.core.tables import run as operate
from tests.dags.conftest import form_of, run_dag, states
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
    return {key: value for key, value in form_of(DAG).items() if key != "tables"} | conf


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
    assert night.why_no_orphan_cleaning("never", sunday) == "set to never in the form"
    told = night.why_no_orphan_cleaning("sunday", sunday + timedelta(days=1))
    assert told == "orphan files are removed on Sunday"


# -- a budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        (" ", None),
        (None, None),
        ("unlimited", Budget()),
        ("500 GB", Budget(bytes=500 << 30)),
        ("2 h", Budget(time=timedelta(hours=2))),
        ("90 min", Budget(time=timedelta(minutes=90))),
    ],
)
def test_a_budget_is_bytes_or_a_time(text: str | None, budget: Budget | None) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["5", "90 m", "0 gb", "0 s", "a lot", "5 g"])
def test_a_budget_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"neither a size with its unit, such as 500 gb, nor a time"):
        parse_budget(text)


SUNDAY = datetime(2026, 11, 22, 3, tzinfo=UTC)
MONDAY = SUNDAY + timedelta(days=1)


@pytest.fixture
def many(warehouse: Path) -> Path:
    """50 tables, one of them sick: d.t17 has many small files, and a tag that is past its retention."""
    first = make_metadata_table(warehouse, "d.t00", primary=False)
    for _ in range(3):
        append(first, "a")
    for number in range(1, 50):
        shutil.copytree(place(first), warehouse / "d.db" / f"t{number:02}")
    sick = open_table(str(warehouse), "d.t17")
    for _ in range(9):
        append(sick, "a")
    operate(sick, "create_tag", tag="old", time_retained="1 d", now="2026-01-01T00:00:00+00:00")
    return warehouse


def test_of_50_tables_only_the_sick_one_gets_work(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = many.parent / "heard"
    notifiers = {
        "oncall": {"class": CLASS, "path": str(heard), "text": "{{ paimon.event }}: {{ paimon.text }}"},
        "other": {"class": CLASS, "path": str(heard), "text": "not chosen"},
    }
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(many), "notify": notifiers})
    sick = open_table(str(many), "d.t17")
    before = everything(sick)
    conf = {"tables": ["*"], "budget": "1 gb", "orphan_day": "never", "dry_run": True, "notify": ["oncall"]}
    run = run_dag(DAG, conf)
    assert run.state == "success" and run.asset_events == []
    assert everything(sick) == before
    assert run.xcom("find_tables") == ["d.t17"]
    assert {step: states(run)[f"maintain.{step}[0]"] for step in night.STEPS} == {
        "compact": "skipped",
        "expire_partitions": "skipped",
        "expire_branches": "skipped",
        "trigger_tag_automatic_creation": "skipped",
        "expire_tags": "success",
        "expire_snapshots": "skipped",
        "remove_orphan_files": "skipped",
    }
    summary = run.xcom("summary")
    (row,) = summary["by_table"]
    assert row["skipped"]["compact"] == "dry run: 12 files in 1 partition would be rewritten"
    assert row["skipped"]["expire_snapshots"] == "nothing is due" and row["tags"] == 1
    assert (summary["measured"], summary["waiting_for_budget"]) == (50, [])

    (line,) = heard.read_text().splitlines()
    assert line.startswith("maintenance: 50 tables measured; worked on: 1 table, 0 failed: ")
    assert line.endswith(f"/dags/{DAG}/runs/{quote(run.run_id, safe='')}/tasks/summary")

    fine = run_dag(DAG, {"tables": ["*"], "exclude": ["d.t17"], "budget": "2 h", "orphan_day": "never"})
    assert fine.state == "success" and fine.xcom("find_tables") == []
    assert (fine.xcom("summary")["measured"], fine.xcom("summary")["tables"]) == (49, 0)
    assert fine.xcom("summary", key="markdown").startswith("49 tables measured; worked on: 0 tables")


def test_a_message_tells_what_failed_and_which_tables_are_unhealthy() -> None:
    failed = [f"d.t{n}: compact: its log shows why" for n in range(12)]
    plan = {"measured": 9, "scores": {"d.a": None, "d.b": 40, "d.c": 70}, "waiting": [{"table": "d.d", "score": 59}]}
    found = night.summarize([], ["x.*"], dry_run=False, plan=plan)
    assert found["unhealthy"] == ["d.a", "d.b", "d.d"]
    message = night.message_of(found, "9 tables measured", "http://airflow/x")
    assert message["text"] == (
        "9 tables measured. failed: No table matches x.*. unhealthy: d.a, d.b, d.d. http://airflow/x"
    )
    long = night.message_of({**found, "failed": failed}, "s", "u")["text"]
    assert "d.t9: compact" in long and "d.t10" not in long and "why .... unhealthy" in long


def test_a_notifier_that_is_not_there_is_refused_at_once(warehouse: Path) -> None:
    make_metadata_table(warehouse, "d.t")
    run = run_dag(DAG, {"tables": ["*"], "notify": ["nobody"]})
    assert states(run)["find_tables"] == "failed"
    assert "has no notifier 'nobody'" in run.xcom("find_tables", key=ERROR_KEY)["message"]


@pytest.mark.thorough
def test_automatic_tags_are_set_before_their_snapshots_expire(warehouse: Path) -> None:
    option = {"tag.automatic-creation": "process-time"}
    tagged = make_metadata_table(warehouse, "d.tagged", **option)
    refused = make_metadata_table(warehouse, "d.refused", **option, **{"metastore.tag-to-partition": "dt"})
    for table in (tagged, tagged, refused):
        append(table, "a")
    run = run_dag(DAG, {**AT_ONCE, "tables": ["d.*"], "compact": False, "retain_min": 1, "retain_max": 1})
    assert run.state == "success"
    assert run.xcom("find_tables") == ["d.refused", "d.tagged"]
    found = [states(run)[f"maintain.trigger_tag_automatic_creation[{n}]"] for n in range(2)]
    assert found == ["skipped", "success"]
    assert tagged.snapshot_ids() == [2]
    assert [tag.snapshot.id for tag in tagged.tags()] == [1] and not refused.tags()
    markdown = run.xcom("summary", key="markdown")
    assert "no automatic tags: d.refused: the table option metastore.tag-to-partition" in markdown


def planned(names: list[str], when: datetime = MONDAY, **conf: Any) -> Any:
    found = night.measure(form(**conf), names, when)
    assert found is not None
    return found


def test_what_the_options_demand_is_done_within_any_budget(warehouse: Path) -> None:
    """Due snapshots, a tag, a branch with a retention, an entry of the trash, a changelog, a stream's consumer."""
    names = ["snapshots", "tag", "branch", "trash", "changelog", "consumer", "automatic", "old", "fine", "gone"]
    tables = {}
    for name in names[:-1]:
        tables[name] = make_metadata_table(warehouse, f"d.{name}", **{"snapshot.num-retained.min": "1"})
        append(tables[name], "a")
        append(tables[name], "a")
    operate(tables["tag"], "create_tag", tag="old", time_retained="1 d", now="2026-01-01T00:00:00+00:00")
    operate(tables["branch"], "create_branch", branch="old", retention="1 d")
    operate(tables["trash"], "create_tag", tag="old", time_retained="1 d", now="2026-01-01T00:00:00+00:00")
    operate(tables["trash"], "expire_tags")
    shutil.copytree(place(tables["changelog"]) / "snapshot", place(tables["changelog"]) / "changelog")
    (place(tables["changelog"]) / "changelog" / "snapshot-1").rename(
        place(tables["changelog"]) / "changelog" / "changelog-1"
    )
    operate(tables["automatic"], "alter_table", change=["set tag.automatic-creation=process-time"])
    operate(tables["old"], "alter_table", change=["set partition.expiration-time=30 d"])
    tables["consumer"].store.create("consumer/consumer-c", b'{"nextSnapshot": 2}')
    full = [f"d.{name}" for name in names]
    found = {p.table: set(night.STEPS) - set(p.skipped) for p in planned(full, budget="1 b").tables}
    assert found == {
        "d.tag": {"expire_tags"},
        "d.branch": {"expire_branches"},
        "d.trash": {"expire_snapshots"},
        "d.changelog": {"expire_snapshots"},
        "d.consumer": {"expire_snapshots"},
        "d.automatic": {"trigger_tag_automatic_creation"},
        "d.old": {"expire_partitions"},
        "d.gone": set(night.STEPS),
    }, "a table that isn't there, or can't be read, has all steps, and they say so"
    by_form = planned(["d.snapshots"], budget="1 b", older_than="0 s").tables
    assert [set(night.STEPS) - set(p.skipped) for p in by_form] == [{"expire_snapshots"}]
    on_sunday = planned(full, SUNDAY, budget="1 b").tables
    assert len(on_sunday) == 10 and all("remove_orphan_files" not in p.skipped for p in on_sunday)


@pytest.mark.thorough
def test_partitions_expire_by_the_tables_own_options_alone(warehouse: Path) -> None:
    table = create_table(
        str(warehouse), "d.days", [("dt", "STRING"), ("id", "BIGINT")], partition_keys=["dt"], options={"bucket": "-1"}
    )
    write_arrow(table, pa.table({"dt": ["2020-01-01", "2999-01-01"], "id": pa.array([1, 2], pa.int64())}))
    assert night.why_no_partition_expiry(form(), "d.days") == night.NO_EXPIRY
    asked = ["set airflow-paimon.four-eyes=true", "set partition.expiration-time=30 d"]
    operate(table, "alter_table", change=asked)
    run = run_dag(DAG, {"tables": ["d.days"], "orphan_day": "never", "compact": False})
    assert (run.state, states(run)["maintain.expire_partitions[0]"]) == ("success", "success")
    assert read_arrow(table)["dt"].to_pylist() == ["2999-01-01"]
    assert run.xcom("summary")["partitions"] == 1


def test_the_worst_compactions_come_first_and_others_wait(warehouse: Path) -> None:
    for name, files in (("a", 10), ("b", 40), ("c", 20)):
        table = make_metadata_table(warehouse, f"d.{name}", primary=False)
        for _ in range(files):
            append(table, "x")
    names = ["d.a", "d.b", "d.c"]

    def compacted(**conf: Any) -> list[str]:
        return [p.table for p in planned(names, **conf).tables if "compact" not in p.skipped]

    assert compacted(budget="unlimited") == ["d.b", "d.c", "d.a"]
    assert compacted(budget="1 kb") == ["d.b", "d.c", "d.a"]
    assert compacted(budget="600 b") == ["d.b", "d.a"], "440 bytes, then 220 that don't fit, then 110"
    assert compacted(budget="unlimited", compact=False) == []
    assert compacted(budget="unlimited", min_files=30) == ["d.b"]
    found = planned(names, budget="600 b")
    (waiting,) = night.plan_to_json(found)["waiting"]
    assert (waiting["table"], waiting["bytes"]) == ("d.c", 220)
    assert waiting["why"] == "it rewrites up to 220 B, and 160 B of the budget of 600 B are left"
    assert "d.c: no compaction: it rewrites up to 220 B" in "\n".join(night.describe_maintenance(found))
    assert night.measure(form(budget=None), names, MONDAY) is None


def test_more_tables_than_airflow_maps_are_fine_while_few_need_something(
    found: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
    chosen = night.choose_tables(form(tables=["*"], budget="1 gb"))["tables"]
    assert len(chosen) == 3 and planned(chosen, budget="1 gb").tables == ()
    with pytest.raises(InvalidInputError, match="3 tables have something to do, and Airflow maps at most 2"):
        planned(chosen, SUNDAY, budget="1 gb")


def test_when_the_time_is_over_compactions_wait() -> None:
    params, start = form(budget="2 h"), MONDAY
    assert night.why_out_of_time(params, start, start + timedelta(minutes=119)) is None
    assert "2 h since the run's start is used up" in (
        night.why_out_of_time(params, start, start + timedelta(hours=2)) or ""
    )
    assert night.why_out_of_time(form(budget="1 gb"), start, start + timedelta(days=9)) is None
    assert night.why_out_of_time(form(), start, start + timedelta(days=9)) is None


# -- the night ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.damages_metadata
@pytest.mark.slow
def test_a_night_of_several_tables_of_which_one_is_damaged(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are compacted together, in one Spark application, and the damaged one keeps none from it."""
    set_connection(monkeypatch, "paimon_default", "paimon", extra={"warehouse": str(warehouse)})
    tables = [make(warehouse, f"sales.{name}", key=name == "keyed") for name in ("broken", "keyed", "plain")]
    broken, keyed, plain = tables
    few = make(warehouse, "sales.left_alone", key=True)
    for _ in range(4):  # its writers don't compact: now it has more sorted runs than the form allows
        write_arrow(keyed, rows(3))
    operate(plain, "create_branch", branch="old", retention="1 d", now="2026-01-01T00:00:00+00:00")
    operate(plain, "create_branch", branch="soon", retention="36 h", owner="me")
    operate(plain, "create_tag", tag="old", snapshot=1, time_retained="1 d", now="2026-01-01T00:00:00+00:00")
    damage(broken)
    before = everything(broken)
    of_keyed = {path: (place(keyed) / path).stat().st_size for path in files_on_disk(keyed)}
    conf = {"tables": ["sales.*", "gone.*"], "exclude": ["sales.left_alone"], **AT_ONCE}

    run = run_dag(DAG, conf)
    assert run.state == "failed"
    found = states(run)
    assert {name: state for name, state in found.items() if not name.startswith("maintain")} == {
        "find_tables": "success", "group_small_tables": "success", "compact_together[0]": "success",
        "summary": "success", "fail_on_errors": "failed",
    }  # fmt: skip
    by_table = [{step: found[f"maintain.{step}[{n}]"] for step in night.STEPS} for n in range(3)]
    assert by_table[0] == {"compact": "failed"} | dict.fromkeys(night.STEPS[1:], "upstream_failed")
    assert run.xcom("group_small_tables") == ["sales.keyed,sales.plain"]
    together = run.xcom("compact_together", map_index=0)
    assert [(one["table"], one["ran_on"]) for one in together["details"]["tables"]] == [
        ("sales.keyed", "spark"), ("sales.plain", "spark")
    ]  # fmt: skip
    done = dict.fromkeys(night.STEPS, "success")
    done |= dict.fromkeys(("expire_partitions", "trigger_tag_automatic_creation"), "skipped")
    assert by_table[1:] == [done, done]

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
    assert "| sales.plain | 3 to 1 (spark) |" in markdown
    assert "**compact failed**" in markdown
