"""Operators about rows that are to be gone for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import mask_secret
from airflow_paimon.core.requests.requests import GRACE
from airflow_paimon.operators._approval import with_requester
from airflow_paimon.operators._base import PaimonOperator, keeps_arguments
from airflow_paimon.shown.listing import size_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["EraseRowsOperator", "FindRowsOperator"]

_LOGGED = 20


class _WithCondition(PaimonOperator):
    """The condition may name a person: Airflow hides its text in logs and in the task's rendered fields."""

    where: str

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Render, and hide."""
        super().render_template_fields(context, jinja_env)
        if isinstance(self.where, str) and self.where.strip():
            mask_secret(self.where)


class FindRowsOperator(_WithCondition):
    """
    Find the stored files that hold rows of a condition, of all branches, and who reaches them; change nothing.

    It reads physical rows: also those behind deletion vectors and deletes, old versions of a key, changelogs, files
    that only old snapshots, tags or nothing refers to any more. ``details["proven"]`` is true when no file holds such a
    row and every file could be told; see :doc:`/howto/erase-rows`. No result, log or XCom holds a value of a row.

    :param where: condition on columns of main, such as ``user_id = 17``: comparisons with literals, ``IN``,
        ``BETWEEN``, ``IS [NOT] NULL``, ``AND``, ``OR`` and parentheses (templated)
    :param limit: files to list, those with the most such rows first; 0 for all (templated)
    """

    operation = "find_rows"

    @keeps_arguments
    def __init__(self, *, where: str, limit: int | str = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        return found_lines(result["details"])


class EraseRowsOperator(_WithCondition):
    """
    Erase rows of a condition from main and every branch, one commit each, and from what old snapshots and tags still
    hold, as far as asked for.

    A dry run is the plan: what ends, what stays, and who holds it. ``details["complete"]`` is true when no stored file
    holds such a row any more; until then a later run goes on. A tag under a legal hold that reaches such rows makes it
    refuse. See :doc:`/howto/erase-rows`.

    :param where: condition on columns of main, such as ``user_id = 17``; see ``FindRowsOperator`` (templated)
    :param limit: files to list, those with the most such rows first; 0 for all (templated)
    :param expire_tags: expire the tags that still reach such rows (templated)
    :param expire_history: expire the snapshots that still reach such rows (templated)
    :param grace: how long files stay for readers that began before, at least 10 min (templated)
    :param writers_stopped: nobody writes, reads or tags: allows a shorter ``grace`` (templated)
    :param orphans_older_than: delete files that nothing refers to once they are older, at least 1 h (templated)
    :param reason: why, kept in the snapshots' properties and the audit: a ticket's number, no person (templated)
    :param approved_by: kept in the snapshots' properties (templated)
    :param requested_by: kept in the snapshots' properties; whoever triggered the run, where Airflow knows (templated)
    :param four_eyes: refuse unless ``approved_by`` is somebody other than who asked for it; the Paimon connection's
        ``four_eyes`` and the table's option ask for it too (templated)
    :param skip_checks: erase although the table requires checks, which can't look at what will be left; the snapshots
        say so (templated)
    """

    operation = "erase_rows"

    @keeps_arguments
    def __init__(
        self,
        *,
        where: str,
        limit: int | str = 100,
        expire_tags: bool | str = False,
        expire_history: bool | str = False,
        grace: str = GRACE,
        writers_stopped: bool | str = False,
        orphans_older_than: str = "1 d",
        reason: str | None = None,
        approved_by: str | None = None,
        requested_by: str | None = None,
        four_eyes: bool | str = False,
        skip_checks: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        return with_requester(super()._request(hook, context), hook, context)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        lines = [
            f"branch {e['branch']}: {e['rows']:,} rows erased from {e['files']:,} files by snapshot {e['snapshot']}"
            for e in found.get("erased", ())
        ]
        done = "No stored file holds such a row" if found["complete"] else "Not complete: see what still holds files"
        return [*lines, *found_lines(found), done]


def found_lines(found: Mapping[str, Any]) -> list[str]:
    """Say in a log what was found."""
    files = found["files"]
    lines = [
        f"{files['with_rows']:,} of {files['held']:,} files hold {found['rows']:,} such rows "
        f"({size_text(files['with_rows_bytes'])}); read: {files['read']:,} files, the others by their statistics"
    ]
    lines += [f"branch {b['branch']}: {b['files']:,} files with {b['rows']:,} rows" for b in found["branches"]]
    lines += [
        f"{h['kind']} {h['name'] or ''} of {h['branch']} keeps {h['files']:,} files: {h['way']}"
        for h in found["holders"][:_LOGGED]
    ]
    return lines + [f"not read: {one['path']}: {one['reason']}" for one in found["unchecked"][:_LOGGED]]
