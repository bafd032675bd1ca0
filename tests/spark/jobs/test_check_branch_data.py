"""check_branch_data: what each kind of rule finds, what is kept of it, and the gate at the publish."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.rules.required import required_rules
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.record_kinds import CHECKS
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark.jobs import run_spark_operation
from tests.core.tables import alter_table
from tests.spark.jobs.checks import check, outcome, outcomes, run_check
from tests.spark.jobs.operations import correct, in_tasks, make_branch, put, run, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("primary", [True, False], ids=["keyed", "append"])
def test_rules_look_at_what_the_branch_changes(spark: SparkSession, tmp_path: Path, primary: bool) -> None:
    main, _ = make_branch(tmp_path, primary=primary)
    sql = "SELECT k, if(k < 2, NULL, v) AS v, dt FROM branch WHERE dt = 'a' AND k < 8 UNION ALL SELECT 50, 'new', 'a'"
    correct(spark, tmp_path, sql, partitions=["dt=a"])
    put(main, [(70, None, "c")])  # main goes on, and has a NULL of its own
    counts = {"added": 1, "changed": 2, "deleted": 2} if primary else {"added": 3, "changed": 0, "deleted": 4}
    part = counts["deleted"] * 10
    found = outcomes(
        spark, tmp_path,
        {"not_null": "v"}, {"not_null": ["k", "v"], "severity": "warn"}, {"not_null": "k"},
        {"accepted_values": {"column": "v", "values": ["new", "a5"]}},
        {"accepted_values": {"column": "v", "values": ["a5"]}},
        {"row_limits": counts}, {"row_limits": {"deleted": counts["deleted"] - 1}},
        {"row_limits": {"deleted": f"{part} %"}}, {"row_limits": {"deleted": f"{part - 1} %"}},
    )  # fmt: skip
    assert found == [
        ("failed", 2), ("warned", 2), ("passed", 0), ("passed", 0), ("failed", 1),
        ("passed", 0), ("failed", 1), ("passed", 0), ("failed", 1),
    ]  # fmt: skip
    kinds = "SELECT _change, count(*) AS n FROM diff GROUP BY _change HAVING n > 0"
    [by_sql] = check(spark, tmp_path, {"sql": kinds}, sample=3)
    assert {row["_change"]: row["n"] for row in by_sql["rows"]} == {k: n for k, n in counts.items() if n}
    with in_tasks():
        assert outcomes(spark, tmp_path, {"not_null": "v"}, {"row_limits": counts}) == [("failed", 2), ("passed", 0)]


def test_sql_sees_the_branch_its_base_main_the_differences_and_other_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    main, branch = make_branch(tmp_path)
    put(branch, [(1, "fixed", "a")])
    put(main, [(2, "later", "b")])
    views = {"branch": "k = 1 AND dt = 'a'", "base": "k = 1 AND dt = 'a'", "main": "k = 2 AND dt = 'b'"}
    seen = ", ".join(f"(SELECT v FROM {view} WHERE {where}) AS {view}" for view, where in views.items())
    counts = "(SELECT count(*) FROM d.t) AS named, (SELECT count(*) FROM o) AS other"
    seen = f"SELECT {seen}, (SELECT max(_before.v) FROM diff) AS before, {counts}"
    [found] = check(spark, tmp_path, {"name": "seen", "sql": seen}, view=["o=d.t$branch_fix"])
    expected = {"branch": "fixed", "base": "a1", "main": "later", "before": "a1", "named": 30, "other": 30}
    assert (found["name"], found["rows"]) == ("seen", [expected])
    assert check(spark, tmp_path, {"sql": "SELECT * FROM diff WHERE v = _before.v"})[0]["said"] == "kept"


def test_unique_and_relationships_look_beyond_the_changed_rows(spark: SparkSession, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    countries = create_table(str(tmp_path), "d.names", [("name", "STRING")])
    write_arrow(countries, pa.table({"name": ["a1", "fixed"]}))
    put(branch, [(1, "a3", "a"), (4, None, "a")])
    to = {"columns": "v", "to": "d.names", "fields": "name"}
    found = outcomes(
        spark, tmp_path,
        {"unique": "v"}, {"unique": ["v", "dt"]}, {"unique": ["k", "dt"]},
        {"relationships": to}, {"relationships": to, "rows": "all"},
    )  # fmt: skip
    a3_is_on_the_branch = ("failed", 1)
    assert found == [a3_is_on_the_branch, ("failed", 1), ("passed", 0), ("failed", 1), ("failed", 29)]
    put(branch, [(1, "fixed", "a")])
    assert outcome(spark, tmp_path, {"relationships": to}) == ("passed", 0)


def test_drift_against_the_base_and_the_week_before(spark: SparkSession, tmp_path: Path) -> None:
    columns = [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("amount", "DECIMAL(10,2)")]
    main = create_table(
        str(tmp_path), "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"], options={"bucket": "1"}
    )

    def days(view: Any, amounts: dict[str, list[int]]) -> None:
        rows = [{"dt": dt, "k": k, "amount": v} for dt, some in amounts.items() for k, v in enumerate(some)]
        types = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("amount", pa.decimal128(10, 2))])
        write_arrow(view, pa.Table.from_pylist(rows, types))

    days(main, {"2026-11-11": [50, 50], "2026-11-18": [100, 100], "2026-11-19": [7]})
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    assert outcome(spark, tmp_path, {"drift": {"measure": "sum", "column": "amount", "most": 0}}) == ("passed", 0)
    days(main.branch("fix"), {"2026-11-18": [110, 100], "2026-11-19": [7]})
    five = {"measure": "sum", "column": "amount", "most": "5 %"}
    assert outcome(spark, tmp_path, {"drift": five}) == ("passed", 0)
    [found] = check(spark, tmp_path, {"drift": {**five, "most": "4.9 %"}})
    assert found["rows"] == [{"partition": "dt=2026-11-18", "before": 200, "after": 210, "change": "+5 %"}]
    week = {"measure": "mean", "column": "amount", "against": "week-before"}
    rules = ({**week, "most": "110 %"}, {**week, "most": "109 %"}, {"measure": "count", "most": 0})
    by_week = outcomes(spark, tmp_path, *({"drift": rule} for rule in rules))
    assert by_week == [("skipped", 0), ("failed", 1), ("passed", 0)], "the 19th has no week before"


def big(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    return views["diff"].where("k > 40")


def listed(spark: SparkSession, views: dict[str, DataFrame]) -> list[dict[str, Any]]:
    return [{"suite": "orders", "expectation": "mean between 1 and 2"}] if views["branch"].count() > 30 else []


def test_functions_give_rows_or_what_another_tool_found(spark: SparkSession, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    for name in ("big", "listed"):
        assert outcome(spark, tmp_path, {"function": f"{__name__}:{name}"}) == ("passed", 0)
    put(branch, [(50, "new", "a")])
    [found] = check(spark, tmp_path, {"function": f"{__name__}:big"})
    assert found["outcome"] == "failed" and found["rows"][0]["k"] == 50
    [found] = check(spark, tmp_path, {"function": f"{__name__}:listed"})
    assert found["rows"] == [{"suite": "orders", "expectation": "mean between 1 and 2"}]


def test_a_failed_rule_names_its_rows_and_hides_what_is_masked(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    alter_table(main, [SetOption(key="airflow-paimon.masked-columns", value="v")])
    put(branch, [(3, "secret", "a")])
    rules = [{"name": "no threes", "sql": "SELECT * FROM diff WHERE k = 3"}, {"not_null": "k"}]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(rules))
    request = build_request("check_branch_data", values(tmp_path, branch="fix", rules=str(file)))
    with pytest.raises(
        UnsafeOperationError, match="breaks 1 of 2 rules: 'no threes': 1 row breaks it, such as"
    ) as failed:
        run_spark_operation(spark, request)
    [row] = failed.value.details["rules"][0]["rows"]
    assert (row["k"], row["v"], row["_before"]["v"], row["_change"]) == (3, "***", "***", "changed")
    assert "secret" not in str(failed.value.details) + failed.value.message


def test_the_option_is_checked_when_it_is_set(tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path)
    for text, said in (('[{"not_null": "vv"}]', "did you mean 'v'"), ("[", "is not JSON"), ('{"a": 1}', "a list")):
        with pytest.raises(InvalidInputError, match=said):
            run(tmp_path, "alter_table", change=[f"set airflow-paimon.required-checks={text}"])
    required = [{"name": "v is there", "not_null": "v"}, {"sql": "SELECT * FROM diff WHERE `dt` = 'x'"}]
    run(tmp_path, "alter_table", change=["set airflow-paimon.required-checks=" + json.dumps(required)])
    assert required_rules(main)[0].name == "v is there"
    for change in ("drop column v", "rename column v to w"):
        with pytest.raises(InvalidInputError, match="named by the required check 'v is there'"):
            run(tmp_path, "alter_table", change=[change])
    required[0]["not_null"] = "k"
    option = "set airflow-paimon.required-checks=" + json.dumps(required)
    run(tmp_path, "alter_table", change=[option, "rename column v to w"])
    assert "w" in main.schema().field_names
    with pytest.raises(InvalidInputError, match="named by the required check"):
        run(tmp_path, "alter_table", change=["rename column k to id"])


WRONG = [
    ({}, r"rule 1 needs one of sql, not_null, .*; it has nothing"),
    ({"not_null": "v", "unique": "v"}, "it has not_null and unique"),
    ({"not_nul": "v"}, "it has 'not_nul'"),
    ({"not_null": "vv"}, "has no column 'vv', which rule 'not_null vv' names; did you mean 'v'"),
    ({"not_null": []}, "must be a column or a list of columns"),
    ({"not_null": "v", "severity": "fatal"}, "severity must be one of error, warn, got 'fatal'"),
    ({"not_null": "v", "sevrity": "warn"}, "has no sevrity; there are: not_null, name, severity, rows"),
    ({"sql": "DELETE FROM branch"}, "takes a SELECT that gives the rows that break the rule"),
    ({"sql": "SELECT 1", "rows": "all"}, "rows is of not_null, unique, accepted_values, relationships only"),
    ({"row_limits": {"deleted": "a few"}}, "must be a number from 0 on, or a part such as '5 %', got 'a few'"),
    ({"row_limits": {"removed": 1}}, "has no removed; there are: added, changed, deleted"),
    ({"drift": {"measure": "sum", "most": 1}}, "sum needs a column"),
    ({"accepted_values": {"column": "v", "values": "a"}}, "values must be a list of strings, numbers or booleans"),
    ({"relationships": {"columns": ["v", "k"], "to": "d.t", "fields": "v"}}, "columns has 2 names and fields 1"),
    ({"function": "module"}, "is not of the form module:name"),
]


@pytest.mark.parametrize(("rule", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_a_wrong_rule_is_refused_before_spark_starts(tmp_path: Path, rule: dict[str, Any], said: str) -> None:
    from airflow_paimon.spark.jobs.before_spark import run_before_spark

    main, _ = make_branch(tmp_path)
    (tmp_path / "rules.json").write_text(json.dumps([rule]))
    request = build_request("check_branch_data", values(tmp_path, branch="fix", rules=str(tmp_path / "rules.json")))
    with pytest.raises(InvalidInputError, match=said):
        run_before_spark(request)
    assert not main.store.names(CHECKS.folder)


FAULTS: list[tuple[dict[str, Any], type[PaimonError], str]] = [
    ({"sql": "SELECT nothing FROM branch"}, InvalidInputError, r"Rule .*: \[UNRESOLVED_COLUMN.*nothing"),
    ({"sql": "SELECT 1/0 FROM branch"}, InvalidInputError, "divide"),
    ({"relationships": {"columns": "v", "to": "d.none", "fields": "v"}}, NotFoundError, "d.none"),
    ({"relationships": {"columns": "v", "to": "d.t", "fields": "w"}}, InvalidInputError, "d.t has no column w"),
    ({"drift": {"measure": "min", "column": "v", "most": 0}}, InvalidInputError, "needs a numeric column"),
    ({"drift": {"measure": "count", "most": 0, "against": "week-before"}}, InvalidInputError, "has dates"),
    ({"function": f"{__name__}:nowhere"}, InvalidInputError, "nowhere"),
    ({"function": "json:dumps"}, InvalidInputError, "json:dumps"),
]


@pytest.mark.parametrize(("rule", "kind", "said"), FAULTS, ids=[next(iter(rule)) + said for rule, _, said in FAULTS])
def test_a_rule_that_cannot_be_evaluated_is_named(
    spark: SparkSession, tmp_path: Path, rule: dict[str, Any], kind: type[PaimonError], said: str
) -> None:
    _, branch = make_branch(tmp_path)
    put(branch, [(3, "fixed", "a")])
    with pytest.raises(kind, match=said) as failed:
        check(spark, tmp_path, {"name": "this one", **rule})
    assert re.search("this one", failed.value.message)


def test_rules_of_the_table_reach_nothing_but_tables(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    put(branch, [(3, "fixed", "a")])
    reaching = {"name": "reaches", "sql": "SELECT * FROM text.`/etc/hostname`"}
    assert outcome(spark, tmp_path, reaching)[0] == "failed"  # the DAG's own code may
    with pytest.raises(UnsafeOperationError, match=r"Rule 'reaches' reaches beyond.*restricted_sql=False"):
        run_check(spark, tmp_path, [reaching], restricted_sql=True)
    alter_table(main, [SetOption(key="airflow-paimon.required-checks", value=json.dumps([reaching]))])
    with pytest.raises(UnsafeOperationError, match=r"reaches beyond the tables: it has 'text\./etc/host") as own:
        run_check(spark, tmp_path, [])
    assert "Change the option" in own.value.message and "forms" not in own.value.message  # nothing there opens it
    function = [{"name": "calls", "function": f"{__name__}:big"}]
    alter_table(main, [SetOption(key="airflow-paimon.required-checks", value=json.dumps(function))])
    with pytest.raises(UnsafeOperationError, match=f"allow {__name__} in allow_module"):
        run_check(spark, tmp_path, [])
    assert run_check(spark, tmp_path, [], allow_module=[__name__])["rules"][0]["outcome"] == "passed"
