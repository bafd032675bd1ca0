"""plan_correction on real tables: what it foresees, against what the correction's own plan of the files does."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.streaming.replays import ReplayRecord, record_replay
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.shown.correction_text import plan_lines
from tests.core.tables import run
from tests.environment import REPO_ROOT
from tests.stores import CountingStore

COLUMNS = [("dt", "STRING NOT NULL"), ("id", "BIGINT NOT NULL"), ("amount", "DOUBLE")]


def orders(warehouse: str, name: str = "sales.orders", *, keyed: bool = True, **options: str) -> Table:
    """Three days of 100 rows, each day one commit."""
    keys = ["dt", "id"] if keyed else []
    bucket = {"bucket": "2"} if keyed else {"bucket": "-1"}
    table = create_table(
        warehouse, name, COLUMNS, partition_keys=["dt"], primary_keys=keys, options={**bucket, **options}
    )
    for day in (17, 18, 19):
        write_arrow(table, rows(day, range(100)))
    return table


def rows(day: int, ids: range) -> pa.Table:
    return pa.table({
        "dt": [f"2026-11-{day}"] * len(ids),
        "id": pa.array(ids, pa.int64()),
        "amount": [float(i) for i in ids],
    })  # fmt: skip


@pytest.fixture
def warehouse() -> str:
    return f"memory://{uuid.uuid4()}/wh"


def planned(table: Table, folder: Path, sql: str, **values: Any) -> Mapping[str, Any]:
    (folder / "fix.sql").write_text(sql)
    result = run(table, "plan_correction", sql=str(folder / "fix.sql"), **values)
    assert not result.changed
    json.dumps(result.to_json())
    return result.details


def test_an_update_of_a_table_with_keys_writes_its_buckets_again(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse)
    found = planned(
        table, tmp_path, "UPDATE branch SET amount = 0 WHERE dt = '2026-11-18' AND amount > 7", branch="fix"
    )
    partitions = found["replaces"]["partitions"]
    assert list(partitions) == ["dt=2026-11-18"] and found["replaces"]["buckets"] == 2
    assert (found["reads"]["files"], found["replaces"]["rows"], found["writes"]["rows"]) == (2, 100, 100)
    assert found["at_most"] and not found["branch_exists"] and found["statement"] == "UPDATE"
    one = planned(table, tmp_path, "UPDATE branch SET amount = 0 WHERE dt = '2026-11-18' AND id = 5")
    assert (one["replaces"]["buckets"], one["reads"]["files"]) == (1, 1)
    whole = planned(table, tmp_path, "UPDATE branch SET amount = 0")
    assert whole["replaces"]["partition_count"] == 3


def test_an_update_of_a_table_without_keys_writes_single_files_again(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse, keyed=False)
    write_arrow(table, rows(18, range(100, 120)))
    found = planned(table, tmp_path, "UPDATE branch SET amount = 0 WHERE dt = '2026-11-18' AND id < 7")
    assert found["replaces"]["files"] == 1 and found["replaces"]["rows"] == 100
    dropped = planned(table, tmp_path, "DELETE FROM branch WHERE dt IN ('2026-11-17', '2026-11-18')")
    assert (dropped["reads"]["files"], dropped["replaces"]["files"], dropped["writes"]["bytes"]) == (0, 3, 0)
    assert not dropped["at_most"]
    some = planned(table, tmp_path, "DELETE FROM branch WHERE dt = '2026-11-18' AND upper(dt) = 'X'")
    assert some["reads"]["files"] == 2 and some["at_most"]


def test_several_statements_are_planned_as_what_they_do_at_most(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse)
    one, two = (f"UPDATE branch SET amount = 0 WHERE dt = '2026-11-{day}'" for day in (17, 18))
    apart = [planned(table, tmp_path, text) for text in (one, two)]
    found = planned(table, tmp_path, f"{one};\n{two};")
    assert (found["statement"], found["replaces"]["buckets"], found["at_most"]) == ("UPDATE, UPDATE", 4, True)
    assert found["replaces"]["partitions"] == {k: v for a in apart for k, v in a["replaces"]["partitions"].items()}
    assert "2 statements" in found["notes"][0]
    again = planned(table, tmp_path, f"{one}; {one}")
    assert (again["replaces"]["buckets"], again["reads"]["files"]) == (2, 2 * apart[0]["reads"]["files"])
    with pytest.raises(InvalidInputError, match="statement 2 of 2 is a SELECT"):
        planned(table, tmp_path, f"{one}; SELECT * FROM branch")
    with pytest.raises(InvalidInputError, match=r"statement 2 of 2: .*branch has no column nope"):
        planned(table, tmp_path, f"{one}; UPDATE branch SET nope = 1 WHERE id = 1")
    with pytest.raises(InvalidInputError, match="statement 1 of 2: SQL starts with 'DROP'"):
        planned(table, tmp_path, f"DROP TABLE branch; {one}")


def test_a_select_replaces_its_partitions(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse)
    sql = "SELECT b.* FROM branch b JOIN main m ON b.id = m.id WHERE b.dt = '2026-11-18'"
    found = planned(table, tmp_path, sql, partitions=("dt=2026-11-18",))
    assert found["replaces"]["rows"] == 100 and not found["at_most"]
    assert found["other_tables"]["sales.orders"]["rows"] == 300
    with pytest.raises(InvalidInputError, match="partitioned by dt: name the partitions"):
        planned(table, tmp_path, "SELECT * FROM branch")
    inserted = planned(table, tmp_path, "INSERT OVERWRITE branch PARTITION (dt = '2026-11-19') SELECT 1, 2.0")
    assert list(inserted["replaces"]["partitions"]) == ["dt=2026-11-19"]
    strange = planned(table, tmp_path, "INSERT OVERWRITE branch PARTITION (id = 5) SELECT 1, 2.0")
    assert strange["replaces"]["partition_count"] == 3 and strange["at_most"]


def test_a_table_that_is_refused_is_refused_here_as_well(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse, "sales.fine")
    sql = "UPDATE branch SET amount = 0"
    run(table, "alter_table", change=("set sequence.auto-padding=row-kind-flag",))
    with pytest.raises(UnsupportedFeatureError, match=r"sequence\.auto-padding"):
        planned(table, tmp_path, sql)


def test_what_is_no_correction_is_refused(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse)
    for nothing in ("", " ;\n"):
        with pytest.raises(InvalidInputError, match=r"sales\.orders: the file .* \(--sql\) is empty; write one"):
            planned(table, tmp_path, nothing)
    for sql, flags, says in (
        ("UPDATE brnch SET amount = 1 WHERE id = 1", {}, "name it branch, not 'brnch'"),
        ("INSERT INTO TABLE sales.orders SELECT * FROM main", {}, "name it branch, not 'sales.orders'"),
        ("DELETE FROM branch WHERE id = 1", {"partitions": ["dt=a"]}, "DELETE determines by itself which rows change"),
        ("SELECT * FROM branch", {"view": ["x"]}, "'x' is not of the form name=db.table"),
        ("SELECT * FROM branch", {"view": ["main=sales.orders"]}, "'main' is taken already"),
    ):
        with pytest.raises(InvalidInputError, match=says):
            planned(table, tmp_path, sql, **flags)
    with pytest.raises(InvalidInputError, match="Branch name 'a b' is not allowed"):
        planned(table, tmp_path, "UPDATE branch SET amount = 1", branch="a b")


def test_branches_that_change_the_same_are_named(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse)
    for name in ("same", "elsewhere", "published"):
        run(table, "create_branch", branch=name, snapshot=3)
    write_arrow(table.branch("same"), rows(18, range(5, 6)))
    write_arrow(table.branch("elsewhere"), rows(19, range(5, 6)))
    write_arrow(table.branch("published"), rows(17, range(5, 6)))
    run(table, "merge_branch", branch="published", writers_stopped=True)
    sql = "UPDATE branch SET amount = 0 WHERE dt IN ('2026-11-17', '2026-11-18') AND id = 5"
    [found] = planned(table, tmp_path, sql, branch="fix")["conflicts"]
    assert found["branch"] == "same" and found["bucket_count"] == 1
    assert planned(table, tmp_path, sql, branch="same")["conflicts"] == []
    behind = planned(table, tmp_path, sql, branch="elsewhere")
    assert behind["changed_on_main_count"] == 1 and behind["changed_on_main"][0].startswith("dt=2026-11-17/")
    (tmp_path / "again").mkdir()
    apart = planned(table, tmp_path / "again", "UPDATE branch SET amount = 0 WHERE dt = '2026-11-19' AND id = 5")
    assert [one["branch"] for one in apart["conflicts"]] == ["elsewhere"]


def test_without_keys_only_the_same_files_are_a_conflict(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse, keyed=False)
    for name, day in (("adds", 18), ("drops", 18)):
        run(table, "create_branch", branch=name, snapshot=3)
        (write_arrow if name == "adds" else _replace)(table.branch(name), rows(day, range(3)))
    found = planned(table, tmp_path, "UPDATE branch SET amount = 0 WHERE dt = '2026-11-18'")["conflicts"]
    assert [one["branch"] for one in found] == ["drops"]


def _replace(view: Table, some: pa.Table) -> None:
    write_arrow(view, some, mode="dynamic_overwrite")


def test_consumers_and_replays_are_named(tmp_path: Path) -> None:
    warehouse = str(tmp_path / "wh")
    table, made = orders(warehouse), orders(warehouse, "sales.daily")
    keep_from(table, "dashboards", 2)
    identities = {"orders": table.snapshot(2).identity, "rates": "another"}
    record = ReplayRecord(asked="x", starts={"orders": 2, "rates": 2}, identities=identities)
    record_replay(made, "key", record)
    found = planned(table, tmp_path, "DELETE FROM branch WHERE id = 1")
    assert found["streaming_readers"]["consumers"] == [
        {"name": "dashboards", "next_snapshot": 2, "snapshots_behind": 2}
    ]
    assert found["replays"] == [{"table": "sales.daily", "source": "orders", "snapshot": 2}]
    assert found["tables_checked"] == 1


def test_only_the_manifests_of_the_named_partitions_are_read(warehouse: str, tmp_path: Path) -> None:
    table = orders(warehouse, **{"manifest.merge-min-count": "100"})
    costs = []
    for condition in ("dt = '2026-11-18'", "upper(dt) = 'X'"):
        (tmp_path / "fix.sql").write_text(f"UPDATE branch SET amount = 0 WHERE {condition}")
        costs.append(_bytes_read(table, tmp_path / "fix.sql"))
    assert costs[0] < costs[1]


def _bytes_read(table: Table, sql: Path) -> int:
    from airflow_paimon.core.requests.arguments import build_request
    from airflow_paimon.core.requests.context import Context, open_context
    from airflow_paimon.data.plan_correction import plan_correction

    request = build_request(
        "plan_correction", {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": table.name, "sql": str(sql)}
    )
    store = CountingStore(table.store)
    context = open_context(request)
    plan_correction(Context(request, Table(store, table.name), context.now_ms, context.started), request)  # type: ignore[arg-type]
    return store.tally.bytes_read


def test_the_example_of_the_page(warehouse: str, tmp_path: Path) -> None:
    page = (REPO_ROOT / "docs" / "howto" / "plan-a-correction.md").read_text()
    [shown] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    table = orders(warehouse)
    run(table, "create_branch", branch="fix_currency", snapshot=3)
    write_arrow(table.branch("fix_currency"), rows(18, range(5, 6)))
    [sql] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    sql = sql.replace("BETWEEN 10000 AND 999999", "BETWEEN 50 AND 4999")  # the amounts of this table are below 100
    lines = plan_lines(planned(table, tmp_path, sql, branch="fix"))
    size = re.compile(r"[\d.]+ KiB")
    assert [size.sub("N", line) for line in lines] == [size.sub("N", line) for line in shown.splitlines()]
