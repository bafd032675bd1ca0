"""``correct_branch`` and ``check_branch_data`` as functions: SQL and functions of the user, which only Spark runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from airflow_paimon.notebook.operation import CommonArguments, Result, perform

if TYPE_CHECKING:
    from airflow_paimon.core.requests.context import OperationResult
    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.core.table.table import Table

__all__ = ["check_branch_data", "correct_branch"]


def correct_branch(
    table: str | Table,
    branch: str | None = None,
    *,
    sql: str | None = None,
    function: str | None = None,
    view: Iterable[str] = (),
    all_rows: bool = False,
    mode: Literal["overwrite", "upsert"] = "overwrite",
    partitions: Iterable[str] = (),
    restricted_sql: bool = False,
    spark: Any = None,
    **common: Unpack[CommonArguments],
) -> Result:
    """Run statements on a branch, or write the rows of a query or a function into it.

    What plain Python can do needs no session; otherwise ``spark`` is used, or the process's own session. The other
    arguments are those of the job (``python -m airflow_paimon job correct_branch --help``).

    Example:
        >>> correct_branch(orders, "fix", sql="UPDATE branch SET amount = 1 WHERE id = 1").details["rows_updated"]
        1
    """
    given = dict(locals())
    return perform("correct_branch", given, partial(_run, given.pop("spark")))


def check_branch_data(
    table: str | Table,
    branch: str | None = None,
    *,
    rules: Sequence[Mapping[str, Any]] | str | None = None,
    against: Literal["base", "main"] = "base",
    view: Iterable[str] = (),
    restricted_sql: bool = False,
    allow_module: Iterable[str] = (),
    sample: int = 5,
    mask: Iterable[str] = (),
    spark: Any = None,
    **common: Unpack[CommonArguments],
) -> Result:
    """Check the rows of a branch against ``rules``: a list of them, or the path of a JSON file.

    What plain Python can do needs no session; otherwise ``spark`` is used, or the process's own session. The other
    arguments are those of the job (``python -m airflow_paimon job check_branch_data --help``).

    Example:
        >>> check_branch_data(orders, "fix", rules=[{"not_null": ["amount"]}]).details["rules"][0]["outcome"]
        'passed'
    """
    given = dict(locals())
    run = partial(_run, given.pop("spark"))
    if rules is None or isinstance(rules, str):
        return perform("check_branch_data", given, run)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.json"
        file.write_text(json.dumps(list(rules), default=str), encoding="utf-8")
        return perform("check_branch_data", {**given, "rules": str(file)}, run)


def _run(spark: Any, request: Request, processes: int) -> OperationResult:
    from airflow_paimon.spark.jobs.before_spark import run_in_session

    return run_in_session(request, spark)
