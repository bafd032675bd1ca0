"""Tables that a statement or a query names as ``db.t`` or ```db`.`t$branch_b` ``, with or without VERSION AS OF.

Spark would look for them in its own catalogs. In the parsed plan each becomes what a view of the table would be, at one
state for all places where it is named. A name that the warehouse doesn't have stays Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import InvalidInputError, NotPaimonError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.inspect import inspect, takes_version
from airflow_paimon.core.table.manifest_lists import count_live_files
from airflow_paimon.core.table.paths import MAIN, parse_identifier
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.sys_tables import DATABASE as SYS
from airflow_paimon.core.table.sys_tables import sys_table
from airflow_paimon.core.table.table import Table, open_table, parse_version, resolve_version, split_version
from airflow_paimon.data.fallback_branches import PinnedState, plan_head_of_other, visible_in_other, visible_in_own
from airflow_paimon.data.planner import pin, plan_pinned
from airflow_paimon.data.read_groups import IN_SPARK, plan_of
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.row_columns import ROW_COLUMNS, with_row_columns
from airflow_paimon.data.system_tables import ROW_TRACKING, WITH_ROWS, check_system_table
from airflow_paimon.spark.arrow_frames import arrow_frame
from airflow_paimon.spark.jobs.small_input import FEW_FILES, is_small_view, view_frame
from airflow_paimon.spark.jvm import (
    alias_of_parts,
    analyzed,
    column_of_node,
    copied,
    elements_of,
    hiding,
    holds_query,
    is_catalyst,
    is_instance,
    is_temporary_view,
    kind_of,
    planned_frame,
    scala_sequence,
    scala_tuple,
    sequence_items,
    some,
    under_alias,
)
from airflow_paimon.spark.spark_types import spark_schema, sql_name
from airflow_paimon.spark.statements.analysed import bound, check_analysed, refusal
from airflow_paimon.spark.statements.evaluate import Evaluation
from airflow_paimon.spark.statements.insert import insert_rows
from airflow_paimon.spark.statements.parse import WRITE_PRIVILEGES, fragment_of, is_command_plan, parse_plan
from airflow_paimon.spark.statements.pruning import EVERYTHING, Needed, needed_of, placeholder, united
from airflow_paimon.spark.statements.statement_plan import Statement, with_nodes
from airflow_paimon.spark.statements.views import may_mention, registered, view_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.spark.statements.sql_request import SqlRequest

Find = Callable[[str], Table]
"""Opens a table by its name, as ``open_table`` does."""
Own = Callable[[], "DataFrame"]
"""Returns the rows of the statement's own table, of the snapshot that the statement is computed on."""
_Key = tuple[str, str, "str | None", "int | str | None", "int | None"]
"""A table's name and branch, its system table, the version and the time (epoch milliseconds) at which it is read."""
_RELATIONS = ("UnresolvedRelation", "RelationTimeTravel")


class NamedTables:
    """The tables of a warehouse, by the names that one statement or query gives them.

    A query may name system tables, ``_ROW_ID`` and ``_SEQUENCE_NUMBER`` are not part of its ``*``, and a large table is
    empty when it is planned first: ``learn`` then says what of it the query needs.

    Attributes:
        read_own: Whether the statement reads its own table elsewhere than as its target.
    """

    def __init__(
        self,
        spark: SparkSession,
        request: Request | SqlRequest,
        text: str | None,
        own: Table | None = None,
        own_views: Collection[str] = (),
        *,
        restricted: bool = False,
        database: str | None = None,
        is_query: bool = False,
    ) -> None:
        """``request``: names the warehouse. ``text``: of the statement or query; None: a function, which may read any
        view. ``own``: the table that is changed; ``own_views``: further names of it.

        ``restricted``: refuse what reaches beyond the tables (``restricted_sql.py`` looks at the text before).
        ``database``: the one of names of one part; None: such a name is never a table of the warehouse.
        """
        self._spark, self._text, self._is_query = spark, text, is_query
        self._find: Find = partial(open_table, request.warehouse, storage_options=request.storage_options)
        self._catalog = partial(open_catalog, request.warehouse, request.storage_options)
        self._own, self._own_views = own, own_views
        self._restricted = restricted
        self._target: Sequence[str] = ()
        self._named: list[Table] = []
        self._frames: dict[_Key, DataFrame] = {}
        self._states: dict[_Key, PinnedState] = {}
        self._hides_ids = is_query and any(name.lower() in (text or "").lower() for name in ROW_COLUMNS)
        self._placeholders: dict[int, tuple[_Key, TableSchema]] = {}
        self._needed: dict[_Key, Needed] | None = None if is_query else {}
        self._own_source: Own | None = None
        self._own_frame: DataFrame | None = None
        self._plain: set[str] = set()
        self._database, self._ctes = database, frozenset[str]()
        self.read_own = False

    @property
    def named(self) -> Sequence[Table]:
        """The tables that were read by their names, besides the statement's own."""
        return tuple(self._named)

    def view(self, text: str) -> DataFrame:
        """Return the rows of ``db.t``, ``db.t$branch_b``, in a query a system table of them, or either with
        ``@VERSION``.

        Raises:
            NotFoundError: no such table, branch or version. InvalidInputError: not of that form.
        """
        found = self._frame(text, None)
        if found is None:
            name, _ = split_version(text)
            parse_identifier(name)
            raise self._find(name.partition("$")[0]).missing()
        return found

    def views(self, tables: Mapping[str, str], without: Collection[str] = ()) -> dict[str, DataFrame]:
        """Return the rows of the views that the text may mean, but for those ``without``; ``tables``: by view."""
        wanted = {name: table for name, table in tables.items() if name not in without}
        return {name: self.view(table) for name, table in wanted.items() if may_mention(self._text, name)}

    def learn(self, frame: DataFrame) -> bool:
        """Find out what the planned query needs of large tables; False if that is known, and the query is final."""
        if self._needed is not None or not self._placeholders:
            return False
        found = needed_of(frame, {number: schema for number, (_, schema) in self._placeholders.items()})
        by_key: dict[_Key, list[Needed]] = {key: [] for key, _ in self._placeholders.values()}
        for number, needed in found.items():
            by_key[self._placeholders[number][0]] += needed
        self._needed = {key: united(needed) for key, needed in by_key.items()}
        self._forget()
        return True

    def _forget(self) -> None:
        self._frames = {key: frame for key, frame in self._frames.items() if key[2] is not None}
        self._own_frame = None

    @contextmanager
    def bound(self, statement: Statement, own: Own) -> Iterator[Statement]:
        """Return the statement with its tables resolved; inside the context the queries of its WITH have their names.

        Raises:
            NotFoundError: a table of the warehouse has no such branch or version.
        """
        self._begin(own)
        self._ctes = frozenset(name.lower() for name, _ in statement.ctes)
        found = with_nodes(statement, self._node)
        with ExitStack() as stack:
            for view in self._own_views:
                if view.lower() in self._plain or "identifier" in statement.text.lower():
                    stack.enter_context(self._registered(view, self._own_rows()))
            for name, plan in found.ctes:
                stack.enter_context(self._registered(name, self._checked(planned_frame(self._spark, plan.node))))
            if self._restricted:
                self._check_resolved(found)
            yield found

    def check(self, statement: Statement, own: Own) -> None:
        """Look at a restricted statement that is not evaluated by us.

        Raises:
            UnsafeOperationError: it reaches beyond the tables.
        """
        if self._restricted:
            with self.bound(statement, own):
                pass

    def _registered(self, name: str, frame: DataFrame) -> AbstractContextManager[None]:
        return registered(self._spark, {name: frame}, marked=self._restricted)

    def _checked(self, frame: DataFrame) -> DataFrame:
        if self._restricted:
            check_analysed(frame)
        return frame

    def _check_resolved(self, statement: Statement) -> None:
        """Resolve a statement on no rows of its target, and look at that before any of it is evaluated."""
        assert self._own is not None
        schema = self._own.schema()
        if statement.insert is not None:
            rows = insert_rows(self._spark, statement, schema)
        else:
            evaluation = Evaluation(self._spark, statement, schema, (), whole=True)
            rows = evaluation.run(bound(evaluation.empty_target())).rows
        check_analysed(rows)

    def query(self, text: str, own: Own) -> DataFrame:
        """Return the rows of a query.

        Raises:
            AnalysisException, ParseException: it is wrong. NotFoundError: as ``bound``. InvalidInputError: not a query.
        """
        parse_plan(self._spark, f"SELECT * FROM ({text}\n)")  # accepts only a query, or two words (table and alias)
        plan = parse_plan(self._spark, text)
        if is_command_plan(plan):
            raise InvalidInputError("sql (--sql) takes a SELECT, UPDATE, DELETE, MERGE or INSERT, and no other command")
        self._begin(own)
        return self._checked(planned_frame(self._spark, self._node(plan)))

    def plan(self, plan: Any, own: Own | None = None, target: Sequence[str] = ()) -> Any:
        """Return a parsed statement's plan with its tables resolved; ``target``: its target, in three parts."""
        self._begin(own)
        self._target = target
        return self._node(plan)

    def _begin(self, own: Own | None) -> None:
        self._own_source, self._own_frame, self.read_own = own, None, False
        self._plain.clear()

    def _own_rows(self) -> DataFrame:
        if self._own_frame is None:
            assert self._own_source is not None
            self._own_frame = self._own_source()
        self.read_own = True
        return self._own_frame

    def _node(self, node: Any) -> Any:
        """Return a plan, or an expression with its subqueries, in which the tables are resolved."""
        return self._plan(node) if is_catalyst(node, "plans.logical.LogicalPlan") else self._expression(node)

    def _plan(self, plan: Any) -> Any:
        kind = kind_of(plan)
        if kind in _RELATIONS:
            return self._relation(plan)
        if self._hides_ids and kind == "SubqueryAlias" and kind_of(plan.child()) in _RELATIONS:
            found = self._relation(plan.child())  # what ``*`` leaves out goes above the alias, which doesn't pass it on
            hides = kind_of(found) == "Project"
            aliased = plan.withNewChildren(scala_sequence([found.child() if hides else found]))
            return hiding(aliased, tuple(ROW_COLUMNS)) if hides else aliased
        outer = self._ctes
        if kind == "UnresolvedWith":
            self._ctes |= {str(r._1()).lower() for r in sequence_items(plan.cteRelations())}
        out = self._children(plan, kind)
        self._ctes = outer
        return out

    def _children(self, plan: Any, kind: str) -> Any:
        out = self._with_children(plan, lambda child: self._plan(child))
        if kind == "UnresolvedWith" or holds_query(out):
            return self._with_elements(out)
        return out

    def _expression(self, expression: Any) -> Any:
        if not holds_query(expression):
            return expression
        out = self._with_children(expression, lambda child: self._expression(child))
        if is_catalyst(out, "expressions.PlanExpression"):
            plan = out.plan()
            new = self._plan(plan)
            return out if new is plan else out.withNewPlan(new)
        return out

    def _with_children(self, node: Any, change: Callable[[Any], Any]) -> Any:
        old = sequence_items(node.children())
        new = [change(child) for child in old]
        return node if _same(old, new) else node.withNewChildren(scala_sequence(new))

    def _with_elements(self, plan: Any) -> Any:
        """Resolve what a plan holds besides its children: expressions with subqueries, and the queries of WITH."""
        old = elements_of(plan)
        new = [e if is_catalyst(e, "plans.logical.LogicalPlan") else self._element(e) for e in old]
        if _same(old, new):
            return plan
        return copied(plan, new)

    def _element(self, element: Any) -> Any:
        if not hasattr(element, "getClass"):
            return element
        if is_catalyst(element, "plans.logical.LogicalPlan") or is_catalyst(element, "expressions.Expression"):
            return self._node(element)
        kind = str(element.getClass().getName())
        if kind == "scala.Some":
            inner = element.get()
            new = self._element(inner)
            return element if new is inner else some(new)
        if kind in ("scala.Tuple2", "scala.Tuple3"):
            old = elements_of(element)
            new = [self._element(e) for e in old]
            return element if _same(old, new) else scala_tuple(new)
        if is_instance(element, "scala.collection.Seq"):
            old = sequence_items(element)
            new = [self._element(e) for e in old]
            return element if _same(old, new) else scala_sequence(new)
        return element

    def _relation(self, plan: Any) -> Any:
        travel = plan if kind_of(plan) == "RelationTimeTravel" else None
        relation = plan.relation() if travel is not None else plan
        if kind_of(relation) != "UnresolvedRelation":
            return plan
        parts = [str(p) for p in sequence_items(relation.multipartIdentifier())]
        if len(parts) == 1:
            self._plain.add(parts[0].lower())
            # not that of a query of WITH, of a view, or of the statement's own rows
            of_session = parts[0].lower() in {*self._ctes, *map(str.lower, self._own_views)}
            if self._database is not None and not of_session and not is_temporary_view(self._spark, parts[0]):
                parts = [self._database, *parts]
        text, at = table_text(parts), fragment_of(relation)
        if text is None:
            return self._left(plan, parts)
        try:
            frame = self._frame(text, travel)
        except PaimonError as error:
            error.set_message(f"{error.message}{at.where}")
            raise
        if frame is None:
            return self._left(plan, parts)
        if relation.isStreaming() or {*relation.options().keySet()} - {WRITE_PRIVILEGES}:
            what = "STREAM" if relation.isStreaming() else "WITH (...) after a table"
            raise InvalidInputError(
                f"{text}: {what} has no meaning here{at.where}; name a branch as db.`t$branch_b`, a state with VERSION "
                f"AS OF or TIMESTAMP AS OF, and read a stream with spark.readStream"
            )
        return self._named_plan(parts, frame)

    def _left(self, plan: Any, parts: Sequence[str]) -> Any:
        """Leave a name to Spark's catalogs, but in restricted SQL that of a view."""
        if self._restricted and len(parts) > 1 and list(parts) != list(self._target):
            raise refusal(f"{'.'.join(parts)!r}, which is not a table of the warehouse")
        return plan

    def _named_plan(self, parts: Sequence[str], frame: DataFrame) -> Any:
        """Return a DataFrame's plan under the name ``db.t``, by which its columns can be qualified."""
        plan = under_alias(analyzed(bound(frame) if self._restricted else frame), alias_of_parts(parts))
        shows = str(parts[-1]).lower().endswith(f"${ROW_TRACKING}")
        hides = self._hides_ids and not shows and set(ROW_COLUMNS) & set(frame.columns)
        return hiding(plan, tuple(ROW_COLUMNS)) if hides else plan

    def _frame(self, text: str, travel: Any) -> DataFrame | None:
        name, version = split_version(text)
        # a statement's commit doesn't check that what it read of a system table is still so
        identifier = parse_identifier(name) if self._is_query and "$" in name else None
        system = None if identifier is None else identifier.system_table
        database, _, short = name.partition(".")
        if self._is_query and system is None and database.lower() == SYS and version is None and travel is None:
            about = sys_table(self._catalog(), short)
            return None if about is None else arrow_frame(self._spark, about)
        home = None if identifier is None or system is None else replace(identifier, system_table=None)
        table = find_table(self._find, text if home is None else str(home))
        if table is None:
            return None
        found = self._table_frame(table, system, *self._moment(table, text, version, travel))
        if self._hides_ids and system is None and set(ROW_COLUMNS) & set(found.columns):
            self._forget()  # two relations can't have the same hidden columns: the next one gets its own
        return found

    def _table_frame(self, table: Table, system: str | None, version: int | str | None, time: int | None) -> DataFrame:
        key = (table.name, table.branch_name, system, version, time)
        if self._own is not None and key == (self._own.name, self._own.branch_name, None, None, None):
            return self._own_rows()
        if key not in self._frames:
            rows = self._read(key, table) if system is None else self._system_rows(table, system, version, time)
            self._frames[key] = rows
            self._named.append(table)
        return self._frames[key]

    def _read(self, key: _Key, table: Table) -> DataFrame:
        """Return a table's rows at a version, or at a time."""
        state = self._state(table, *key[3:])
        schema = state.states[0].schema
        columns = view_columns(schema, self._text)
        if columns is not None:
            schema = with_row_columns(schema)

        def rows(columns: Sequence[str] | None, predicate: Predicate | None = None) -> DataFrame:
            planned = plan_pinned(state, ReadRequest(columns=columns, predicate=predicate), IN_SPARK)
            return view_frame(self._spark, planned)

        def needed_rows(needed: Needed) -> DataFrame:
            if needed.columns is None or len(needed.columns) == len(schema.fields):
                return rows(columns, needed.predicate)
            read = [n for n in schema.field_names if n in needed.columns] or schema.field_names[:1]
            return _with_nulls(rows(read, needed.predicate), schema)

        if self._needed is None and sum(count_live_files(s.table, s.snapshot) for s in state.states) <= FEW_FILES:
            planned = plan_pinned(state, ReadRequest(columns=columns), IN_SPARK)
            if is_small_view(f for group in planned.groups for f in group.files):  # whatever the query needs
                return view_frame(self._spark, planned)
        return self._pruned(key, schema, needed_rows)

    def _pruned(self, key: _Key, schema: TableSchema, rows: Callable[[Needed], DataFrame]) -> DataFrame:
        """Return what the query needs of a large table, by ``rows``; as long as that isn't known, no row of it."""
        if self._needed is not None:
            return rows(self._needed.get(key, EVERYTHING))
        frame, number = placeholder(self._spark, schema)
        self._placeholders[number] = (key, schema)
        return frame

    def _state(self, table: Table, version: int | str | None, time: int | None) -> PinnedState:
        key = (table.name, table.branch_name, None, version, time)
        if key not in self._states:
            self._states[key] = pin(table, version, time)
        return self._states[key]

    def _system_rows(self, table: Table, system: str, version: int | str | None, time: int | None) -> DataFrame:
        if system.lower() in WITH_ROWS:
            kind = check_system_table(table, system)
            state = self._state(table, version, time)
            return view_frame(self._spark, plan_pinned(state, ReadRequest(system=kind), IN_SPARK))
        if takes_version(system):
            view, snapshot = self._snapshot(table, version, time)
            return arrow_frame(self._spark, inspect(view, system, snapshot))
        if version is not None or time is not None:
            raise InvalidInputError(f"{table.label}: ${system} takes no version")
        return arrow_frame(self._spark, inspect(table, system))

    def _snapshot(self, table: Table, version: int | str | None, time: int | None) -> tuple[Table, Snapshot | None]:
        """Return the snapshot that the table's rows are read at as well."""
        try:
            state = self._state(table, version, time)
        except UnsupportedFeatureError:  # its rows are not read here
            return resolve_version(table, version, time)
        plan = next((p for p in state.states if p.table.branch_name == table.branch_name), state.states[0])
        return plan.table, plan.snapshot

    def _moment(
        self, table: Table, text: str, version: int | str | None, travel: Any
    ) -> tuple[int | str | None, int | None]:
        """Return the version or the time (epoch milliseconds) that a name with ``@`` or AS OF asks for."""
        if travel is None:
            return version, None
        if version is not None:
            raise InvalidInputError(f"{text}: give the version after @ or with VERSION AS OF, not both")
        if not travel.version().isDefined():
            return None, self._millis(travel.timestamp().get(), text)
        request = str(travel.version().get())
        version = parse_version(request)
        # Paimon looks for a tag first, also where the name is a number
        return (request if isinstance(version, int) and table.find_tag(request) is not None else version), None

    def _millis(self, expression: Any, text: str) -> int:
        from pyspark.sql import functions as sf

        if holds_query(expression):
            raise InvalidInputError(f"{text}: TIMESTAMP AS OF takes a time, and no subquery")
        moment = column_of_node(self._spark, expression)
        rows = self._spark.sql("SELECT 1").select(sf.unix_millis(moment.cast("timestamp")))
        found = self._checked(rows).collect()[0][0]
        if found is None:
            raise InvalidInputError(f"{text}: TIMESTAMP AS OF is NULL")
        return int(found)


def table_text(parts: Sequence[str]) -> str | None:
    """Return how a relation of SQL names a table of the warehouse; None where only Spark's catalogs can have it.

    What is checked and what is bound both go by this and by ``find_table``.
    """
    plain = len(parts) == 2 and not any("`" in part or part != part.strip() for part in parts)
    return ".".join(parts) if plain else None


def find_table(find: Find, text: str) -> Table | None:
    """Return the table of ``db.t``, ``db.t$branch_b`` or either with ``@VERSION``; None if the warehouse has it not.

    Raises:
        NotFoundError: it has no such branch. InvalidInputError: a name with a ``$`` that is none of a table.
    """
    name, _ = split_version(text)
    try:
        table = find(name)
    except InvalidInputError:
        if "$" in name:
            raise
        return None
    except NotPaimonError:
        return None
    return table.require() if table.branch(MAIN).exists() else None


def names_of(own: Table, views: Mapping[str, Any]) -> frozenset[str]:
    """Return the views that show a table at its head: a statement on it reads them as its target is read."""
    found = []
    for view, text in views.items():
        name, version = split_version(text) if isinstance(text, str) else ("", 0)
        if version is None:
            table = parse_identifier(name)
            same = f"{table.database}.{table.table}" == own.name and table.branch == own.branch_name
            found += [view] if same and not table.system_table else []
    return frozenset(found)


def own_rows(spark: SparkSession, text: str | None, plan: ScanPlan) -> DataFrame:
    """Return the rows of the statement's own table, of the snapshot that the statement is computed on."""
    columns, other = view_columns(plan.schema, text), plan_head_of_other(plan)
    whole = bool(plan.schema.primary_keys)
    shown = [plan] if other is None else [visible_in_own(plan, other), visible_in_other(plan, other)]
    return view_frame(
        spark, plan_of(*(plan_read(p, columns=columns, layered=True, whole_buckets=whole) for p in shown))
    )


def _with_nulls(frame: DataFrame, schema: TableSchema) -> DataFrame:
    """Return all columns of a table; those that were not read, as nothing needs them, are null."""
    from pyspark.sql import functions as sf

    kinds = spark_schema(schema.fields)
    return frame.select(
        *(
            sf.col(sql_name(f.name)) if f.name in frame.columns else sf.lit(None).cast(f.dataType).alias(f.name)
            for f in kinds
        )
    )


def _same(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return all(a is b for a, b in zip(old, new, strict=True))
