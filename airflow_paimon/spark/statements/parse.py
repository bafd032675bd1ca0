"""Spark's parser says what a statement is; its plan becomes a ``Statement``. There is no grammar of SQL here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.sql_text.tokens import check_nesting
from airflow_paimon.spark.failures import fault_at
from airflow_paimon.spark.jvm import (
    alias_of_parts,
    copied,
    elements_of,
    has_jvm,
    is_catalyst,
    kind_of,
    mapping_of,
    parser,
    scala_sequence,
    sequence_items,
    under_alias,
)
from airflow_paimon.spark.statements.statement_plan import (
    Action,
    Assignment,
    Clause,
    Fragment,
    InsertInto,
    Kind,
    Statement,
    Target,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ACTIONS: dict[str, tuple[Action, bool]] = {
    "UpdateAction": ("update", False),
    "UpdateStarAction": ("update", True),
    "DeleteAction": ("delete", False),
    "InsertAction": ("insert", False),
    "InsertStarAction": ("insert", True),
}
WRITE_PRIVILEGES = "__required_write_privileges__"
"""An option that Spark's parser gives the relation that a statement writes."""
TAKEN = "UPDATE, DELETE FROM, MERGE INTO, INSERT INTO or INSERT OVERWRITE"


def parse_statement(spark: SparkSession, text: str) -> Statement | None:
    """Parse one statement; None if it is anything else than a change of a table's rows, such as a SELECT.

    Raises:
        InvalidInputError: not one statement, by Spark's parser, with its position; or two targets.
        UnsupportedFeatureError: a form of these statements that is not executed here, or a session without a JVM.
    """
    from pyspark.errors import ParseException

    if not has_jvm(spark):
        raise UnsupportedFeatureError("Statements need a Spark session with a JVM; a Spark Connect client has none")
    try:
        plan = parse_plan(spark, text)
    except ParseException as error:
        raise InvalidInputError(f"Spark can't parse the statement: {fault_at(str(error))}") from None
    ctes: tuple[tuple[str, Fragment], ...] = ()
    if kind_of(plan) == "UnresolvedWith" and kind_of(plan.child()) in _PARSERS:
        if says(plan, "allowRecursion"):
            raise UnsupportedFeatureError("WITH RECURSIVE before a statement is not executed; put it into a subquery")
        ctes = tuple((str(r._1()), Fragment(node=r._2().child())) for r in sequence_items(plan.cteRelations()))
        plan = plan.child()
    parse = _PARSERS.get(kind_of(plan))
    if parse is None:
        # FROM s INSERT INTO a ... INSERT INTO b ..., and scripts, parse as one plan
        if any(kind_of(c) in _PARSERS for c in sequence_items(plan.children())):
            raise InvalidInputError("The statement has more than one target; give one statement for each table")
        if kind_of(plan) == "CompoundBody":
            raise InvalidInputError(f"A script (BEGIN ... END) is not executed; give one {TAKEN}")
        return None
    return parse(plan, text, ctes)


def parse_plan(spark: SparkSession, text: str) -> Any:
    """Return what Spark's parser makes of a text.

    Raises:
        ParseException: it is not SQL. InvalidInputError: it is nested too deeply.
    """
    check_nesting(text)
    return parser(spark).parsePlan(text)


def is_command_plan(plan: Any) -> bool:
    """Whether a parsed plan is that of a command."""
    return any(is_catalyst(plan, f"plans.logical.{kind}") for kind in ("Command", "ParsedStatement"))


def with_target(plan: Any, name: Sequence[str]) -> Any:
    """Return a statement's plan with another target, whose columns are qualified as before."""
    if kind_of(plan) == "UnresolvedWith":
        return plan.withNewChildren(scala_sequence([with_target(plan.child(), name)]))
    target, *others = elements_of(plan)
    is_named = kind_of(target) == "SubqueryAlias"
    relation = target.child() if is_named else target
    _, *options = elements_of(relation)
    known = sequence_items(relation.multipartIdentifier())
    other = copied(relation, [scala_sequence(name), *options])
    if kind_of(plan) != "InsertIntoStatement":
        other = under_alias(other, target.identifier() if is_named else alias_of_parts(list(map(str, known))))
    return copied(plan, [other, *others])


def says(plan: Any, name: str) -> Any:
    """Return a part of a plan, such as a flag; None in a Spark that doesn't have it."""
    from py4j.protocol import Py4JError

    try:
        return getattr(plan, name)()
    except Py4JError:
        return None


def _update(plan: Any, text: str, ctes: Any) -> Statement:
    clause = Clause(action="update", assignments=_assignments(plan.assignments()))
    condition = _where(plan.condition().get()) if plan.condition().isDefined() else None
    return Statement(
        kind="UPDATE", text=text, target=_target(plan.table()), condition=condition, matched=(clause,), ctes=ctes
    )


def _delete(plan: Any, text: str, ctes: Any) -> Statement:
    condition = _where(plan.condition())
    clause = Clause(action="delete")
    return Statement(
        kind="DELETE", text=text, target=_target(plan.table()), condition=condition, matched=(clause,), ctes=ctes
    )


def _merge(plan: Any, text: str, ctes: Any) -> Statement:
    if says(plan, "withSchemaEvolution"):
        raise UnsupportedFeatureError("MERGE WITH SCHEMA EVOLUTION is not executed; add the columns first")
    return Statement(
        kind="MERGE",
        text=text,
        target=_target(plan.targetTable()),
        condition=fragment_of(plan.mergeCondition()),
        source=fragment_of(plan.sourceTable()),
        matched=_clauses(plan.matchedActions()),
        not_matched=_clauses(plan.notMatchedActions()),
        not_matched_by_source=_clauses(plan.notMatchedBySourceActions()),
        ctes=ctes,
    )


def _insert(plan: Any, text: str, ctes: Any) -> Statement:
    if plan.ifPartitionNotExists():
        raise UnsupportedFeatureError("INSERT ... IF NOT EXISTS is not executed")
    if says(plan, "withSchemaEvolution"):
        raise UnsupportedFeatureError("INSERT WITH SCHEMA EVOLUTION is not executed; add the columns first")
    criteria = says(plan, "replaceCriteriaOpt")  # USING, ON and, since Spark 4.3, WHERE
    if criteria is not None and criteria.isDefined():
        _replace(plan)
    kind: Kind = "INSERT OVERWRITE" if plan.overwrite() else "INSERT"
    partition = mapping_of(plan.partitionSpec())  # each value as text in an option, NULL as null inside of it
    insert = InsertInto(
        columns=tuple(str(c) for c in sequence_items(plan.userSpecifiedCols())),
        partition=tuple(partition),
        static={n: None if v.get() is None else str(v.get()) for n, v in partition.items() if v.isDefined()},
        by_name=bool(plan.byName()),
    )
    source = fragment_of(plan.query())
    return Statement(kind=kind, text=text, target=_target(plan.table()), source=source, insert=insert, ctes=ctes)


def _replace(*_: Any) -> Statement:
    raise UnsupportedFeatureError(f"INSERT INTO ... REPLACE is not executed; give one {TAKEN}")


_PARSERS = {
    "UpdateTable": _update,
    "DeleteFromTable": _delete,
    "MergeIntoTable": _merge,
    "InsertIntoStatement": _insert,
    "OverwriteByExpression": _replace,
}


def _clauses(actions: Any) -> tuple[Clause, ...]:
    out = []
    for node in sequence_items(actions):
        action, star = _ACTIONS[kind_of(node)]
        condition = fragment_of(node.condition().get()) if node.condition().isDefined() else None
        assignments = () if star or action == "delete" else _assignments(node.assignments())
        out.append(Clause(action=action, condition=condition, assignments=assignments, star=star))
    return tuple(out)


def _assignments(nodes: Any) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(
            key=tuple(str(p) for p in sequence_items(n.key().nameParts())),
            value=fragment_of(n.value()),
        )
        for n in sequence_items(nodes)
    )


def _target(plan: Any) -> Target:
    alias, relation = None, plan
    if kind_of(plan) == "SubqueryAlias":
        alias, relation = str(plan.identifier().name()), plan.child()
    if kind_of(relation) != "UnresolvedRelation":
        raise UnsupportedFeatureError("The target of a statement must be the name of a table")
    options = relation.options()
    if options.size() > int(options.containsKey(WRITE_PRIVILEGES)):
        raise InvalidInputError(
            "WITH (...) after the target has no meaning here: name a branch as db.`t$branch_b`, and set options of a "
            "table with ALTER TABLE"
        )
    parts = tuple(str(p) for p in sequence_items(relation.multipartIdentifier()))
    at = fragment_of(relation)
    own = at.text.replace("`", "").replace(" ", "") == ".".join(parts)
    # Spark may give the position of the whole statement
    return Target(name=parts, alias=alias, at=at if own else Fragment())


def _where(node: Any) -> Fragment | None:
    """Return a condition; None for TRUE, which Spark puts where a DELETE has no WHERE."""
    return None if kind_of(node) == "Literal" and node.value() is True else fragment_of(node)


def fragment_of(node: Any) -> Fragment:
    """Return a node with its text and position in the statement."""
    origin = node.origin()
    start, stop, text = origin.startIndex(), origin.stopIndex(), origin.sqlText()
    if not (start.isDefined() and stop.isDefined() and text.isDefined()):
        return Fragment(node=node)
    line = origin.line().get() if origin.line().isDefined() else 0
    column = origin.startPosition().get() + 1 if origin.startPosition().isDefined() else 0
    return Fragment(text=str(text.get())[start.get() : stop.get() + 1], line=line, column=column, node=node)
