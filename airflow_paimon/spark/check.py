"""``check_branch``: rules that the rows of a branch have to keep, from a program or a notebook."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.rules.rules import parse_rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPERATION = "check_branch_data"


def check_branch(
    spark: SparkSession,
    warehouse: str,
    table: str,
    branch: str,
    rules: Sequence[Mapping[str, Any]] = (),
    *,
    against: str = "base",
    views: Mapping[str, str] | None = None,
    allow_modules: Sequence[str] = (),
    sample: int = 5,
    mask: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate rules, and those that the table requires, on the newest snapshot of a branch.

    Returns the operation's result (docs/contributing/design.md, One result); ``details["rules"]`` has what each rule
    said, with the first rows that break it. The results are kept for that snapshot, and the publish asks for those of
    required rules.

    Args:
        rules: Objects with one kind of rule each, such as ``{"not_null": ["amount"]}``.
        against: ``base``, or ``main`` as it is now.
        views: Further tables by the name that rules give them: ``db.t``, ``db.t$branch_b`` or either with ``@VERSION``.
        allow_modules: Modules whose functions the table's own rules may call.
        sample: How many rows of each broken rule to return.
        mask: Columns whose values no sample shows, besides those that the table's option names.

    Raises:
        UnsafeOperationError: a rule of severity ``error`` is broken; ``error.details["rules"]`` has what all rules
            said. Or rows of the branch wait for a compaction. InvalidInputError: a rule is wrong. NotFoundError: no
            such table or branch.
    """
    from airflow_paimon.spark.jobs import run_spark_operation

    given = [dict(rule) if isinstance(rule, Mapping) else rule for rule in rules]
    parse_rules(given, f"{table}: rules")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rules.json"
        file.write_text(json.dumps(given, default=str), encoding="utf-8")
        values = {
            "warehouse": warehouse,
            "table": table,
            "branch": branch,
            "rules": str(file),
            "against": against,
            "view": [f"{name}={text}" for name, text in (views or {}).items()],
            "allow_module": list(allow_modules),
            "sample": sample,
            "mask": list(mask),
            "storage_options": storage_options,
        }
        return run_spark_operation(spark, build_request(OPERATION, values)).to_json()
