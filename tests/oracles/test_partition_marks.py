"""Marks of complete partitions are those of Java: the same files, and the same reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_paimon.core.table.table import Table
from tests.core.partition_marks.test_mark_done import ACTION, MARK, marks
from tests.core.partition_marks.web import web_server
from tests.core.tables import append, make_table, run
from tests.oracles.java_driver import JavaOracle

pytestmark = pytest.mark.oracle

DAY = "2026-11-25 a=b/ü"


def contents(table: Table) -> dict[str, str]:
    """The marks without their times."""
    return {path: re.sub(r"\d+", "TIME", table.store.read(path).decode()) for path in marks(table)}


def test_java_marks_with_the_same_files_and_reports(java_oracle: JavaOracle, tmp_path: Path) -> None:
    with web_server() as web:
        options = {
            ACTION: "success-file,http-report",
            "partition.mark-done-action.http.url": f"{web.url}/done",
            "partition.mark-done-action.http.params": "team=ä",
        }
        table = make_table(tmp_path, **options)
        append(table, DAY)
        java_oracle.do("mark_partition_done", f"file://{tmp_path}", "d.t", partition={"dt": DAY})
        java = contents(table)
        run(table, MARK, partitions=[f"dt='{DAY}'"])
        assert contents(table) == java != {}
        first, second = web.posted
        assert first == second
        java_oracle.do("mark_partition_done", f"file://{tmp_path}", "d.t", partition={"dt": DAY})
        assert contents(table) == java, "Java goes on with a mark of ours"


def test_a_report_without_parameters(java_oracle: JavaOracle, tmp_path: Path) -> None:
    with web_server() as web:
        table = make_table(tmp_path, **{ACTION: "http-report", "partition.mark-done-action.http.url": web.url})
        java_oracle.do("mark_partition_done", f"file://{tmp_path}", "d.t", partition={"dt": "a"})
        run(table, MARK, partitions="dt=a")
        assert web.posted[0] == web.posted[1]


def test_orphan_cleaning_of_java_leaves_a_mark(java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "a")
    run(table, MARK, partitions="dt=a")
    java_oracle.do("remove_orphans", tmp_path, "d.t", older_than_ms=2**62)
    assert marks(table) == ["dt=a/_SUCCESS"]
