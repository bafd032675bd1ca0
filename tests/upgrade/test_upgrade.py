"""What earlier versions left works with this one: tables, operation records, connections, arguments."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import open_table
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import parse_arguments
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.execution import run_operation
from airflow_paimon.hooks.paimon import PaimonHook
from tests.strict_metadata import findings
from tests.upgrade.keep import KEPT, PUBLISH, surface

VERSIONS = sorted(path.name for path in KEPT.iterdir())
ENGINE = "engine"
"""The argument that only correct_branch has now: nothing but a statement runs by Paimon's connector."""
RENAMED = ("rewrite", "min-anchors", "min_anchors")
"""Are ``revert_compaction``, as the field of the form is called, and ``min_full_partitions`` now."""
WITHOUT_EFFECT = {"job replace_main: --tags", "airflow_paimon.operators.branch.ReplaceMainOperator(tags)"}
"""Main gets the branch's tags in any case."""
REFUSE_RETRIES = {"0.1.0.dev20261123"}
"""A development version whose operation records tell every field of a request, also those that it did not know."""


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest) -> Path:
    return KEPT / str(request.param)


@pytest.fixture
def warehouse(kept: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(kept / "warehouse.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def job(warehouse: Path, table: str, name: str, *flags: str) -> dict[str, Any]:
    arguments = ["--warehouse", str(warehouse), "--table", f"sales.{table}", *flags]
    return run_operation(parse_arguments(name, arguments).request).to_json()


def rows(table: Table, **version: Any) -> dict[int, float]:
    read = read_arrow(table, **version)
    return dict(zip(read.column("id").to_pylist(), read.column("amount").to_pylist(), strict=True))


def known(kept: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kept / "surface.json").read_text())
    return found


def test_there_is_an_earlier_version() -> None:
    assert VERSIONS


def test_tables_are_read_published_undone_and_cleaned(warehouse: Path) -> None:
    orders = open_table(str(warehouse), "sales.orders")
    before = {1: 1.0, 2: 100.0, 3: 100.0, 4: 400.0}
    assert rows(orders) == before
    assert rows(orders, version="before_fix") == {1: 100.0, 2: 100.0, 3: 100.0}
    assert rows(orders.branch("fix")) == {1: 100.0, 2: 100.0, 3: 100.0, 5: 5.0}
    for table in ("orders", "events"):
        found = [f["id"] for f in job(warehouse, table, "check_table")["details"]["findings"]]
        assert {f.partition(":")[0] for f in found} <= {"unrecorded-publish"}, "earlier versions kept no records"
        job(warehouse, table, "repair_table")
        assert job(warehouse, table, "check_table")["details"]["findings"] == []
    assert job(warehouse, "orders", "merge_branch", "--branch", "fix")["changed"]
    assert rows(orders) == {**before, 5: 5.0}
    undone = job(warehouse, "orders", "rollback_to", "--tag", "airflow-paimon-undo-kept-publish", "--keep-later")
    assert undone["changed"]
    assert rows(orders) == {**before, 1: 100.0, 5: 5.0}
    for branch in ("done", "fix"):
        assert job(warehouse, "orders", "delete_branch", "--branch", branch)["changed"]
    assert job(warehouse, "orders", "check_table")["details"]["findings"] == []
    assert list(findings(warehouse)) == []


def test_row_ids_stay(warehouse: Path) -> None:
    fix = open_table(str(warehouse), "sales.events", branch="fix")
    read = read_arrow(fix, columns=["id", "_ROW_ID"])
    assert dict(zip(read.column("id").to_pylist(), read.column("_ROW_ID").to_pylist(), strict=True)) == {
        1: 0,
        2: 1,
        3: 2,
    }


def test_a_retry_finds_what_its_first_try_committed(kept: Path, warehouse: Path) -> None:
    first = known(kept)["results"]["publish"]
    if kept.name in REFUSE_RETRIES:
        with pytest.raises(InvalidInputError, match="was used for another request"):
            job(warehouse, "orders", *PUBLISH)
    else:
        again = job(warehouse, "orders", *PUBLISH)
        assert again["snapshot_after"] == first["snapshot_after"]
        assert again["details"]["undo_tag"] == first["details"]["undo_tag"]
        assert set(first) <= set(again)
    assert open_table(str(warehouse), "sales.orders").latest_snapshot_id() == 3, "nothing was published again"


@pytest.mark.airflow
def test_names_that_users_rely_on_are_there(kept: Path) -> None:
    then, now = known(kept), surface()
    gone = [
        f"job {name}: {flag}" for name, flags in then["jobs"].items() for flag in set(flags) - _of(now["jobs"], name)
    ]
    gone += [
        f"{name}({a})"
        for name, arguments in then["classes"].items()
        for a in set(arguments) - _of(now["classes"], name)
    ]
    ends = tuple(end for name in (ENGINE, *RENAMED) for end in (f"--{name}", f"({name})"))
    gone = [n for n in gone if not n.endswith(ends) and n not in WITHOUT_EFFECT]
    gone += sorted(set(then["connection_fields"]) - set(now["connection_fields"]))
    assert gone == []
    assert set(then["jobs"]) <= set(now["jobs"])
    assert set(then["classes"]) <= set(now["classes"])


def _of(named: dict[str, list[str]], name: str) -> set[str]:
    return set(named.get(name, ()))


@pytest.mark.airflow
def test_a_stored_connection_means_the_same(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KEPT", json.dumps(known(kept)["connection"]))
    hook = PaimonHook("kept")
    assert hook.warehouse == "/lake"
    assert hook.four_eyes is True
