"""A small table with a branch."""

from pathlib import Path

import pytest

from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, run, without_rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Main with partitions a, b, c; tag ``base`` on snapshot 3."""
    table = make_table(tmp_path / "wh")
    for dt in "abc":
        append(table, dt, rows=2, seq=0)
    run(table, "create_tag", tag="base")
    return table


@pytest.fixture
def fix(table: Table) -> Table:
    run(table, "create_branch", branch="fix", tag="base", reason="bad prices")
    return table.branch("fix")


@pytest.fixture(autouse=True)
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rows(monkeypatch)
