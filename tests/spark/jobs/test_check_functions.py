"""Checks from a program, and by another tool as the page shows it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon import check_branch_data
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.table.record_kinds import CHECKS
from tests.environment import REPO_ROOT
from tests.spark.jobs.checks import outcome, require
from tests.spark.jobs.operations import make_branch, put, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_program_checks_a_branch(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    require(main, {"name": "few", "row_limits": {"changed": 1}})
    put(branch, [(3, None, "a")])
    asked: Any = {"spark": spark, "warehouse": str(tmp_path)}
    rules = [{"not_null": "v", "severity": "warn"}, {"name": "seen", "sql": "SELECT o.k FROM o WHERE o.k > 8"}]
    with pytest.raises(UnsafeOperationError, match="breaks 1 of 3 rules: 'seen': 3 rows") as broken:
        check_branch_data("d.t", "fix", rules=rules, view=["o=d.t"], sample=1, **asked)
    outcomes = [(rule["name"], rule["outcome"], len(rule["rows"])) for rule in broken.value.details["rules"]]
    assert outcomes == [("few", "passed", 0), ("not_null v", "warned", 1), ("seen", "failed", 1)]
    found = check_branch_data("d.t", "fix", rules=rules[:1], against="main", mask=["k"], **asked)
    assert [(rule["name"], rule["outcome"]) for rule in found.details["rules"]] == [
        ("few", "passed"), ("not_null v", "warned"),
    ]  # fmt: skip
    assert found.details["rules"][1]["rows"][0]["k"] == "***" and found.branch == "fix"
    assert len(main.store.names(CHECKS.folder)) == 2
    assert run(tmp_path, "merge_branch", branch="fix").changed
    for wrong in ([{"not_nul": "v"}], {"not_null": "v"}, ["not_null: v"]):
        with pytest.raises(InvalidInputError, match=r"d\.t: --rules"):
            check_branch_data("d.t", "fix", rules=wrong, **asked)  # type: ignore[arg-type]


@dataclass
class MeanBetween:
    """What Great Expectations calls ``ExpectColumnMeanToBeBetween``, evaluated by Spark."""

    column: str
    min_value: float
    max_value: float

    def result(self, rows: DataFrame) -> Any:
        mean = rows.selectExpr(f"avg({self.column})").collect()[0][0]
        about = SimpleNamespace(type="expect_column_mean_to_be_between")
        success = self.min_value <= mean <= self.max_value
        return SimpleNamespace(success=success, expectation_config=about, result={"observed_value": mean})


class Step:
    """The steps from a context to a batch of rows, of which each only leads to the next one."""

    rows: DataFrame

    def __getattr__(self, name: str) -> Any:
        return self if name == "data_sources" else lambda *_, **__: self

    def get_batch(self, parameters: dict[str, DataFrame]) -> Step:
        self.rows = parameters["dataframe"]
        return self

    def validate(self, suite: Any) -> Any:
        return SimpleNamespace(results=[one.result(self.rows) for one in suite.expectations])


def test_the_suite_on_the_page_is_a_rule(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the tool, which Airflow's environment here doesn't have: the snippet's own lines run."""
    page = (REPO_ROOT / "docs" / "howto" / "check-tools.md").read_text()
    [snippet] = re.findall(r"```text\n(import great_expectations.*?)```", page, re.DOTALL)
    tool: Any = ModuleType("great_expectations")
    tool.get_context = lambda mode: Step()
    tool.expectations = SimpleNamespace(ExpectColumnMeanToBeBetween=MeanBetween)
    tool.ExpectationSuite = lambda name, expectations: SimpleNamespace(expectations=expectations)
    monkeypatch.setitem(sys.modules, "great_expectations", tool)
    suites = ModuleType("suites")
    exec(compile(snippet.replace('column="amount"', 'column="k"'), "snippet", "exec"), suites.__dict__)
    monkeypatch.setitem(sys.modules, "suites", suites)
    _, branch = make_branch(tmp_path)
    rule = {"function": "suites:orders_suite"}
    assert outcome(spark, tmp_path, rule) == ("passed", 0)
    put(branch, [(100_000, "far", "a")])
    assert outcome(spark, tmp_path, rule) == ("failed", 1)
