"""Rules in plain Python against the same rules in Spark."""

from __future__ import annotations

import json
import random
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.plain import Here
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.randomness import chance
from tests.spark.jobs.checks import check
from tests.spark.jobs.operations import run, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (("k", "INT NOT NULL"), ("s", "STRING"), ("p", "DECIMAL(6, 2)"), ("d", "DATE"), ("f", "BOOLEAN"),
           ("x", "DOUBLE"), ("dt", "STRING NOT NULL"))  # fmt: skip
KINDS = ({"bucket": "2"}, {"bucket": "-1"})


def some_rules(own: random.Random) -> list[dict[str, Any]]:
    columns = [["k"], ["s"], ["p", "d"], ["k", "dt"], ["dt", "s", "f"], ["x"]]
    found: list[dict[str, Any]] = [{kind: one, "rows": rows} for one in columns for kind in ("not_null", "unique")
             for rows in ("all", "changed")]  # fmt: skip
    accepted = [("s", ["a", "b", ""]), ("k", list(range(99))), ("k", [1, 2]),
                ("f", [True]), ("f", [True, False]), ("k", ["1"]), ("x", [0.5])]  # fmt: skip
    found += [{"accepted_values": {"column": c, "values": v}, "rows": rows} for c, v in accepted
              for rows in ("all", "changed")]  # fmt: skip
    chosen = [*own.sample(found, 9), {"row_limits": {"deleted": 0}}, {"row_limits": {"added": 100}}]
    return [{"name": f"rule {number}", **one} for number, one in enumerate(chosen)]


@pytest.mark.parametrize("options", KINDS, ids=["keyed", "append"])
def test_what_is_said_here_spark_says_too(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    own = chance(f"plain rules {options}")
    keys = ["dt", "k"] if options["bucket"] == "2" else []
    main = create_table(str(tmp_path), "d.t", COLUMNS, partition_keys=["dt"], primary_keys=keys, options=options)

    def some(numbers: range, nulls: float) -> pa.Table:
        def maybe(value: Any) -> Any:
            return None if own.random() < nulls else value

        rows = [{"k": k, "s": maybe(own.choice("ab")), "p": maybe(Decimal(k) / 4), "d": maybe(date(2026, 1, 1 + k)),
                 "f": maybe(own.random() < 0.5), "x": maybe(own.choice([0.5, -0.0, float("nan")])),
                 "dt": own.choice("pq")} for k in numbers]  # fmt: skip
        return pa.Table.from_pylist(rows).cast(read_arrow(main).schema)

    write_arrow(main, some(range(12), 0.3))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    write_arrow(main.branch("fix"), some(range(8, 16), own.choice([0, 0.3])))
    rules = [*some_rules(own), {"name": "kept", "not_null": ["k"]}]
    there = {one["name"]: one for one in check(spark, tmp_path, *rules, sample=0)}
    file, said = tmp_path / "one.json", 0
    for one in rules:
        file.write_text(json.dumps([one]))
        asked = {"branch": "fix", "rules": str(file), "dry_run": True}
        here = run_before_spark(build_request("check_branch_data", values(tmp_path, **asked)))
        if there[one["name"]]["broken"] and "row_limits" not in one:
            assert here is None, one
        elif here is not None:
            said += 1
            [found] = here.details["rules"]
            assert found == there[one["name"]], one
        request = build_request("check_branch_data", values(tmp_path, **asked))
        assert run_before_spark(request, Here(memory_bytes=0)) is None
    assert said
