"""Scans of Parquet files by Spark itself: a ``FileIndex`` of Spark in which each file has values of its own, and a
format that skips no row group by bounds of floats.

Spark knows values of folders only, and makes them constant columns of the rows of a file. So the index here is one of
Spark's in which each file counts as a folder. Of the format, only what plans a scan is of here: conditions on columns
with FLOAT or DOUBLE are not handed to Parquet, as bounds may leave NaN out and dictionaries tell -0.0 from 0.0. Java,
as this package has no jar: Spark compiles it in the driver, as it does the code that it generates for queries, and
keeps what it has compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.spark.arrow_frames import frame_of_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_REASON = 500
"""Characters of what Spark says, which may be a program with all its lines."""


class NoParquetScanError(Exception):
    """This Spark does not make such an index: its classes are other ones, or it does not let Python get at them."""


def has_parquet_scan(spark: SparkSession) -> bool:
    """Return whether Spark compiles the class; the first time that it does not, a warning says why."""
    return _generated(spark._jvm) is not None


def parquet_relation(
    spark: SparkSession,
    paths: Sequence[str],
    schema: StructType,
    options: Mapping[str, str],
    values: pa.Table,
    values_schema: StructType,
) -> Any:
    """Return Spark's relation of these Parquet files. ``schema``: of what is read of them; ``values``: a row for each
    file, in their order, in Spark's types.

    The files are listed; it is no error here that one is missing, but when the relation is read.

    Raises:
        NoParquetScanError: Spark's reader can't be used like this.
    """
    from py4j.protocol import Py4JError

    known = _generated(spark._jvm)
    if known is None:
        raise NoParquetScanError
    object_class, to_map, generated = known
    try:
        rows = frame_of_arrow(spark, values, values_schema)._jdf.queryExecution() if len(values_schema) else None
        gateway: Any = spark.sparkContext._gateway
        arguments = gateway.new_array(object_class, 6)
        # texts: single calls for many paths take as long as reading the files
        texts = "\n".join(paths), schema.json(), to_map(dict(options)), values_schema.json()
        for number, argument in enumerate((spark._jsparkSession, *texts, rows)):
            arguments[number] = argument
        return generated.generate(arguments)
    except (Py4JError, TypeError) as error:
        raise _unusable(error) from error


def check_values(relation: Any, files: int) -> None:
    """Check that Spark finds as many files by their values, which it would otherwise leave out. All are to be there.

    Raises:
        NoParquetScanError: it does not.
    """
    from py4j.protocol import Py4JError

    try:
        found = relation.location().filesWithValues()
    except Py4JError as error:
        raise _unusable(error) from error
    if found != files:
        raise _unusable(f"Spark found {found} of {files} files by their values")


def _unusable(reason: Exception | str) -> NoParquetScanError:
    text = " ".join(str(getattr(reason, "java_exception", reason)).split())[:_REASON]
    log.warning("Spark's own reader can't be used here, so files are read in tasks by this package's: %s", text)
    return NoParquetScanError(text)


@lru_cache(maxsize=1)
def _generated(jvm: Any) -> tuple[Any, Any, Any] | None:
    """Look up what is needed of a JVM once: each part of a name is a call. None: it is not there."""
    from py4j.protocol import Py4JError

    try:
        to_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap
        codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
        generated = codegen.CodeGenerator.compile(codegen.CodeAndComment(_SOURCE, to_map({})))._1()
        return jvm.java.lang.Object, to_map, generated
    except (Py4JError, TypeError, AttributeError) as error:  # a package is no function, where a class isn't there
        _unusable(error)
        return None


_SOURCE = """
public java.lang.Object generate(java.lang.Object[] references) {
  org.apache.spark.sql.SparkSession session = (org.apache.spark.sql.SparkSession) references[0];
  java.lang.String[] paths = ((java.lang.String) references[1]).split("\\n");
  org.apache.spark.sql.types.StructType schema = schemaOf(references[2]);
  scala.collection.immutable.Map options = (scala.collection.immutable.Map) references[3];
  org.apache.spark.sql.types.StructType valuesSchema = schemaOf(references[4]);
  try {
    return new org.apache.spark.sql.execution.datasources.HadoopFsRelation(
      new PaimonFileIndex(
        session,
        org.apache.hadoop.util.StringUtils.stringToPath(paths),
        options,
        schema,
        valuesSchema,
        rowsOf((org.apache.spark.sql.execution.QueryExecution) references[5])),
      valuesSchema,
      schema,
      scala.Option.empty(),
      new PaimonParquetFormat(),
      options,
      session);
  } catch (java.io.IOException error) {
    throw new java.io.UncheckedIOException(error);
  }
}

private static org.apache.spark.sql.types.StructType schemaOf(java.lang.Object json) {
  return (org.apache.spark.sql.types.StructType) org.apache.spark.sql.types.DataType.fromJson((java.lang.String) json);
}

// The plan of a small frame has its rows: making the physical plan takes longer than all else here.
private static java.lang.Object[] rowsOf(org.apache.spark.sql.execution.QueryExecution frame) {
  if (frame == null) {
    return null;
  }
  org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan = frame.analyzed();
  if (!(plan instanceof org.apache.spark.sql.catalyst.plans.logical.LocalRelation)) {
    return frame.executedPlan().executeCollect();
  }
  java.util.List rows = new java.util.ArrayList();
  scala.collection.Iterator found =
    ((org.apache.spark.sql.catalyst.plans.logical.LocalRelation) plan).data().iterator();
  while (found.hasNext()) {
    rows.add(found.next());
  }
  return rows.toArray();
}

public static class PaimonParquetFormat
    extends org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat {

  public scala.Function1 buildReaderWithPartitionValues(
      org.apache.spark.sql.SparkSession session,
      org.apache.spark.sql.types.StructType dataSchema,
      org.apache.spark.sql.types.StructType partitionSchema,
      org.apache.spark.sql.types.StructType requiredSchema,
      scala.collection.Seq filters,
      scala.collection.immutable.Map options,
      org.apache.hadoop.conf.Configuration conf) {
    return reader(session, dataSchema, partitionSchema, requiredSchema, filters.iterator(), options, conf);
  }

  // The same as Scala 2.13 calls it.
  public scala.Function1 buildReaderWithPartitionValues(
      org.apache.spark.sql.SparkSession session,
      org.apache.spark.sql.types.StructType dataSchema,
      org.apache.spark.sql.types.StructType partitionSchema,
      org.apache.spark.sql.types.StructType requiredSchema,
      scala.collection.immutable.Seq filters,
      scala.collection.immutable.Map options,
      org.apache.hadoop.conf.Configuration conf) {
    return reader(session, dataSchema, partitionSchema, requiredSchema, filters.iterator(), options, conf);
  }

  // Another object makes the reader: tasks get it with the reader, and do not know the class here.
  private static scala.Function1 reader(
      org.apache.spark.sql.SparkSession session,
      org.apache.spark.sql.types.StructType dataSchema,
      org.apache.spark.sql.types.StructType partitionSchema,
      org.apache.spark.sql.types.StructType requiredSchema,
      scala.collection.Iterator filters,
      scala.collection.immutable.Map options,
      org.apache.hadoop.conf.Configuration conf) {
    java.util.List kept = new java.util.ArrayList();
    while (filters.hasNext()) {
      org.apache.spark.sql.sources.Filter filter = (org.apache.spark.sql.sources.Filter) filters.next();
      if (!namesFloats(filter, dataSchema)) {
        kept.add(filter);
      }
    }
    return new org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat().buildReaderWithPartitionValues(
      session,
      dataSchema,
      partitionSchema,
      requiredSchema,
      org.apache.spark.api.python.PythonUtils.toSeq(kept),
      options,
      conf);
  }

  private static boolean namesFloats(
      org.apache.spark.sql.sources.Filter filter, org.apache.spark.sql.types.StructType schema) {
    java.lang.String[][] names = filter.v2references();
    org.apache.spark.sql.types.StructField[] fields = schema.fields();
    for (int i = 0; i < names.length; i++) {
      for (int j = 0; j < fields.length; j++) {
        java.lang.String type = fields[j].dataType().catalogString();
        if (fields[j].name().equalsIgnoreCase(names[i][0]) && (type.contains("float") || type.contains("double"))) {
          return true;
        }
      }
    }
    return false;
  }
}

public static class PaimonFileIndex extends org.apache.spark.sql.execution.datasources.InMemoryFileIndex {
  private final org.apache.hadoop.fs.Path[] files;
  private final org.apache.spark.sql.execution.datasources.PartitionSpec spec;
  private java.lang.Object listed;
  private scala.collection.immutable.Map folders;

  public PaimonFileIndex(
      org.apache.spark.sql.SparkSession session,
      org.apache.hadoop.fs.Path[] paths,
      scala.collection.immutable.Map options,
      org.apache.spark.sql.types.StructType schema,
      org.apache.spark.sql.types.StructType valuesSchema,
      java.lang.Object[] values) throws java.io.IOException {
    super(
      session,
      org.apache.spark.api.python.PythonUtils.toSeq(java.util.Arrays.asList(paths)),
      options,
      scala.Option.apply(schema),
      org.apache.spark.sql.execution.datasources.NoopCache$.MODULE$,
      scala.Option.empty(),
      scala.Option.empty());
    files = new org.apache.hadoop.fs.Path[paths.length];
    java.util.List partitions = new java.util.ArrayList();
    for (int i = 0; i < paths.length; i++) {
      files[i] = paths[i].getFileSystem(hadoopConf()).makeQualified(paths[i]);
      if (!valuesSchema.isEmpty()) {
        partitions.add(
          new org.apache.spark.sql.execution.datasources.PartitionPath((InternalRow) values[i], files[i]));
      }
    }
    spec = new org.apache.spark.sql.execution.datasources.PartitionSpec(
      valuesSchema, org.apache.spark.api.python.PythonUtils.toSeq(partitions));
  }

  public org.apache.spark.sql.execution.datasources.PartitionSpec partitionSpec() {
    return spec;
  }

  // Spark looks for the files of each folder here, and lists them again where somebody refreshes what it has cached.
  public synchronized scala.collection.immutable.Map leafDirToChildrenFiles() {
    if (listed != leafFiles()) {
      java.util.Map found = new java.util.HashMap();
      for (int i = 0; i < files.length; i++) {
        scala.Option status = leafFiles().get(files[i]);
        if (status.isEmpty()) {
          throw new java.io.UncheckedIOException(new java.io.FileNotFoundException(files[i] + " is missing"));
        }
        found.put(
          files[i],
          new org.apache.hadoop.fs.FileStatus[] {(org.apache.hadoop.fs.FileStatus) status.get()});
      }
      folders = org.apache.spark.api.python.PythonUtils.toScalaMap(found);
      listed = leafFiles();
    }
    return folders;
  }

  public int filesWithValues() {
    int found = 0;
    java.util.List none = new java.util.ArrayList();
    scala.collection.Iterator folders = listFiles(
      org.apache.spark.api.python.PythonUtils.toSeq(none),
      org.apache.spark.api.python.PythonUtils.toSeq(none)).iterator();
    while (folders.hasNext()) {
      found += ((org.apache.spark.sql.execution.datasources.PartitionDirectory) folders.next()).files().size();
    }
    return found;
  }

  // Spark takes two scans of equal indexes for one.
  public boolean equals(java.lang.Object other) {
    return other instanceof PaimonFileIndex && super.equals(other) && spec.equals(((PaimonFileIndex) other).spec);
  }

  public int hashCode() {
    return super.hashCode();
  }
}
"""
