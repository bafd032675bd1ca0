"""All that is used of Spark besides its public API: the JVM behind a session, its plans and expressions.

No other module names a private member of PySpark or makes an object of the JVM, but for ``parquet_scan`` and
``native_scan``. What a version of Spark breaks of this, ``tests/spark/test_jvm.py`` says. A Spark Connect client has no
JVM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_HIDDEN = "__metadata_col"
"""What marks a column that ``*`` leaves out, in the metadata of an attribute (Spark's METADATA_COL_ATTR_KEY)."""
_UNKNOWN_BYTES = 1 << 60
_MAP_ARROW_ITER: Any = 207
"""``PythonEvalType.SQL_MAP_ARROW_ITER_UDF``, which Spark 4 has moved to another module."""


def has_jvm(spark: SparkSession) -> bool:
    """Return whether the session has its own JVM, unlike a Spark Connect client."""
    return hasattr(spark, "_jsparkSession")


# -- plans and expressions ---------------------------------------------------------------------------------------------


def kind_of(node: Any) -> str:
    """Return the name of a plan's or an expression's class."""
    return str(node.getClass().getSimpleName())


def is_instance(node: Any, name: str) -> bool:
    """Whether it is an object of the JVM, and of this class."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    return hasattr(node, "getClass") and bool(is_instance_of(SparkContext._gateway, node, name))


def is_catalyst(node: Any, name: str) -> bool:
    """Whether it is of this class of Catalyst, such as ``plans.logical.Command``."""
    return is_instance(node, f"org.apache.spark.sql.catalyst.{name}")


def sequence_items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def scala_sequence(items: Iterable[Any]) -> Any:
    return _class("api.python.PythonUtils").toSeq(list(items))


def option_of(option: Any) -> Any:
    """Return what a Scala option holds, None if nothing."""
    return option.get() if option.isDefined() else None


def mapping_of(scala_map: Any) -> dict[str, Any]:
    """Return a Scala map by text; its values as they are."""
    return {str(pair._1()): pair._2() for pair in sequence_items(scala_map.toSeq())}


def elements_of(node: Any) -> list[Any]:
    """Return the constructor's arguments of a plan, an expression or a tuple."""
    return [node.productElement(i) for i in range(node.productArity())]


def copied(node: Any, elements: Sequence[Any]) -> Any:
    """Return a copy of a plan with other constructor arguments."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    array = gateway.new_array(gateway.jvm.java.lang.Object, len(elements))
    for i, element in enumerate(elements):
        array[i] = element
    return node.makeCopy(array)


def some(value: Any) -> Any:
    return _jvm().scala.Some(value)


def scala_tuple(items: Sequence[Any]) -> Any:
    """Return a tuple of two or three elements."""
    return (_jvm().scala.Tuple2 if len(items) == 2 else _jvm().scala.Tuple3)(*items)


def id_of(attribute: Any) -> int:
    """Return the number of a column, by which it differs from others of the same name."""
    return int(attribute.exprId().id())


def ids_of(attributes: Any) -> frozenset[int]:
    """Return the numbers of the columns in a Scala sequence."""
    return frozenset(map(id_of, sequence_items(attributes)))


def references(expression: Any) -> list[Any]:
    """Return the columns that an expression uses."""
    return sequence_items(expression.references().toSeq())


def type_of_json(text: str) -> DataType:
    """Return the type that Spark writes as JSON."""
    from pyspark.sql.types import _parse_datatype_json_string

    return _parse_datatype_json_string(text)


def parser(spark: SparkSession) -> Any:
    """Return Spark's parser of SQL."""
    return _session(spark).sessionState().sqlParser()


def analyzed(frame: DataFrame) -> Any:
    """Return a DataFrame's plan, resolved."""
    return _execution(frame).analyzed()


def optimized(frame: DataFrame) -> Any:
    return _execution(frame).optimizedPlan()


def physical(frame: DataFrame) -> Any:
    """Return the plan by which a DataFrame is to be computed, before Spark adapts it while it runs."""
    return _execution(frame).sparkPlan()


def planned_frame(spark: SparkSession, plan: Any) -> DataFrame:
    """Return the DataFrame of a parsed or resolved plan."""
    if spark.version.startswith("3."):
        from pyspark.sql import DataFrame

        return DataFrame(_class("sql.Dataset").ofRows(_session(spark), plan), spark)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    return ClassicFrame(_class("sql.classic.Dataset").ofRows(_session(spark), plan), spark)


def column_of_node(spark: SparkSession, expression: Any) -> Column:
    """Return the column of a parsed or resolved expression."""
    if spark.version.startswith("3."):
        from pyspark.sql import Column

        return Column(_class("sql.Column")(expression))
    from pyspark.sql.classic.column import Column as ClassicColumn

    found: Column = ClassicColumn(_class("sql.classic.ExpressionUtils").column(expression))
    return found


def alias_of_parts(parts: Sequence[str]) -> Any:
    """Return the alias that a name of several parts gives."""
    return _catalyst("AliasIdentifier")(parts[-1], scala_sequence(parts[:-1]))


def under_alias(plan: Any, alias: Any) -> Any:
    """Return a plan with an alias, such as another one's ``identifier()``, by which its columns can be qualified."""
    return _catalyst("plans.logical.SubqueryAlias")(alias, plan)


def hiding(plan: Any, names: Sequence[str]) -> Any:
    """Return a resolved plan of which ``*`` leaves out some columns; they are found by their names."""
    output = sequence_items(plan.output())
    make = _class("sql.types.MetadataBuilder")
    hidden = [
        a.withMetadata(make().withMetadata(a.metadata()).putString(_HIDDEN, a.name()).build())
        for a in output
        if a.name() in names
    ]
    shown = scala_sequence(a for a in output if a.name() not in names)
    project = _catalyst("plans.logical.Project")(shown, plan)
    companion = getattr(_catalyst("plans.logical.Project$"), "MODULE$")
    project.setTagValue(companion.hiddenOutputTag(), scala_sequence(hidden))
    return project


def holds_query(node: Any) -> bool:
    """Whether a subquery is somewhere in a plan or an expression."""
    return bool(node.containsPattern(_catalyst("trees.TreePattern").PLAN_EXPRESSION()))


def asks_for_the_time(frame: DataFrame) -> bool:
    """Whether a query has ``current_date()`` or the like, which is another one when it is run again."""
    return bool(analyzed(frame).containsPattern(_catalyst("trees.TreePattern").CURRENT_LIKE()))


def stored_plan(spark: SparkSession, table: str, expected: DataFrame, rows: DataFrame, *, by_name: bool) -> Any:
    """Return the plan of rows cast to the columns of ``expected`` by Spark's rules for INSERT, UPDATE and MERGE.

    Raises:
        AnalysisException: a value that such a column can't get.
    """
    resolver = _catalyst("analysis.TableOutputResolver")
    conf = _session(spark).sessionState().conf()
    no_defaults = getattr(resolver, "resolveOutputColumns$default$6")()  # false, and since Spark 4.2 another type
    output = analyzed(expected).output()
    return resolver.resolveOutputColumns(table, output, analyzed(rows), by_name, conf, no_defaults)


def values_over(base: DataFrame, plan: Any) -> list[Any]:
    """Return the expressions of a plan of projections over ``base`` in columns of ``base``.

    Spark's optimizer does that too, but leaves projections of ``uuid()`` and ``rand()`` apart.
    """
    collapse = _catalyst("optimizer.CollapseProject")
    found = plan.projectList()
    for _ in range(_projections(plan) - _projections(analyzed(base)) - 1):
        plan = plan.child()
        found = collapse.buildCleanedProjectList(found, plan.projectList())
    return [e.child() if kind_of(e) == "Alias" else e for e in sequence_items(found)]


def _projections(plan: Any) -> int:
    """Return how many projections lie on top of each other, the plan's own among them."""
    count = 0
    while kind_of(plan) == "Project":
        plan, count = plan.child(), count + 1
    return count


# -- what a session knows ----------------------------------------------------------------------------------------------


def is_temporary_view(spark: SparkSession, name: str) -> bool:
    return bool(_session(spark).sessionState().catalog().getTempView(name).isDefined())


def builtin_classes(names: Iterable[str]) -> set[str]:
    """Return the classes of Spark's own functions of these names, as far as it has them."""
    registry, name_of = _catalyst("analysis.FunctionRegistry").builtin(), _catalyst("FunctionIdentifier")
    found = [registry.lookupFunction(name_of(name)) for name in names]
    return {str(info.get().getClassName()) for info in found if info.isDefined()}


def time_zone() -> str:
    """Return the JVM's own time zone."""
    return str(_jvm().java.util.TimeZone.getDefault().getID())


def kept_bytes(spark: SparkSession, rdd: int) -> int:
    """Return what an RDD takes that is kept, in memory and on disks."""
    context: Any = spark._jsc
    found = [i for i in context.sc().getRDDStorageInfo() if i.id() == rdd]
    return sum(i.memSize() + i.diskSize() for i in found)


def estimated_bytes(frame: DataFrame) -> int:
    """Return how much a query reads, as far as Spark knows."""
    sizes = [int(str(leaf.stats().sizeInBytes())) for leaf in sequence_items(optimized(frame).collectLeaves())]
    return sum(s for s in sizes if s < _UNKNOWN_BYTES)


def status_store(spark: SparkSession) -> Any:
    """Return what Spark knows of the session's queries."""
    return _session(spark).sharedState().statusStore()


# -- where PySpark's own functions are missing or fail -----------------------------------------------------------------


def nullable_schema(frame: DataFrame) -> StructType:
    """Return the columns of a DataFrame, all nullable, also inside of them."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(_frame(frame).schema().asNullable().json()))


def frame_of_batches(spark: SparkSession, batches: list[pa.RecordBatch], schema: StructType) -> DataFrame:
    """Return the DataFrame of Arrow batches in Spark 3.5, a task each."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    jvm = _jvm()
    found = spark.sparkContext._serialize_to_jvm(
        batches, ArrowStreamSerializer(), jvm.PythonSQLUtils.readArrowStreamFromFile, jvm.ArrowIteratorServer
    )
    return DataFrame(jvm.PythonSQLUtils.toDataFrame(found, schema.json(), _session(spark)), spark)


def batches_of_frame(frame: DataFrame) -> list[pa.RecordBatch]:
    """Collect rows as Arrow batches in Spark 3.5."""
    batches: list[pa.RecordBatch] = frame._collect_as_arrow()  # type: ignore[operator]  # a column to the checker
    return batches


def mapped_in_arrow(
    frame: DataFrame, columns: Sequence[Column], work: Callable[..., Any], schema: StructType | str
) -> DataFrame:
    """Return what ``mapInArrow`` does, without pandas; ``columns``: all that the frame has."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import _create_udf

    function: Any = _create_udf(work, schema, _MAP_ARROW_ITER)
    called = function(*columns)._jc
    if not hasattr(frame, "toArrow"):  # Spark 3.5
        return DataFrame(_frame(frame).pythonMapInArrow(called.expr(), False), frame.sparkSession)
    return DataFrame(_frame(frame).mapInArrow(called, False, None), frame.sparkSession)


def hinted(frame: DataFrame, hint: str, keys: Sequence[Column]) -> DataFrame:
    """Give a hint with columns, which PySpark 3.5 does not take."""
    from pyspark.sql import DataFrame

    calls: Any = keys
    expressions = scala_sequence(key._jc.expr() for key in calls)
    return DataFrame(_frame(frame).hint(hint, expressions), frame.sparkSession)


def _jvm() -> Any:
    from pyspark import SparkContext

    return SparkContext._jvm


def _class(name: str) -> Any:
    """Return a class of Spark by its whole name: a request to the JVM, where each part of it would be one."""
    return getattr(_jvm(), f"org.apache.spark.{name}")


def _catalyst(name: str) -> Any:
    return _class(f"sql.catalyst.{name}")


def _session(spark: SparkSession) -> Any:
    return spark._jsparkSession


def _frame(frame: DataFrame) -> Any:
    return frame._jdf


def _execution(frame: DataFrame) -> Any:
    return _frame(frame).queryExecution()
