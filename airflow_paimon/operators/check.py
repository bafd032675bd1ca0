"""The operator that checks the rows of a branch before anybody is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_paimon.argument_origin import from_outside
from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.operators._base import PaimonOperator, keeps_arguments
from airflow_paimon.rule_text import rules_as_json, what_runs
from airflow_paimon.settings import SAMPLE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["CheckBranchOperator"]


class CheckBranchOperator(PaimonOperator):
    """
    Check the rows of a branch against rules; a broken one fails the task, unless its severity is ``warn``.

    The results are kept for the branch's newest snapshot; a publish of a table with the option
    ``airflow-paimon.required-checks`` asks for those. Without any rule nothing is submitted.

    :param branch: the branch to check (templated)
    :param against: ``base``, or ``main``: what the branch is compared with. A publish with ``discard_main`` replaces
        main as it is now, and takes only checks in comparison with that (templated)
    :param version: check this tag or snapshot of the branch instead, to which a ``RollbackOperator`` will go back: with
        ``against="base"`` in comparison with the snapshot after it, as an undo needs it, with ``"main"`` in comparison
        with the newest (templated)
    :param rules: the rules, besides those of the table: a list of dicts such as ``{"not_null": ["amount"]}``, or the
        text of one in YAML or JSON, or a file ending in ``.yaml`` or ``.json`` beside the DAG (templated)
    :param view: further views for rules that are SQL, as ``["name=db.table"]``, ``["name=db.table$branch_b@version"]``
        (templated)
    :param restricted_sql: refuse rules that reach beyond the tables, as paths of files and calls of Java do; left out,
        this is on for rules that are a template or come from a form, unless the Paimon connection's ``forms`` say
        otherwise (templated)
    :param allow_module: modules whose functions the table's own rules may call, besides the ``functions`` in the
        Paimon connection's ``forms`` (templated)
    :param sample: sample rows of each broken rule (templated)
    :param mask: columns whose values no sample shows, or ``db.table:column`` of another table that rules read, besides
        those of the table option ``airflow-paimon.masked-columns`` and of the Paimon connection's ``masked_columns``
        (templated)
    """

    operation = "check_branch_data"
    file_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"rules": (".yaml", ".yml", ".json")}
    template_fields_renderers: ClassVar[dict[str, str]] = {**PaimonOperator.template_fields_renderers, "rules": "yaml"}

    rules: Any
    restricted_sql: Any

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str | None = None,
        rules: Sequence[Mapping[str, Any]] | str | None = None,
        against: str = "base",
        version: str | None = None,
        view: Sequence[str] | str = (),
        restricted_sql: bool | str | None = None,
        allow_module: Sequence[str] | str = (),
        sample: int | str = SAMPLE,
        mask: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        self.rules = rules_as_json(self.rules, f"{self.table}: rules")
        return super()._request(hook, context)

    def _as_allowed(self, hook: PaimonHook, context: Context) -> Request:
        request, policy = super()._as_allowed(hook, context), hook.form_policy
        assert isinstance(request, CheckBranchData)
        outside = from_outside(self, {"rules", "restricted_sql", "allow_module"}, context, throughout=True)
        asked = what_runs(self.rules) if "rules" in outside else []
        asked += [{"function": f"{module}:any"} for module in request.allow_module if "allow_module" in outside]
        for one in asked:
            policy.check(one)
        decided = self.restricted_sql is not None and "restricted_sql" not in outside
        return replace(
            request,
            restricted_sql=request.restricted_sql or ("rules" in outside and not policy.any_sql and not decided),
            allow_module=(*request.allow_module, *policy.functions),
            mask=(*request.mask, *hook.masks),
        )

    def _submit(self, hook: PaimonHook, request: Request, context: Context) -> dict[str, Any]:
        from airflow_paimon.core.checks.required import nothing_required

        found = nothing_required(request) if self.rules is None else None
        return found.to_json() if found is not None else super()._submit(hook, request, context)

    def _texts(self) -> dict[str, str]:
        return {} if self.rules is None else {"rules": str(self.rules)}

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        return [f"{rule['name']}: {rule['outcome']}, {rule['said']}" for rule in result["details"]["rules"]]
