"""What SQL may reach when it comes from somebody who may fill in a form, but not run code: tables, and nothing else.

Spark's SQL reads files by path, calls Java methods, runs scripts, writes folders, and replaces ``${env:...}`` in its
text. So the parsed plan may consist of known parts only: what is not known to be harmless is refused. What Spark makes
of it is looked at once more (``analysed.py``); this look comes first, as Spark evaluates constants when it resolves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.table.table import open_table
from airflow_paimon.spark.failures import fault_at
from airflow_paimon.spark.jvm import elements_of, has_jvm, is_catalyst, is_instance, kind_of, parser, sequence_items
from airflow_paimon.spark.statements.analysed import check_type, refusal
from airflow_paimon.spark.statements.parse import WRITE_PRIVILEGES, parse_plan, says
from airflow_paimon.spark.statements.sql_functions import (
    ALLOWED,
    ALLOWED_FOR_TABLES,
    OPTION_ARGUMENTS,
    OPTIONS,
    REFUSED,
    TYPE_ARGUMENTS,
)
from airflow_paimon.spark.statements.tables import Find, find_table, table_text

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

_EXPRESSIONS = frozenset({
    "Add", "AggregateExpression", "Alias", "And", "AnyValue", "Ascending", "Assignment", "AttributeReference",
    "Between", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CaseWhen", "Cast", "Coalesce", "Collate",
    "Concat", "CreateNamedStruct", "Cube", "CurrentDate", "CurrentRow", "CurrentTime", "CurrentTimestamp",
    "CurrentUser", "DeleteAction", "Descending", "Divide", "EqualNullSafe", "EqualTo", "Exists", "First",
    "GreaterThan", "GreaterThanOrEqual", "GroupingSets", "Hex", "ILike", "In", "InSubquery", "InsertAction",
    "InsertStarAction", "IntegralDivide", "IsNotNull", "IsNull", "LambdaFunction", "Last", "LateralSubquery",
    "LessThan", "LessThanOrEqual", "Like", "LikeAll", "LikeAny", "ListQuery", "Literal", "Lower", "MultiAlias",
    "Multiply", "NamedArgumentExpression", "Not", "NotLikeAll", "NotLikeAny", "NullsFirst", "NullsLast", "Or",
    "Overlay", "PercentileCont", "PercentileDisc", "RLike", "Remainder", "Rollup", "ScalarSubquery",
    "SemiStructuredExtract", "ShiftLeft", "ShiftRight", "ShiftRightUnsigned", "SortOrder", "SpecifiedWindowFrame",
    "StringLocate", "StringTrim", "StringTrimLeft", "StringTrimRight", "Substring", "Subtract", "TimestampAdd",
    "TimestampDiff", "UnaryMinus", "UnaryPositive", "UnboundedFollowing", "UnboundedPreceding", "UnresolvedAlias",
    "UnresolvedAttribute", "UnresolvedCollation", "UnresolvedExtractValue", "UnresolvedFunction",
    "UnresolvedGenerator", "UnresolvedNamedLambdaVariable", "UnresolvedOrdinal", "UnresolvedRegex",
    "UnresolvedStar", "UnresolvedStarExceptOrReplace", "UnresolvedWindowExpression", "UnspecifiedFrame",
    "UpdateAction", "UpdateStarAction", "WindowExpression", "WindowSpecDefinition", "WindowSpecReference",
})  # fmt: skip
"""What Spark's parser makes of SQL inside of those parts. Functions are named, and looked up in ``sql_functions``."""
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


def check_restricted_sql(spark: SparkSession, request: Request, text: str, views: Collection[str]) -> None:
    """Refuse SQL that reaches beyond the tables of the warehouse and the ``views``.

    Raises:
        UnsafeOperationError: names what reaches further. InvalidInputError: Spark can't parse it.
        UnsupportedFeatureError: the session has no JVM to parse it.
    """
    from pyspark.errors import ParseException

    if "${" in text:  # before anything is parsed, as Spark's parser replaces it
        raise refusal("${...}, which Spark would replace by variables of the environment and settings")
    if not has_jvm(spark):
        raise UnsupportedFeatureError(
            "restricted_sql (--restricted-sql) checks the parsed plan, and a Spark Connect client can't parse. Use a "
            'connection of type spark, or allow any SQL: "sql": "any" in the extra forms of the Paimon connection'
        )
    try:
        plan = parse_plan(spark, text)
    except ParseException as error:
        raise InvalidInputError(f"sql (--sql): Spark can't parse it: {fault_at(str(error))}") from None

    _RestrictedSql(
        spark, views, lambda name: open_table(request.warehouse, name, storage_options=request.storage_options)
    ).check(plan)


class _RestrictedSql:
    """Walks through everything that a parsed plan holds."""

    def __init__(self, spark: SparkSession, views: Collection[str], find: Find) -> None:
        self._parser = parser(spark)
        self._find = find
        self._views = views
        exact = spark.conf.get("spark.sql.caseSensitive") == "true"
        self._as_compared: Callable[[str], str] = str if exact else str.lower

    def check(self, plan: Any) -> None:
        """Raise for the first part that is not known to be harmless."""
        self._walk(plan, frozenset(map(self._as_compared, self._views)))

    def _check(self, node: Any, names: frozenset[str]) -> None:
        kind = kind_of(node).rstrip("$")
        if kind in _COMPUTED:
            raise refusal("a name that is computed (IDENTIFIER)")
        if kind == "UnresolvedRelation":
            self._check_relation([str(p) for p in sequence_items(node.multipartIdentifier())], names)
        elif kind == "UnresolvedTableValuedFunction":
            _check_function([str(p) for p in sequence_items(node.name())], ALLOWED_FOR_TABLES)
        elif kind == "UnresolvedFunction":
            parts = [str(p) for p in sequence_items(node.nameParts())]
            _check_function(parts, ALLOWED)
            self._check_arguments(parts[-1].lower(), sequence_items(node.arguments()))
        elif kind == "UnresolvedGenerator":
            _check_function([str(node.name().unquotedString())], ALLOWED_FOR_TABLES)
        elif kind not in (_PLANS if is_catalyst(node, "plans.logical.LogicalPlan") else _EXPRESSIONS):
            raise refusal(_SAID.get(kind, f"the part {kind} of its plan"))

    def _check_relation(self, parts: list[str], names: frozenset[str]) -> None:
        name = ".".join(parts)
        if len(parts) == 1 and self._as_compared(name) in names:
            return
        try:
            text = table_text(parts)
            if text is not None and find_table(self._find, text) is not None:
                return
        except PaimonError:  # nor can it be bound
            pass
        raise refusal(f"{name!r}, which is neither a table of the warehouse nor a view of this operation")

    def _check_arguments(self, name: str, arguments: Sequence[Any]) -> None:
        """Check arguments in which Spark reads more than a value."""
        named = any(kind_of(a) in ("NamedArgumentExpression", "UnresolvedStar") for a in arguments)
        place = TYPE_ARGUMENTS.get(name)
        if place is not None and (named or not all(map(self._is_type, arguments[place : place + 1]))):
            raise refusal(f"the function {name} with a type that is not written out, such as 'a INT, b ARRAY<STRING>'")
        place = OPTION_ARGUMENTS.get(name)
        if place is not None and (named or len(arguments) > place):
            _check_options(name, arguments[place] if len(arguments) > place and not named else None)

    def _is_type(self, argument: Any) -> bool:
        """Whether an argument is a text that Spark's grammar of types takes: no JSON, which Spark tries after it."""
        from pyspark.errors import ParseException

        text, found = _text_of(argument), False
        if text is None or text.lstrip()[:1] in ("{", '"', "["):
            return False
        for parse in (self._parser.parseDataType, self._parser.parseTableSchema):
            try:
                parsed = parse(text)
            except ParseException:
                continue
            check_type(str(parsed.json()))
            found = True
        return found

    def _walk(self, element: Any, names: frozenset[str]) -> None:
        """Check each plan and expression in an element of a plan, whatever holds it: a list, a WITH, a map of windows.

        ``names`` are those that stand for views and for queries of a WITH around it. What is neither a known container
        nor a known value is refused: something may stand in it.
        """
        if not hasattr(element, "getClass"):  # a text, a number: what Py4J turns into Python's own
            return
        if is_catalyst(element, "trees.TreeNode"):
            self._check(element, names)
            if kind_of(element) == "UnresolvedWith":
                self._walk(element.child(), self._walk_with(element, names))
                return
        elif is_instance(element, "scala.collection.Iterable"):
            items = element.iterator()
            while items.hasNext():
                self._walk(items.next(), names)
            return
        elif not is_instance(element, "scala.Product"):
            self._check_value(element)
            return
        for inner in elements_of(element):
            self._walk(inner, names)

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
        if is_instance(element, "org.apache.spark.sql.types.DataType"):
            check_type(str(element.json()))
        known = name.startswith(_VALUES) or is_instance(element, "java.lang.Enum")
        # options of a relation are for sources, tables take none; Spark notes there that a statement writes it
        no_options = is_instance(element, "java.util.Map") and {*element.keySet()} <= {WRITE_PRIVILEGES}
        if not (known or no_options):
            raise refusal(f"a part of an unknown kind, {name}")


def _check_function(parts: Sequence[str], allowed: Collection[str]) -> None:
    name = parts[-1].lower()
    if len(parts) > 1 or name not in allowed:
        why = f", which {REFUSED[name]}" if len(parts) == 1 and name in REFUSED else ""
        raise refusal(f"the function {'.'.join(parts)}{why}")


def _check_options(name: str, options: Any) -> None:
    """Take ``map('name', 'value', ...)`` of texts, with options that were looked at."""
    is_map = options is not None and kind_of(options) == "UnresolvedFunction"
    if not is_map or [str(p).lower() for p in sequence_items(options.nameParts())] != ["map"]:
        raise refusal(f"the function {name} with options that are not written out as map('name', 'value')")
    texts = [_text_of(argument) for argument in sequence_items(options.arguments())]
    if unknown := [text for text in texts[::2] if text is None or text.lower() not in OPTIONS]:
        raise refusal(f"the function {name} with the option {unknown[0] or 'that is computed'}")


def _text_of(expression: Any) -> str | None:
    """Return a literal text; None for anything else."""
    if kind_of(expression) != "Literal" or not str(expression.dataType().typeName()).startswith("string"):
        return None
    value = expression.value()
    return None if value is None else str(value.toString() if hasattr(value, "toString") else value)
