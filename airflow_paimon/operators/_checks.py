"""What the operator does that checks the rows of a branch, besides building its request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.forms.origin import from_outside
from airflow_paimon.forms.rules import rules_as_json, what_runs
from airflow_paimon.operators._base import PaimonOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook


class CheckingOperator(PaimonOperator):
    """Takes rules as values, as texts or from a file; those of a form only as far as the connection allows them."""

    file_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"rules": (".yaml", ".yml", ".json")}
    template_fields_renderers: ClassVar[dict[str, str]] = {**PaimonOperator.template_fields_renderers, "rules": "yaml"}
    rules: Any
    restricted_sql: Any

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        self.rules = rules_as_json(self.rules, f"{self.table}: rules")
        return super()._request(hook, context)

    def _restricted_request(self, hook: PaimonHook, context: Context) -> Request:
        request, policy = super()._restricted_request(hook, context), hook.form_policy
        assert isinstance(request, CheckBranchData)
        outside = from_outside(self, {"rules", "restricted_sql", "allow_module"}, context, throughout=True)
        code = what_runs(self.rules) if "rules" in outside else []
        code += [{"function": f"{module}:any"} for module in request.allow_module if "allow_module" in outside]
        for one in code:
            policy.check(one)
        decided = self.restricted_sql is not None and "restricted_sql" not in outside
        return replace(
            request,
            restricted_sql=request.restricted_sql or ("rules" in outside and not policy.any_sql and not decided),
            allow_module=(*request.allow_module, *policy.functions),
        )

    def _submit(self, hook: PaimonHook, request: Request, context: Context) -> dict[str, Any]:
        from airflow_paimon.core.rules.required import nothing_required

        found = nothing_required(request) if self.rules is None else None
        return found.to_json() if found is not None else super()._submit(hook, request, context)

    def _texts(self) -> dict[str, str]:
        return {} if self.rules is None else {"rules": str(self.rules)}
