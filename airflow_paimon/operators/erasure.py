"""Operators about rows that are to be gone for good.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

__all__ = [
    "EraseRowsOperator",
    "FindRowsOperator",
]


class FindRowsOperator(PaimonOperator):
    """
    Find the stored files with rows of a condition, on all branches, and the snapshots and tags that need them.

    Changes nothing. Reads physical rows: also deleted ones, old versions of a key, changelogs, and files that only old
    snapshots or tags, or no snapshots, refer to. ``details["proven"]`` is true when no file contains such a row and
    every file could be checked. Results, logs and XComs contain no value of a row. See :doc:`/howto/erase-rows`.

    :param where: Condition on columns of main, e.g. "user_id = 17": comparisons with literals, [NOT] IN, [NOT] BETWEEN,
        [NOT] LIKE, IS [NOT] NULL, NOT, AND, OR and parentheses (templated)
    :param limit: How many files with such rows to list, those with the most first; 0 for all (templated)
    """

    operation = "find_rows"

    @keeps_arguments
    def __init__(
        self, *, where: str, limit: int | str = 100, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class EraseRowsOperator(PaimonOperator):
    """
    Erase rows of a condition from main, every branch, and old snapshots and tags.

    One commit for each branch. A dry run returns the plan: what will be deleted, what stays, and what refers to it.
    ``details["complete"]`` is true when no stored file contains such a row any more; until then run it again. Refused
    where a tag under a legal hold has such rows. See :doc:`/howto/erase-rows`.

    :param where: Condition on columns of main, e.g. "user_id = 17": comparisons with literals, [NOT] IN, [NOT] BETWEEN,
        [NOT] LIKE, IS [NOT] NULL, NOT, AND, OR and parentheses (templated)
    :param expire_tags: Expire the tags that still reach such rows; else they are listed (templated)
    :param expire_history: Expire the snapshots that still reach such rows; else they are listed (templated)
    :param grace: How long files stay after their snapshot or tag has expired; a run after that deletes them (templated)
    :param writers_stopped: Confirm that no process writes, reads, tags or branches: allows a shorter ``grace``, ``0 s``
        for none (templated)
    :param orphans_older_than: Delete files that nothing refers to once they are older, at least 1 h (templated)
    :param reason: Why, recorded in the snapshots' properties and the audit: name no person (templated)
    :param approved_by: Who approved, recorded in the snapshot's properties (templated)
    :param requested_by: Who asked for it, recorded in the snapshot's properties; by default the user who triggered the
        run (templated)
    :param four_eyes: Refuse unless another person than ``requested_by`` approved (``approved_by``); the Paimon
        connection's ``four_eyes`` and the table's option ask for it, too (templated)
    :param skip_checks: Continue although a check that the table requires is missing or failed; the snapshot's
        properties record it (templated)
    :param limit: How many files with such rows to list, those with the most first; 0 for all (templated)
    """

    operation = "erase_rows"

    @keeps_arguments
    def __init__(
        self, *, where: str, expire_tags: bool | str = False, expire_history: bool | str = False, grace: str = "1 h",
        writers_stopped: bool | str = False, orphans_older_than: str = "1 d", reason: str | None = None,
        approved_by: str | None = None, requested_by: str | None = None, four_eyes: bool | str = False,
        skip_checks: bool | str = False, limit: int | str = 100, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
