"""Spark evaluates a statement: the rows of the target that change, with their new values, as one DataFrame.

Conditions and values stay Spark's own expressions: what its parser made of the text is resolved against DataFrames of
the target and the source, so names, types, NULL logic, subqueries and errors (with their position in the statement) are
Spark's. Store assignment is ``TableOutputResolver``'s, which Spark uses for INSERT, UPDATE and MERGE alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.data.row_columns import POSITION_COLUMNS, with_row_columns
from airflow_paimon.spark.failures import fault_of_query, first_line, known_error
from airflow_paimon.spark.filters import condition_predicate
from airflow_paimon.spark.spark_types import spark_schema, spark_type
from airflow_paimon.spark.statements.parse import kind_of, sequence_items
from airflow_paimon.spark.statements.statement_plan import (
    Clause,
    Fragment,
    Statement,
    assigned,
    fixed_columns,
    update_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHANGE = "__airflow_paimon_change"
"""What happens to a row: one of the texts below."""
UPDATED, DELETED, INSERTED = "update", "delete", "insert"
MATCHED = "match"
"""Matched by a MERGE, but left as it is: counts for the rule that a row is matched once."""
MOVED = "move"
"""A MERGE would change the key, partition or bucket of the row."""

_ACTION, _IN_TARGET, _IN_SOURCE = "__airflow_paimon_action", "__airflow_paimon_target", "__airflow_paimon_source"
_POSITION = re.compile(r"== SQL.*\(line (\d+), position (\d+)\) ==")
_BARE_POSITION = re.compile(r"; line (\d+) pos (\d+);?$")
"""How errors of analysis say it, the position counted from 0."""
_JOINS = {(False, False): "inner", (True, False): "right", (False, True): "left", (True, True): "full"}
"""By whether there are clauses for NOT MATCHED, and for NOT MATCHED BY SOURCE; the target is on the left."""


@contextmanager
def statement_errors(statement: Statement, table: str) -> Iterator[None]:
    """Raise what Spark says of the statement as ``InvalidInputError``, in one line, with the position."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        found = known_error(text, table)
        if found is not None:
            raise found from error
        fault = first_line(text) if isinstance(error, AnalysisException) else fault_of_query(error)
        if fault is None:
            raise
        at = _POSITION.search(text)
        where = f" (line {at[1]}, position {at[2]})" if at else ""
        fault = _BARE_POSITION.sub(lambda found: f" (line {found[1]}, position {int(found[2]) + 1})", fault)
        raise InvalidInputError(f"{statement.kind} on {statement.target.text}: {fault}{where}", table=table) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """``rows``: the identity columns, ``CHANGE``, and the columns ``values``. ``predicate`` holds for every row of the
    target that can change; None = unknown."""

    rows: DataFrame
    values: tuple[str, ...]
    predicate: Predicate | None


def carried_columns(statement: Statement, schema: TableSchema, whole_rows: bool) -> tuple[str, ...]:
    """Return the columns that changed rows carry: all of them for inserts, else those that an update changes."""
    if whole_rows or any(c.action == "insert" for c in statement.clauses):
        return schema.field_names
    return update_columns(statement, schema)


class Evaluation:
    """Evaluates one statement on DataFrames of the target: the columns ``identity``, and the table's."""

    def __init__(
        self, spark: SparkSession, statement: Statement, schema: TableSchema, identity: Sequence[str], *, whole: bool
    ) -> None:
        """``identity``: the columns by which changed rows are found again; ``whole``: they carry all columns."""
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._statement = statement
        self._schema = schema
        self._identity = tuple(identity)
        self._whole = whole
        self.values = carried_columns(statement, schema, whole)

    def run(self, target: DataFrame) -> Evaluated:
        """Resolve the statement; nothing is read yet.

        Raises:
            AnalysisException: what Spark says is wrong (see ``statement_errors``).
        """
        return self._merge(target) if self._statement.kind == "MERGE" else self._change(target)

    def empty_target(self) -> DataFrame:
        """Return a target without rows: on it the statement is checked, and its predicate found."""
        fields = [*(POSITION_COLUMNS[n] for n in self._identity), *with_row_columns(self._schema).fields]
        return self._spark.createDataFrame([], spark_schema(fields))

    def source(self) -> DataFrame:
        """Return the source of a MERGE, or the query of an INSERT."""
        source = self._statement.source
        assert source is not None
        return self._frame(source.node)

    def insertable(self, frame: DataFrame, names: Sequence[str], by_name: bool) -> DataFrame:
        """Return rows with the types of these columns of the table, by Spark's rules for INSERT."""
        return self._frame(self._stored(frame, names, by_name))

    def _change(self, target: DataFrame) -> Evaluated:
        """UPDATE and DELETE."""
        from pyspark.sql import functions as sf

        statement, (clause,) = self._statement, self._statement.matched
        named = self._named(target)
        predicate = None
        rows = named
        if statement.condition is not None:
            rows = named.where(self._column(statement.condition.node))
            condition = _analyzed(rows).condition()
            self._refuse_chance(condition, statement.condition)
            predicate = condition_predicate(condition, with_row_columns(self._schema), _ids(_analyzed(named)))
        values = self._clause_values(clause, rows, rows)
        old = self._own(named)
        columns = [values.get(n, old[n]).alias(n) for n in self.values]
        kind = sf.lit(UPDATED if clause.action == "update" else DELETED).alias(CHANGE)
        out = rows.select(*(old[n] for n in self._identity), kind, *columns)
        return Evaluated(rows=out, values=self.values, predicate=predicate)

    def _merge(self, target: DataFrame) -> Evaluated:
        from pyspark.sql import functions as sf

        statement = self._statement
        assert statement.condition is not None
        for fragment in (statement.condition, *(c.condition for c in statement.clauses if c.condition is not None)):
            self._refuse_subquery(fragment)
        named = self._named(target.withColumn(_IN_TARGET, sf.lit(True)))
        source = self._source_of_merge()
        marked = source.withColumn(_IN_SOURCE, sf.lit(True))
        how = _JOINS[bool(statement.not_matched), bool(statement.not_matched_by_source)]
        joined = named.join(marked, self._column(statement.condition.node), how)
        condition = _join_condition(_analyzed(joined))
        self._refuse_chance(condition, statement.condition)
        actions = [(c, joined) for c in statement.matched]
        actions += [(c, source) for c in statement.not_matched]
        actions += [(c, named) for c in statement.not_matched_by_source]
        acted = joined.withColumn(_ACTION, self._action(actions)).where(sf.col(_ACTION).isNotNull())
        own = self._own(named)
        values = [self._clause_values(c, base, source if c.star else base) for c, base in actions]
        columns = [self._merged(name, actions, values, own).alias(name) for name in self.values]
        kind = self._kind(actions, values, own).alias(CHANGE)
        rows = acted.select(*(own[n] for n in self._identity), kind, *columns)
        if not statement.counts_matches and statement.matched:
            rows = self._deleted_once(rows)
        predicate = None
        if not statement.not_matched_by_source:
            predicate = condition_predicate(condition, with_row_columns(self._schema), _ids(_analyzed(named)))
        return Evaluated(rows=rows, values=self.values, predicate=predicate)

    def _deleted_once(self, rows: DataFrame) -> DataFrame:
        """Leave each deleted row once: with a DELETE alone, a row may be matched twice."""
        from pyspark.sql import functions as sf

        by = [*(self._identity or self._schema.primary_keys), CHANGE]
        own = sf.when(sf.col(CHANGE) == INSERTED, sf.monotonically_increasing_id())
        return rows.withColumn(_ACTION, own).dropDuplicates([*by, _ACTION]).drop(_ACTION)

    def _action(self, actions: Sequence[tuple[Clause, DataFrame]]) -> Column:
        """Return the number of the clause that takes a joined row; -1 matched without one, null not concerned."""
        from pyspark.sql import functions as sf

        matched, inserts = len(self._statement.matched), len(self._statement.not_matched)
        numbered = [(i, self._holds(c, base)) for i, (c, base) in enumerate(actions)]
        kept = sf.lit(-1) if self._statement.counts_matches else sf.lit(None).cast("int")
        nothing = sf.lit(None).cast("int")
        whole = sf.col(_IN_TARGET).isNotNull() & sf.col(_IN_SOURCE).isNotNull()
        found = sf.when(whole, _first(numbered[:matched], kept))
        found = found.when(sf.col(_IN_TARGET).isNull(), _first(numbered[matched : matched + inserts], nothing))
        return found.otherwise(_first(numbered[matched + inserts :], nothing))

    def _kind(
        self,
        actions: Sequence[tuple[Clause, DataFrame]],
        values: Sequence[Mapping[str, Column]],
        own: Mapping[str, Column],
    ) -> Column:
        from pyspark.sql import functions as sf

        names = {"update": UPDATED, "delete": DELETED, "insert": INSERTED}
        out = sf.when(sf.col(_ACTION) == -1, sf.lit(MATCHED))
        for i, (clause, _) in enumerate(actions):
            fixed = [n for n in fixed_columns(self._schema) if n in values[i]] if clause.action == "update" else []
            kind = sf.lit(names[clause.action])
            if fixed:
                same = reduce(lambda a, b: a & b, (values[i][n].eqNullSafe(own[n]) for n in fixed))
                kind = sf.when(same, kind).otherwise(sf.lit(MOVED))
            out = out.when(sf.col(_ACTION) == i, kind)
        return out

    def _merged(
        self,
        name: str,
        actions: Sequence[tuple[Clause, DataFrame]],
        values: Sequence[Mapping[str, Column]],
        own: Mapping[str, Column],
    ) -> Column:
        """Return the value of a column in a changed row, by the clause that takes the row."""
        from pyspark.sql import functions as sf

        out: Any = sf.when(sf.lit(False), sf.lit(None).cast(spark_type(self._schema.field(name).type)))
        for i, (clause, _) in enumerate(actions):
            if name in values[i]:
                out = out.when(sf.col(_ACTION) == i, values[i][name])
            elif self._whole or clause.action == "update":
                out = out.when(sf.col(_ACTION) == i, own[name])
        found: Column = out.when(sf.col(_ACTION) == -1, own[name]) if self._whole else out
        return found

    def _clause_values(self, clause: Clause, base: DataFrame, star: DataFrame) -> dict[str, Column]:
        """Return the values that a clause gives to columns, resolved and cast for storing. ``star``: what * reads."""
        from pyspark.sql import functions as sf

        if clause.action == "delete":
            return {}
        names = self._schema.field_names
        if clause.star:
            given: dict[str, Any] = {n: sf.col(_quoted(n)) for n in names}
            return self._resolved(star, given)
        nodes = assigned(self._statement, clause, self._schema)
        given = {n: self._column(nodes[n].node) for n in names if n in nodes}
        if clause.action == "insert":
            given |= {n: self._default(n) for n in names if n not in given}
        return self._resolved(base, given)

    def _default(self, name: str) -> Column:
        from pyspark.sql import functions as sf

        field = self._schema.field(name)
        return sf.lit(field.default_value).cast(spark_type(field.type))

    def _resolved(self, base: DataFrame, given: Mapping[str, Column]) -> dict[str, Column]:
        """Resolve values against a DataFrame and cast them to the table's types."""
        if not given:
            return {}
        names = list(given)
        frame = base.select(*(c.alias(n) for n, c in given.items()))
        self._refuse_beyond_rows(_analyzed(frame))
        collapse = self._jvm.org.apache.spark.sql.catalyst.optimizer.CollapseProject
        plan = collapse.apply(self._stored(frame, names, False), True)
        found = [e.child() if kind_of(e) == "Alias" else e for e in sequence_items(plan.projectList())]
        return dict(zip(names, map(self._column, found), strict=True))

    def _stored(self, frame: DataFrame, names: Sequence[str], by_name: bool) -> Any:
        resolver = self._jvm.org.apache.spark.sql.catalyst.analysis.TableOutputResolver
        fields = [self._schema.field(n) for n in names]
        expected = _analyzed(self._spark.createDataFrame([], spark_schema(fields))).output()
        conf = self._spark._jsparkSession.sessionState().conf()
        return resolver.resolveOutputColumns(
            self._statement.target.text, expected, _analyzed(frame), by_name, conf, False
        )

    def _holds(self, clause: Clause, base: DataFrame) -> Column:
        from pyspark.sql import functions as sf

        if clause.condition is None:
            return sf.lit(True)
        rows = base.where(self._column(clause.condition.node))
        condition = _analyzed(rows).condition()
        self._refuse_chance(condition, clause.condition)
        return self._column(condition)

    def _source_of_merge(self) -> DataFrame:
        frame = self.source()
        return frame if kind_of(_analyzed(frame)) == "SubqueryAlias" else frame.alias("__airflow_paimon_using")

    def _named(self, target: DataFrame) -> DataFrame:
        """Give the target the name by which the statement's expressions qualify its columns."""
        wanted = self._statement.target
        if wanted.alias is not None:
            return target.alias(wanted.alias)
        *qualifier, name = wanted.name
        to_seq = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        identifier = catalyst.AliasIdentifier(name, to_seq(qualifier))
        return self._frame(catalyst.plans.logical.SubqueryAlias(identifier, _analyzed(target)))

    def _own(self, named: DataFrame) -> dict[str, Column]:
        """Return the target's columns by name, whatever else has the same names."""
        return {str(a.name()): self._column(a) for a in sequence_items(_analyzed(named).output())}

    def _column(self, expression: Any) -> Column:
        from pyspark.sql.classic.column import Column as ClassicColumn

        found: Column = ClassicColumn(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))
        return found

    def _frame(self, plan: Any) -> DataFrame:
        return self.frame_of(self._spark, plan)

    @staticmethod
    def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
        """Return the DataFrame of a parsed or resolved plan."""
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        jvm: Any = spark._jvm
        return ClassicFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)

    def _refuse_chance(self, expression: Any, at: Fragment) -> None:
        if not expression.deterministic():
            raise InvalidInputError(
                f"{self._statement.kind} on {self._statement.target.text}: a condition must be deterministic{at.where}"
            )

    def _refuse_subquery(self, at: Fragment) -> None:
        subqueries = self._jvm.org.apache.spark.sql.catalyst.expressions.SubqueryExpression
        if subqueries.hasSubquery(at.node):
            raise InvalidInputError(
                f"{self._statement.kind} on {self._statement.target.text}: a condition of MERGE can't hold a subquery"
                f"{at.where}; put it into the source"
            )

    def _refuse_beyond_rows(self, plan: Any) -> None:
        if kind_of(plan) != "Project":
            raise InvalidInputError(
                f"{self._statement.kind} on {self._statement.target.text}: aggregate, window and generator functions "
                f"can't be assigned; use a subquery"
            )


def _first(numbered: Sequence[tuple[int, Column]], otherwise: Column) -> Column:
    from pyspark.sql import functions as sf

    out: Any = None
    for number, condition in numbered:
        out = sf.when(condition, sf.lit(number)) if out is None else out.when(condition, sf.lit(number))
    return otherwise if out is None else out.otherwise(otherwise)


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _join_condition(plan: Any) -> Any:
    while kind_of(plan) != "Join":
        plan = plan.child()
    return plan.condition().get()


def _ids(plan: Any) -> frozenset[int]:
    """Return the ids of a plan's columns, by which they differ from others of the same name."""
    return frozenset(int(a.exprId().id()) for a in sequence_items(plan.output()))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
