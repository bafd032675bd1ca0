"""Restricted SQL, looked at once more when Spark has resolved it, and before anything of it is evaluated.

``restricted_sql.py`` looks at what the text says, this module at what Spark made of it: every relation is one that we
bound, no code is called but Spark's own, and no type brings code or expressions along.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.spark.jvm import analyzed, builtin_classes, is_catalyst, kind_of, sequence_items
from airflow_paimon.spark.statements.sql_functions import REFUSED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BOUND = f"__airflow_paimon_{secrets.token_hex(16)}"
"""The alias of what we bound, or looked at before; nobody who writes SQL can know it."""
REACHES = "reaches"
"""What a refusal's details call what reaches further."""

_PLANS = frozenset({
    "Aggregate", "CTERelationDef", "CTERelationRef", "Deduplicate", "Distinct", "Except", "Expand", "Filter",
    "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset",
    "OneRowRelation", "Project", "Range", "RebalancePartitions", "Repartition", "RepartitionByExpression",
    "ResolvedHint", "Sample", "Sort", "SubqueryAlias", "Tail", "Union", "UnionLoop", "UnionLoopRef", "Window",
    "WithCTE",
})  # fmt: skip
"""Parts of an analysed plan. Not here: relations of Spark's catalogs, files, Python's and Java's functions."""
_UNTYPED = frozenset({
    "Alias", "AttributeReference", "CurrentRow$", "LateralSubquery", "ListQuery", "NamedLambdaVariable",
    "OuterReference", "SortOrder", "SpecifiedWindowFrame", "UnboundedFollowing$", "UnboundedPreceding$",
    "UnspecifiedFrame$", "WindowSpecDefinition",
})  # fmt: skip
"""Expressions that have no type, or one of another expression."""
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_METADATA = frozenset({"comment", "__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS"})
"""What a field of a type may say besides its name and type. Not here: default values, which are expressions."""


def bound(frame: DataFrame) -> DataFrame:
    """Mark a DataFrame as one of ours, so that restricted SQL may read it."""
    return frame.alias(BOUND)


def check_analysed(frame: DataFrame) -> None:
    """Refuse a DataFrame of restricted SQL whose plan has anything but bound relations and Spark's own functions.

    Raises:
        UnsafeOperationError: names it.
    """
    _Analysed().check(analyzed(frame))


class _Analysed:
    def __init__(self) -> None:
        self._refused = builtin_classes(REFUSED)
        self._known: set[str] = set()

    def check(self, plan: Any) -> None:
        kind = kind_of(plan)
        if _is_bound(plan) or (kind == "View" and _is_bound(plan.child())):
            return
        if kind.rstrip("$") not in _PLANS:
            raise refusal(f"{kind.rstrip('$')} in its plan, which was not bound to a table")
        if kind == "LocalRelation":
            check_type(str(plan.schema().json()))
        for expression in sequence_items(plan.expressions()):
            self._expression(expression)
        for child in sequence_items(plan.children()):
            self.check(child)

    def _expression(self, expression: Any) -> None:
        name = str(expression.getClass().getName())
        kind = name.rpartition(".")[2]
        if name not in self._known:
            is_users = is_catalyst(expression, "expressions.UserDefinedExpression")
            if is_users or not name.startswith(_EXPRESSIONS) or name in self._refused:
                raise refusal(f"{kind} in its plan, which is not in the list of allowed functions")
            self._known.add(name)
        if kind not in _UNTYPED:
            check_type(str(expression.dataType().json()))
        if is_catalyst(expression, "expressions.PlanExpression"):
            self.check(expression.plan())
        for child in sequence_items(expression.children()):
            self._expression(child)


def _is_bound(plan: Any) -> bool:
    return kind_of(plan) == "SubqueryAlias" and str(plan.identifier().name()) == BOUND


def check_type(text: str) -> None:
    """Refuse a type, as Spark's JSON, that is a class of a user or brings expressions along.

    Raises:
        UnsafeOperationError: it is.
    """
    if '"' not in text.strip('"'):  # most are a plain name
        return
    _check_type(json.loads(text))


def _check_type(found: Any) -> None:
    if isinstance(found, str):
        return
    kind = found.get("type")
    if kind == "struct":
        for field in found["fields"]:
            if set(field.get("metadata") or {}) - _METADATA:
                raise refusal(f"a type whose field {field['name']!r} has metadata")
            _check_type(field["type"])
    elif kind == "array":
        _check_type(found["elementType"])
    elif kind == "map":
        _check_type(found["keyType"])
        _check_type(found["valueType"])
    else:
        raise refusal(f"a type of the kind {kind}")


def refusal(what: str) -> UnsafeOperationError:
    return UnsafeOperationError(
        f"sql (--sql) reaches beyond the tables: it has {what}, which restricted_sql (--restricted-sql) refuses. To "
        'allow it to all who may trigger, set "sql": "any" in the extra forms; own code may set restricted_sql=False',
        details={REACHES: what},
    )
