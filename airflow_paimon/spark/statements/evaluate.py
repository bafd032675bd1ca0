"""Spark evaluates a statement: the rows of the target that change, with their new values, as one DataFrame.

Conditions and values stay Spark's own expressions: what its parser made of the text is resolved against DataFrames of
the target and the source, so names, types, NULL logic, subqueries and errors (with their position in the statement) are
Spark's. Store assignment is ``TableOutputResolver``'s, which Spark uses for INSERT, UPDATE and MERGE alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType, RowType
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.data.files.arrow_types import finer_than_micros
from airflow_paimon.data.row_columns import POSITION_COLUMNS, ROW_COLUMNS, with_row_columns
from airflow_paimon.spark.char_columns import filled_frame, stored_char
from airflow_paimon.spark.filters import condition_predicate, equal_columns
from airflow_paimon.spark.jvm import (
    alias_of_parts,
    analyzed,
    column_of_node,
    holds_query,
    ids_of,
    kind_of,
    planned_frame,
    references,
    sequence_items,
    stored_plan,
    under_alias,
    values_over,
)
from airflow_paimon.spark.spark_types import spark_schema, spark_type, sql_name, unmarked_schema
from airflow_paimon.spark.statements.statement_plan import (
    Assigned,
    Clause,
    Fragment,
    Statement,
    assigned,
    fixed_columns,
    update_columns,
)
from airflow_paimon.spark.truncated_times import inexact_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHANGE = internal_column("change")
"""What happens to a row: one of the texts below."""
UPDATED, DELETED, INSERTED = "update", "delete", "insert"
MATCHED = "match"
"""Matched by a MERGE, but left as it is: counts for the rule that a row is matched once."""
MOVED = "move"
"""A MERGE would change the key, partition or bucket of the row."""

SOURCE_ROW = internal_column("source_row")
"""The number of a row of a kept source."""

_ACTION, _IN_TARGET, _IN_SOURCE = internal_column("action"), internal_column("target"), internal_column("source")
_STORED, _MATCHED_ROW = internal_column("stored_"), internal_column("matched_row")
_PLACES = {**POSITION_COLUMNS, **ROW_COLUMNS}
_JOINS = {(False, False): "inner", (True, False): "right", (False, True): "left", (True, True): "full"}
"""By whether there are clauses for NOT MATCHED, and for NOT MATCHED BY SOURCE; the target is on the left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """``rows``: the identity columns, ``CHANGE``, and the columns that they carry. ``predicate`` holds for every row of
    the target that can change; None = unknown. ``equal``: columns of the target, with what they equal in the kept
    source where a row changes. ``uses``: the columns of the target in the condition.
    """

    rows: DataFrame
    predicate: Predicate | None
    equal: tuple[tuple[str, Column], ...] = ()
    uses: frozenset[str] = frozenset()


def stored_chars(schema: TableSchema) -> tuple[str, ...]:
    """Return the CHARs of a table with keys. Rows keep what is stored of them, filled up or not, but where a value is
    assigned: by their keys they are found again.
    """
    return tuple(f.name for f in schema.fields if f.type.root == "CHAR") if schema.primary_keys else ()


class Evaluation:
    """Evaluates one statement on DataFrames of the target: the columns ``identity``, and the table's."""

    def __init__(
        self, spark: SparkSession, statement: Statement, schema: TableSchema, identity: Sequence[str], *, whole: bool
    ) -> None:
        """``identity``: the columns by which changed rows are found again; ``whole``: they carry all columns."""
        self._spark = spark
        self._statement = statement
        self._schema = schema
        self._identity = tuple(identity)
        self._whole = whole
        self._updated = update_columns(statement, schema)
        inserts = any(c.action == "insert" for c in statement.clauses)
        self._values = schema.field_names if whole or inserts else self._updated

    def run(self, target: DataFrame, kept: DataFrame | None = None) -> Evaluated:
        """Resolve the statement; nothing is read yet.

        ``kept``: the source of a MERGE with ``SOURCE_ROW``, small enough to be sent to every task. WHEN NOT MATCHED is
        left out then: see ``unmatched`` and ``inserts``.

        Raises:
            AnalysisException: what Spark says is wrong (see ``query_errors``).
        """
        return self._merge(target, kept) if self._statement.kind == "MERGE" else self._change(target)

    def unmatched(self, target: DataFrame, kept: DataFrame) -> DataFrame:
        """Return the rows of the kept source that no row of the target matches; only the source is sent around."""
        from pyspark.sql import functions as sf

        condition = self._statement.condition
        assert condition is not None
        joined = self._named(self._as_users_see(target)).join(sf.broadcast(kept), self._column(condition.node), "inner")
        matched = joined.select(sf.col(SOURCE_ROW).alias(_MATCHED_ROW)).distinct()
        return kept.join(matched, kept[SOURCE_ROW] == matched[_MATCHED_ROW], "left_anti")

    def inserts(self, unmatched: DataFrame) -> DataFrame:
        """Return what WHEN NOT MATCHED inserts for rows of the source, as ``run`` returns changed rows."""
        from pyspark.sql import functions as sf

        actions = [(c, unmatched) for c in self._statement.not_matched]
        numbered = [(i, self._holds(c, base)) for i, (c, base) in enumerate(actions)]
        chosen = unmatched.withColumn(_ACTION, _first(numbered, sf.lit(None).cast("int")))
        values = [self._clause_values(c, base, base, {}) for c, base in actions]
        columns = [self._merged(name, actions, values, {}).alias(name) for name in self._values]
        nowhere = [sf.lit(None).cast(spark_type(_PLACES[n].type)).alias(n) for n in self._identity]
        found = chosen.where(sf.col(_ACTION).isNotNull())
        return found.select(*nowhere, sf.lit(INSERTED).alias(CHANGE), *columns)

    def empty_target(self) -> DataFrame:
        """Return a target without rows: on it the statement is checked, and its predicate found."""
        own = with_row_columns(self._schema).fields
        fields = [*(f for n, f in POSITION_COLUMNS.items() if n in self._identity), *own]
        return self._spark.createDataFrame([], spark_schema(fields))

    def source(self) -> DataFrame:
        """Return the source of a MERGE, with the name by which expressions qualify its columns, or the query of an
        INSERT.
        """
        source = self._statement.source
        assert source is not None
        frame = planned_frame(self._spark, source.node)
        if self._statement.kind != "MERGE" or kind_of(analyzed(frame)) == "SubqueryAlias":
            return frame
        return frame.alias("__airflow_paimon_using")

    def insertable(self, frame: DataFrame, names: Sequence[str], by_name: bool) -> DataFrame:
        """Return rows with the types of these columns of the table, by Spark's rules for INSERT."""
        return planned_frame(self._spark, self._stored(frame, names, by_name))

    def _change(self, target: DataFrame) -> Evaluated:
        """UPDATE and DELETE."""
        from pyspark.sql import functions as sf

        statement, (clause,) = self._statement, self._statement.matched
        named = self._named(self._as_users_see(target))
        predicate, uses = None, frozenset[str]()
        rows = named
        if statement.condition is not None:
            rows = named.where(self._column(statement.condition.node))
            condition = analyzed(rows).condition()
            self._check_condition(condition, rows, statement.condition)
            predicate = condition_predicate(condition, with_row_columns(self._schema), ids_of(analyzed(named).output()))
            uses = frozenset(str(a.name()) for a in references(condition))
        old = self._own(named)
        values = self._clause_values(clause, rows, rows, old)
        columns = [values.get(n, old[n]).alias(n) for n in self._values]
        kind = sf.lit(UPDATED if clause.action == "update" else DELETED).alias(CHANGE)
        out = rows.select(*(old[n] for n in self._identity), kind, *columns)
        return Evaluated(rows=out, predicate=predicate, uses=uses)

    def _merge(self, target: DataFrame, kept: DataFrame | None) -> Evaluated:
        from pyspark.sql import functions as sf

        statement = self._statement
        assert statement.condition is not None
        for at in (statement.condition, *(c.condition for c in statement.clauses if c.condition is not None)):
            if holds_query(at.node):
                raise InvalidInputError(
                    f"{statement.title}: a condition of MERGE can't have a subquery{at.where}; put it into the source"
                )
        named = self._named(self._as_users_see(target).withColumn(_IN_TARGET, sf.lit(True)))
        source = self.source() if kept is None else kept
        marked = source.withColumn(_IN_SOURCE, sf.lit(True))
        inserts = statement.not_matched if kept is None else ()
        how = _JOINS[bool(inserts), bool(statement.not_matched_by_source)]
        if kept is not None:
            marked = sf.broadcast(marked)
        joined = named.join(marked, self._column(statement.condition.node), how)
        plan = analyzed(joined)
        while kind_of(plan) != "Join":
            plan = plan.child()
        condition = plan.condition().get()
        self._check_condition(condition, joined, statement.condition)
        actions = [(c, joined) for c in statement.matched]
        actions += [(c, source) for c in inserts]
        actions += [(c, named) for c in statement.not_matched_by_source]
        action = self._action(actions, len(inserts))
        acted = joined.withColumn(_ACTION, action).where(sf.col(_ACTION).isNotNull())
        own = self._own(named)
        values = [self._clause_values(c, base, source if c.star else base, own) for c, base in actions]
        seen = self._seen(named)
        columns = [self._merged(name, actions, values, own).alias(name) for name in self._values]
        kind = self._kind(actions, values, seen).alias(CHANGE)
        rows = acted.select(*(own[n] for n in self._identity), kind, *columns)
        if kept is None and not statement.counts_matches and statement.matched:
            rows = self._deleted_once(rows)
        if statement.not_matched_by_source:
            return Evaluated(rows=rows, predicate=None)
        schema, ids = with_row_columns(self._schema), ids_of(analyzed(named).output())
        predicate = condition_predicate(condition, schema, ids)
        equal = equal_columns(condition, schema, ids) if kept is not None else []
        equal_to = tuple((name, self._column(e)) for name, e in equal)
        return Evaluated(rows=rows, predicate=predicate, equal=equal_to)

    def _deleted_once(self, rows: DataFrame) -> DataFrame:
        """Leave each deleted row once: with a DELETE alone, a row may be matched twice."""
        from pyspark.sql import functions as sf

        by = [*(self._identity or self._schema.primary_keys), CHANGE]
        floats = [f.name for f in rows.schema.fields if f.name in by and f.dataType.typeName() in ("float", "double")]
        texts = (sf.col(sql_name(n)).cast("string") for n in floats)  # 0.0 = -0.0: two partitions
        own = sf.when(sf.col(CHANGE) == INSERTED, sf.monotonically_increasing_id())
        own = sf.concat_ws(" ", own.cast("string"), *texts) if floats else own
        by = [n for n in by if n not in floats]  # Spark makes 0.0 of -0.0 by which it groups
        return rows.withColumn(_ACTION, own).dropDuplicates([*by, _ACTION]).drop(_ACTION)

    def _action(self, actions: Sequence[tuple[Clause, DataFrame]], inserts: int) -> Column:
        """Return the number of the clause that takes a joined row; null: none does; -1: none does and it counts that
        the row is matched.
        """
        from pyspark.sql import functions as sf

        matched = len(self._statement.matched)
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
        seen: Mapping[str, Column],
    ) -> Column:
        from pyspark.sql import functions as sf

        names = {"update": UPDATED, "delete": DELETED, "insert": INSERTED}
        out = sf.when(sf.col(_ACTION) == -1, sf.lit(MATCHED))
        for i, (clause, _) in enumerate(actions):
            fixed = [n for n in fixed_columns(self._schema) if n in values[i]] if clause.action == "update" else []
            kind = sf.lit(names[clause.action])
            if fixed:
                same = reduce(lambda a, b: a & b, (values[i][n].eqNullSafe(seen[n]) for n in fixed))
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
        kept = {*fixed_columns(self._schema)} & {*stored_chars(self._schema)}  # ``_kind`` sees that they are equal
        for i, (clause, _) in enumerate(actions):
            if name in values[i] and not (clause.action == "update" and name in kept):
                out = out.when(sf.col(_ACTION) == i, values[i][name])
            elif self._whole or (clause.action == "update" and name in self._updated):
                out = out.when(sf.col(_ACTION) == i, own[name])
        found: Column = out.when(sf.col(_ACTION) == -1, own[name]) if self._whole and own else out
        return found

    def _clause_values(
        self, clause: Clause, base: DataFrame, star: DataFrame, own: Mapping[str, Column]
    ) -> dict[str, Column]:
        """Return the values that a clause gives to columns, resolved and cast for storing. ``star``: what * reads."""
        from pyspark.sql import functions as sf

        if clause.action == "delete":
            return {}
        names = self._schema.field_names
        if clause.star:
            given: dict[str, Any] = {n: sf.col(sql_name(n)) for n in names}
            return self._filled(self._resolved(star, given))
        nodes = assigned(self._statement, clause, self._schema)
        given = {n: self._given(self._schema.field(n).type, own.get(n), nodes[n]) for n in names if n in nodes}
        if clause.action == "insert":
            given |= {n: self._default(n) for n in names if n not in given}
        return self._filled(self._resolved(base, given))

    def _filled(self, values: dict[str, Column]) -> dict[str, Column]:
        """Fill CHARs up where nothing does that later."""
        chars = stored_chars(self._schema)
        return values | {n: stored_char(values[n], self._schema.field(n)) for n in chars if n in values}

    def _given(self, data_type: DataType, old: Any, values: Assigned) -> Column:
        """Return what a column becomes: other fields of a row keep their values, as in Spark also those of a null."""
        from pyspark.sql import functions as sf

        if () in values:
            return self._column(values[()].node)
        assert isinstance(data_type, RowType)
        fields = []
        for field in data_type.fields:
            inside = {path[1:]: value for path, value in values.items() if path[0] == field.name}
            value = old.getField(field.name)
            fields.append((self._given(field.type, value, inside) if inside else value).alias(field.name))
        return sf.struct(*fields)

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
        self._refuse_beyond_rows(analyzed(frame))
        values = values_over(base, self._stored(frame, names, False))
        return dict(zip(names, map(self._column, values), strict=True))

    def _stored(self, frame: DataFrame, names: Sequence[str], by_name: bool) -> Any:
        fields = [self._schema.field(n) for n in names]
        expected = self._spark.createDataFrame([], unmarked_schema(fields))
        return stored_plan(self._spark, self._statement.target.text, expected, frame, by_name=by_name)

    def _holds(self, clause: Clause, base: DataFrame) -> Column:
        from pyspark.sql import functions as sf

        if clause.condition is None:
            return sf.lit(True)
        rows = base.where(self._column(clause.condition.node))
        condition = analyzed(rows).condition()
        self._check_condition(condition, rows, clause.condition)
        return self._column(condition)

    def named_as(self, frame: DataFrame, source: DataFrame) -> DataFrame:
        """Give a DataFrame the name of the source."""
        return planned_frame(self._spark, under_alias(analyzed(frame), analyzed(source).identifier()))

    def _named(self, target: DataFrame) -> DataFrame:
        """Give the target the name by which the statement's expressions qualify its columns."""
        wanted = self._statement.target
        if wanted.alias is not None:
            return target.alias(wanted.alias)
        return planned_frame(self._spark, under_alias(analyzed(target), alias_of_parts(wanted.name)))

    def _as_users_see(self, target: DataFrame) -> DataFrame:
        """Fill CHARs up; those that are written as they are stored stay besides."""
        from pyspark.sql import functions as sf

        kept = [n for n in stored_chars(self._schema) if n in target.columns]
        stored = [sf.col(sql_name(n)).alias(_STORED + n) for n in kept]
        return filled_frame(target.select("*", *stored) if stored else target, self._schema.fields)

    def _own(self, named: DataFrame) -> dict[str, Column]:
        """Return the target's own columns by name, as they are stored, also where the source has columns of the same
        names.
        """
        found = self._seen(named)
        return found | {n.removeprefix(_STORED): column for n, column in found.items() if n.startswith(_STORED)}

    def _seen(self, named: DataFrame) -> dict[str, Column]:
        """Return the target's columns as users see them."""
        return {str(a.name()): self._column(a) for a in sequence_items(analyzed(named).output())}

    def _column(self, expression: Any) -> Column:
        return column_of_node(self._spark, expression)

    def _check_condition(self, condition: Any, rows: DataFrame, at: Fragment) -> None:
        if not condition.deterministic():
            raise InvalidInputError(f"{self._statement.title}: a condition must be deterministic{at.where}")
        if self._statement.kind != "MERGE" and not finer_than_micros(self._schema.fields):
            return  # no other rows than the target's
        column = inexact_column(condition, analyzed(rows))
        if column is not None:
            raise UnsupportedFeatureError(
                f"{self._statement.title}: column {column!r} is finer than "
                f"microseconds, the finest that Spark has, so this condition could hold for other rows than are "
                f"meant{at.where}; compare it with >= and < alone",
                details={"column": column},
            )

    def _refuse_beyond_rows(self, plan: Any) -> None:
        below = plan
        while kind_of(below) == "Project":
            below = below.child()
        if below is plan or kind_of(below) in ("Generate", "Window"):
            raise InvalidInputError(
                f"{self._statement.title}: aggregate, window and generator functions can't be assigned; use a subquery"
            )


def _first(numbered: Sequence[tuple[int, Column]], otherwise: Column) -> Column:
    from pyspark.sql import functions as sf

    out: Any = None
    for number, condition in numbered:
        out = sf.when(condition, sf.lit(number)) if out is None else out.when(condition, sf.lit(number))
    return otherwise if out is None else out.otherwise(otherwise)
