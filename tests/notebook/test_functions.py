"""The functions of operations: the same arguments as the jobs', the same results, and examples that are true."""

from __future__ import annotations

import doctest
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import airflow_paimon
from airflow_paimon import (
    Result,
    compact,
    create_branch,
    create_table,
    create_tag,
    open_table,
)
from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.table.table import open_table as open_core_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.notebook import functions, operation
from tests import python_functions
from tests.environment import REPO_ROOT

NAMES = sorted(functions.__all__)
_DOCS = REPO_ROOT / "docs"


def test_the_functions_are_those_that_the_table_of_operations_makes() -> None:
    assert [p for p, text in python_functions.files().items() if p.read_text() != text] == [], "make functions"


def test_every_operation_has_a_function_unless_it_runs_sql_of_the_user() -> None:
    without = set(OPERATIONS) - set(NAMES)
    assert without == {"check_branch_data", "correct_branch", "replay_branch"}
    assert set(NAMES) <= set(airflow_paimon.__all__)
    assert all(getattr(airflow_paimon, name) is getattr(functions, name) for name in NAMES)
    page = (REPO_ROOT / "docs" / "reference" / "python.md").read_text()
    assert [name for name in NAMES if f".. autofunction:: airflow_paimon.{name}\n" not in page] == []


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with what the examples name."""
    folder = tmp_path_factory.mktemp("examples") / "warehouse"
    columns = [("id", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL"), ("amount", "DOUBLE")]
    keys = {"partition_keys": ["dt"], "primary_keys": ["dt", "id"]}
    orders = create_table(str(folder), "sales.orders", columns, **keys, options={"bucket": "2"})  # type: ignore[arg-type]
    for number in range(1, 4):
        day = "2026-05-02" if number == 3 else "2026-05-01"
        write_arrow(orders, rows(*((i, number * 10.0) for i in range(1, 5)), day=day))
        if number == 2:
            create_tag("sales.orders", "before_fix", warehouse=str(folder))
    create_branch("sales.orders", "fix", tag="before_fix", warehouse=str(folder))
    write_arrow(orders.branch("fix"), rows((1, 99.0)))
    automatic = {"tag.automatic-creation": "process-time", "tag.creation-period": "daily"}
    customers = create_table(str(folder), "sales.customers", [("id", "BIGINT")], options=automatic)
    write_arrow(customers, pa.table({"id": [1]}))
    (folder / "sales.db" / "orders" / "consumer").mkdir()
    (folder / "sales.db" / "orders" / "consumer" / "consumer-dashboard").write_text('{"nextSnapshot":2}')
    nights = [("id", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL"), ("v", "STRING")]
    for name in ("nights", "days"):
        create_table(str(folder), f"sales.{name}", nights, **keys, options={"bucket": "1"})  # type: ignore[arg-type]
    functions.create_chain_table(
        "sales.days", timestamp_pattern="$dt", timestamp_formatter="yyyyMMdd", sequence_field=["v"],
        warehouse=str(folder),
    )  # fmt: skip
    for day in ("20260501", "20260502"):
        days = open_table(str(folder), "sales.days", "delta")
        write_arrow(days, pa.table({"id": [1], "dt": [day], "v": [day]}), "overwrite", {"dt": day})
    return folder


def rows(*pairs: tuple[int, float], day: str = "2026-05-01") -> pa.Table:
    return pa.table({"id": [i for i, _ in pairs], "dt": [day] * len(pairs), "amount": [a for _, a in pairs]})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.every(2)
def test_the_example_of_a_function_is_true(
    name: str, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = shutil.copytree(stored, tmp_path / "warehouse")
    monkeypatch.chdir(tmp_path)
    Path("fix.sql").write_text("UPDATE branch SET amount = 0 WHERE id = 1")
    results: list[Result] = []
    performed = operation.perform
    monkeypatch.setattr(functions, "perform", lambda *given: results.append(performed(*given)) or results[-1])
    tables = {
        table: open_table(str(warehouse), f"sales.{table}") for table in ("orders", "customers", "days", "nights")
    }
    text = (getattr(functions, name).__doc__ or "").replace("/data/warehouse", str(warehouse))
    test = doctest.DocTestParser().get_doctest(text, {**vars(functions), **tables}, name, None, None)
    said: list[str] = []
    assert doctest.DocTestRunner().run(test, out=said.append) == (0, 1), "".join(said)
    (result,) = results
    assert result.operation == name
    json.dumps(result.to_json())


def test_a_table_by_name_and_an_opened_one_are_the_same_operation(stored: Path, tmp_path: Path) -> None:
    warehouse = str(shutil.copytree(stored, tmp_path / "warehouse"))
    one = create_tag(open_table(warehouse, "sales.orders"), "x", operation_id="op")
    again = create_tag("sales.orders", "x", operation_id="op", warehouse=warehouse)
    assert one.details["snapshot"] == again.details["snapshot"] == 3
    with pytest.raises(AlreadyExistsError):
        create_tag("sales.orders", "x", warehouse=warehouse)


def test_a_table_that_was_just_made_is_an_opened_one(tmp_path: Path) -> None:
    made = create_table(str(tmp_path), name="d.t", columns=[("id", "INT")], storage_options={})
    write_arrow(made, pa.table({"id": pa.array([1], pa.int32())}))
    assert create_tag(made, "x").details["snapshot"] == 1
    assert made.to_arrow().num_rows == made.branch("main").count() == 1


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    table = create_table(warehouse, "d.t", [("id", "INT")])
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: create_tag("d.t", "x"), "give warehouse= with the name 'd.t'"),
        (lambda: create_tag(3, "x"), "table is db.table or what open_table returned"),  # type: ignore[arg-type]
        (lambda: create_tag(table, "x", warehouse=warehouse), "an opened table knows its warehouse"),
        (lambda: create_tag(open_core_table(warehouse, "d.t"), "x"), "was not opened by airflow_paimon.open_table"),
        (lambda: create_tag(open_table(path=f"{warehouse}/d.db/t"), "x"), "was not opened by"),
        (lambda: create_tag(table.branch("b"), "x", branch="c"), "name has branch 'b', and branch"),
        (lambda: compact(table, processes=0), "processes is a number from 1 on"),
        (lambda: compact(table, min_files=1), "at least 2"),
        (lambda: compact(table, partitions=5), r"partitions \(--partitions\) must be a list of strings"),  # type: ignore[arg-type]
    ]
    for call, says in refused:
        with pytest.raises(InvalidInputError, match=says):
            call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'retention'"):
        compact(table, retention="1 d")  # type: ignore[call-arg]
    assert table.tag_names() == []


def test_a_dry_run_changes_nothing_and_an_error_is_the_operations(stored: Path, tmp_path: Path) -> None:
    warehouse = str(shutil.copytree(stored, tmp_path / "warehouse"))
    orders = open_table(warehouse, "sales.orders")
    planned = functions.fast_forward(orders, "fix", discard_main=True, dry_run=True)
    assert planned.changed and planned.dry_run and planned.details["plan"]["plan_id"] == planned.plan_id
    assert orders.latest_snapshot_id() == 3
    with pytest.raises(UnsafeOperationError):
        functions.fast_forward(orders, "fix")
    done = functions.fast_forward(orders, "fix", discard_main=True, changelog="none")
    assert (done.snapshot_before, done.snapshot_after) == (3, 4)
    assert read_arrow(orders).sort_by("id")["amount"].to_pylist() == [99.0, 20.0, 20.0, 20.0]
    back = functions.rollback_to(orders, tag=done.details["undo_tag"])
    assert back.details["target_snapshot"] == 3


def test_a_chain_is_compacted_alike_in_one_process_and_in_two(stored: Path, tmp_path: Path) -> None:
    found = []
    for processes in (1, 2):
        warehouse = str(shutil.copytree(stored, tmp_path / str(processes)))
        days = open_table(warehouse, "sales.days")
        done = functions.compact_chain_table(days, partition=["dt=20260501", "dt=20260502"], processes=processes)
        found.append((done.details["counts"], read_arrow(days.branch("snapshot")).sort_by("dt").to_pylist()))
    assert found[0] == found[1]
    assert [row["v"] for row in found[0][1]] == ["20260501", "20260502"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda table: airflow_paimon.rollback_to(table),
        lambda table: create_tag(table, "a/b"),
        lambda table: create_branch(table, "main"),
        lambda table: airflow_paimon.alter_table(table, change=["truncate"]),
        lambda table: airflow_paimon.expire_partitions(table, expiration_time="soon"),
        lambda table: compact(table, partitions=["day=1"]),
    ],
)
def test_an_error_names_the_table_once(tmp_path: Path, wrong: Callable[[Any], object]) -> None:
    columns = [("k", "INT"), ("dt", "STRING")]
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], options={"bucket": "-1"})
    with pytest.raises(InvalidInputError) as refused:
        wrong(table)
    assert refused.value.message.count("d.t") == 1 and str(refused.value) == refused.value.message


@pytest.mark.parametrize(
    "wrong", [{"primary_keys": ["x"]}, {"options": ["bucket"]}, {"options": {"bucket": "x"}}, {"partition_keys": "k"}]
)
def test_a_table_that_can_not_be_created_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"^d\.t: "):
        create_table(str(tmp_path), "d.t", [("k", "INT")], **wrong)
    assert list(tmp_path.iterdir()) == []
