"""What SQL may reach when it comes from somebody who may fill in a form, but not run code: tables, and nothing else.

Spark's SQL reads files by path, calls Java methods, runs scripts, writes folders, and replaces ``${env:...}`` in its
text. So the parsed plan may consist of known parts only: what is not known to be harmless is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import open_table, split_version
from airflow_paimon.spark.failures import fault_at
from airflow_paimon.spark.filters import has_jvm
from airflow_paimon.spark.statements.parse import WRITE_PRIVILEGES, kind_of, parse_plan, says, sequence_items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_paimon.core.requests.requests import Request

_PLANS = frozenset({
    "Aggregate", "Deduplicate", "DeleteFromTable", "Distinct", "Except", "Filter", "Generate", "GlobalLimit",
    "InsertIntoStatement", "Intersect", "Join", "LateralJoin", "LocalLimit", "LocalRelation", "MergeIntoTable",
    "Offset", "OneRowRelation", "Pivot", "Project", "RebalancePartitions", "RelationTimeTravel", "Repartition",
    "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Tail", "Union", "Unpivot", "UnresolvedHaving",
    "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases",
    "UnresolvedTVFAliases", "UnresolvedTableValuedFunction", "UnresolvedWith", "UpdateTable", "WithWindowDefinition",
})  # fmt: skip
"""Parts of a parsed plan. Not here, among others: scripts (TRANSFORM), names that are computed, folders, commands."""

_TABLE_FUNCTIONS = frozenset({
    "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "range",
    "stack", "variant_explode", "variant_explode_outer",
})  # fmt: skip
_REFUSED_FUNCTIONS = frozenset({
    "java_method", "reflect", "try_reflect", "input_file_name", "input_file_block_start", "input_file_block_length",
    "from_avro", "from_xml", "schema_of_xml", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf",
})  # fmt: skip
"""Spark's own functions that call Java, read files (descriptors of Protobuf, schemas of XML), or tell about files."""
_SAID = {
    "PipeOperator": "pipe syntax (|>); write it as a SELECT",
    "ScriptTransformation": "a script (TRANSFORM)",
}
"""Parts of a plan that have a name in SQL."""
_COMPUTED = frozenset({"ExpressionWithUnresolvedIdentifier", "PlanWithUnresolvedIdentifier"})

_VALUES = (
    "java.lang.", "java.math.", "java.util.UUID", "org.apache.spark.sql.types.", "org.apache.spark.unsafe.types.",
    "scala.math.Big", "scala.runtime.BoxedUnit", "scala.Enumeration$Val",
    "org.apache.spark.sql.catalyst.expressions.GenericInternalRow",
)  # fmt: skip
"""Classes, by the beginning of their names, in which no plan and no expression can stand."""
REACHES = "reaches"
"""What a refusal's details call what reaches further."""
_CATALYST = "org.apache.spark.sql.catalyst"


def check_reach(spark: SparkSession, request: Request, text: str, views: Collection[str]) -> None:
    """Refuse SQL that reaches beyond the tables of the warehouse and the ``views``.

    Raises:
        UnsafeOperationError: names what reaches further. InvalidInputError: Spark can't parse it.
        UnsupportedFeatureError: the session has no JVM to parse it.
    """
    from pyspark.errors import ParseException

    if "${" in text:  # before anything is parsed, as Spark's parser replaces it
        raise _refusal("${...}, which Spark would replace by variables of the environment and settings")
    if not has_jvm(spark):
        raise UnsupportedFeatureError(
            "Restricted SQL (--restricted-sql, as for SQL from a form) is looked at in the parsed plan, and a Spark "
            'Connect client can\'t parse. Use a connection of type spark, or allow any SQL: "sql": "any" in the extra '
            "forms of the Paimon connection"
        )
    try:
        plan = parse_plan(spark, text)
    except ParseException as error:
        raise InvalidInputError(f"--sql: Spark can't parse it: {fault_at(str(error))}") from None

    def is_table(name: str) -> bool:
        try:
            found = open_table(request.warehouse, split_version(name)[0], storage_options=request.storage_options)
            return found.branch(MAIN).exists()
        except PaimonError:
            return False

    _Reach(spark, views, is_table).check(plan)


class _Reach:
    """Walks through everything that a parsed plan holds."""

    def __init__(self, spark: SparkSession, views: Collection[str], is_table: Callable[[str], bool]) -> None:
        self._gateway: Any = spark.sparkContext._gateway
        jvm: Any = spark._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._builtin: Any = catalyst.analysis.FunctionRegistry.builtin()
        self._identifier: Any = catalyst.FunctionIdentifier
        self._is_table = is_table
        self._views = views
        exact = spark.conf.get("spark.sql.caseSensitive") == "true"
        self._as_compared: Callable[[str], str] = str if exact else str.lower

    def check(self, plan: Any) -> None:
        """Raise for the first part that is not known to be harmless."""
        self._walk(plan, frozenset(map(self._as_compared, self._views)))

    def _check(self, node: Any, names: frozenset[str]) -> None:
        kind = kind_of(node).rstrip("$")
        if kind in _COMPUTED:
            raise _refusal("a name that is computed (IDENTIFIER)")
        if kind == "UnresolvedRelation":
            self._check_relation([str(p) for p in sequence_items(node.multipartIdentifier())], names)
        elif kind == "UnresolvedTableValuedFunction":
            self._check_function([str(p) for p in sequence_items(node.name())], _TABLE_FUNCTIONS)
        elif kind == "UnresolvedFunction":
            self._check_function([str(p) for p in sequence_items(node.nameParts())])
        elif kind == "UnresolvedGenerator":
            self._check_function([str(node.name().unquotedString())])
        elif self._is(node, "plans.logical.LogicalPlan") and kind not in _PLANS:
            raise _refusal(_SAID.get(kind, f"the part {kind} of its plan"))

    def _check_relation(self, parts: list[str], names: frozenset[str]) -> None:
        name = ".".join(parts)
        if not (self._as_compared(name) in names if len(parts) == 1 else len(parts) == 2 and self._is_table(name)):
            raise _refusal(f"{name!r}, which is neither a table of the warehouse nor a view of this operation")

    def _check_function(self, parts: list[str], allowed: Collection[str] | None = None) -> None:
        name = parts[-1].lower()
        known = name in allowed if allowed is not None else self._builtin.functionExists(self._identifier(name))
        if len(parts) > 1 or not known or name in _REFUSED_FUNCTIONS:
            raise _refusal(f"the function {'.'.join(parts)}")

    def _walk(self, element: Any, names: frozenset[str]) -> None:
        """Check each plan and expression in an element of a plan, whatever holds it: a list, a WITH, a map of windows.

        ``names`` are those that stand for views and for queries of a WITH around it. What is neither a known container
        nor a known value is refused: something may stand in it.
        """
        if not hasattr(element, "getClass"):  # a text, a number: what Py4J turns into Python's own
            return
        if self._is(element, "trees.TreeNode"):
            self._check(element, names)
            if kind_of(element) == "UnresolvedWith":
                self._walk(element.child(), self._walk_with(element, names))
                return
        elif self._instance_of(element, "scala.collection.Iterable"):
            items = element.iterator()
            while items.hasNext():
                self._walk(items.next(), names)
            return
        elif not self._instance_of(element, "scala.Product"):
            self._check_value(element)
            return
        for i in range(element.productArity()):
            self._walk(element.productElement(i), names)

    def _walk_with(self, plan: Any, names: frozenset[str]) -> frozenset[str]:
        """Check the queries of a WITH; returns the names after it. Each sees those before it; RECURSIVE: itself."""
        recursive = says(plan, "allowRecursion")
        for one in sequence_items(plan.cteRelations()):
            after = names | {self._as_compared(str(one._1()))}
            self._walk(one._2(), after if recursive else names)
            names = after
        return names

    def _check_value(self, element: Any) -> None:
        name = str(element.getClass().getName())
        known = name.startswith(_VALUES) or self._instance_of(element, "java.lang.Enum")
        if not (known or self._is_without_options(element)):
            raise _refusal(f"a part of an unknown kind, {name}")

    def _is_without_options(self, element: Any) -> bool:
        """Options of a relation are for sources, tables take none; Spark notes there that a statement writes it."""
        return self._instance_of(element, "java.util.Map") and {*element.keySet()} <= {WRITE_PRIVILEGES}

    def _is(self, node: Any, kind: str) -> bool:
        return self._instance_of(node, f"{_CATALYST}.{kind}")

    def _instance_of(self, element: Any, name: str) -> bool:
        from py4j.java_gateway import is_instance_of

        return bool(is_instance_of(self._gateway, element, name))


def _refusal(what: str) -> UnsafeOperationError:
    return UnsafeOperationError(
        f"--sql reaches beyond the tables: it has {what}. That is refused (--restricted-sql) in SQL that comes from a "
        f'form or a template. To allow it to everybody who may trigger, set "sql": "any" in the extra forms of the '
        f"Paimon connection; a DAG's own code may say restricted_sql=False",
        details={REACHES: what},
    )
