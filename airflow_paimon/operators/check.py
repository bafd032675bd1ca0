"""Operators that check the rows of a branch before anybody is asked.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.operators._base import keeps_arguments
from airflow_paimon.operators._checks import CheckingOperator
from airflow_paimon.settings import SAMPLE

__all__ = [
    "CheckBranchOperator",
]


class CheckBranchOperator(CheckingOperator):
    """
    Check the rows of a branch against rules.

    A broken rule fails the operation, unless its severity is ``warn``. The results are stored for the branch's newest
    snapshot. A publish of a table with the option ``airflow-paimon.required-checks`` requires them.

    :param branch: Branch to check (templated)
    :param rules: The rules, in addition to the table's: a list of dicts such as ``{'not_null': ['amount']}``, or the
        text of one in YAML or JSON, or, beside the DAG, the name of a file ending in ``.yaml`` or ``.json`` (templated)
    :param against: What the branch is compared with: its base, or main as it is now, which is what a publish with
        ``discard_main`` replaces; a branch that was created empty is always compared with main. With ``version``: base
        is the snapshot after it, main the branch as it is now; ``base`` or ``main`` (templated)
    :param version: Tag or snapshot id of the branch to check instead of its newest snapshot, before rollback_to goes
        back to it: an undo is compared with base, any other rollback with main (templated)
    :param view: Additional input table for rules that are SQL, name=db.table[$branch_b][@VERSION] (templated)
    :param restricted_sql: Refuse SQL, in rules as well, that reaches beyond the tables, as paths of files and calls of
        Java do; left out, this is on for SQL that is a template or comes from a form, unless the Paimon connection's
        ``forms`` say otherwise (templated)
    :param allow_module: Module whose functions rules of the table option may call; in addition to ``functions`` in the
        Paimon connection's ``forms`` (templated)
    :param sample: Sample rows of each rule that is broken (templated)
    :param mask: Column whose values no sample shows, or db.table:column of another table that rules read (* is a
        wildcard), in addition to the table option airflow-paimon.masked-columns; and to the Paimon connection's
        ``masked_columns`` (templated)
    """

    operation = "check_branch_data"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, rules: Sequence[Mapping[str, Any]] | str | None = None,
        against: str = "base", version: str | None = None, view: Sequence[str] | str = (),
        restricted_sql: bool | str | None = None, allow_module: Sequence[str] | str = (), sample: int | str = SAMPLE,
        mask: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
