"""What operators do that take SQL or a function, besides building their request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_paimon.arguments import is_blank
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import CorrectBranch, PlanCorrection
from airflow_paimon.operators._base import PaimonOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook


class SqlOrFunctionOperator(PaimonOperator):
    """Takes ``sql`` or ``function``, one of the two; both may be templates, of which one renders to None."""

    file_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"sql": (".sql",)}
    template_fields_renderers: ClassVar[dict[str, str]] = {**PaimonOperator.template_fields_renderers, "sql": "sql"}
    branch: str
    sql: str | None
    function: str | None

    def _check_arguments(self, given: Mapping[str, Any]) -> None:
        if self.sql is None and self.function is None:
            raise InvalidInputError(f"{type(self).__name__} takes sql or function, one of the two")
        super()._check_arguments(given)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        self.sql = None if is_blank(self.sql) else self.sql
        self.function = None if is_blank(self.function) else self.function
        if (self.sql is None) == (self.function is None):
            raise InvalidInputError(f"{type(self).__name__} takes sql or function, one of the two")
        return super()._request(hook, context)

    def _texts(self) -> dict[str, str]:
        return {} if self.sql is None else {"sql": self.sql}


class CorrectingOperator(SqlOrFunctionOperator):
    """Corrects a branch: refused where readers of main see that branch, and four eyes are asked for."""

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        request = super()._request(hook, context)
        assert isinstance(request, CorrectBranch)
        if hook.four_eyes and not request.dry_run:
            from airflow_paimon.core.publish.approval import refuse_unapproved  # not for every DAG that is parsed

            refuse_unapproved(hook.get_table(request.table, request.branch), required=True)
        return request


class PlanningOperator(SqlOrFunctionOperator):
    """Plans a correction: nothing of the SQL or the function runs."""

    def _from_outside(self, context: Context) -> frozenset[str]:
        """Take any SQL and any function: they are neither run nor called."""
        return super()._from_outside(context) - {"sql", "function"}

    def _run_here(self, request: Request) -> dict[str, Any]:
        from airflow_paimon.lineage.downstream import with_downstream

        result = super()._run_here(request)
        assert isinstance(request, PlanCorrection)
        correction = {"sql": self.sql, "function": request.function, "mode": request.mode,
                      "partitions": request.partitions, "views": request.view}  # fmt: skip
        details = with_downstream(result["details"], self.paimon_conn_id, result["table"], correction)
        return {**result, "details": details}
