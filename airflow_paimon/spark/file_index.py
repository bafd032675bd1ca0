"""An index of data files for Spark's own file scans in which each file has values of its own.

Spark knows values of folders only, and makes them constant columns of the rows of a file. So the class here is one of
Spark's in which each file counts as a folder. Java, as this package has no jar: Spark compiles it in the driver, as it
does the code that it generates for queries, and keeps what it has compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.spark.arrow_frames import frame_of_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def file_relation(
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
    """
    object_class, to_map, generated = _generated(spark._jvm)
    rows: Any = None
    if len(values_schema):
        rows = frame_of_arrow(spark, values, values_schema)._jdf.queryExecution().executedPlan().executeCollect()
    gateway: Any = spark.sparkContext._gateway
    arguments = gateway.new_array(object_class, 6)
    # texts: single calls for many paths take as long as reading the files
    found = (spark._jsparkSession, "\n".join(paths), schema.json(), to_map(dict(options)), values_schema.json(), rows)
    for number, argument in enumerate(found):
        arguments[number] = argument
    return generated.generate(arguments)


@lru_cache(maxsize=1)
def _generated(jvm: Any) -> tuple[Any, Any, Any]:
    """Look up what is needed of a JVM once: each part of a name is a call."""
    to_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap
    codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
    generated = codegen.CodeGenerator.compile(codegen.CodeAndComment(_SOURCE, to_map({})))._1()
    return jvm.java.lang.Object, to_map, generated


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
        (java.lang.Object[]) references[5]),
      valuesSchema,
      schema,
      scala.Option.empty(),
      new org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat(),
      options,
      session);
  } catch (java.io.IOException error) {
    throw new java.io.UncheckedIOException(error);
  }
}

private static org.apache.spark.sql.types.StructType schemaOf(java.lang.Object json) {
  return (org.apache.spark.sql.types.StructType) org.apache.spark.sql.types.DataType.fromJson((java.lang.String) json);
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
        found.put(
          files[i],
          new org.apache.hadoop.fs.FileStatus[] {(org.apache.hadoop.fs.FileStatus) leafFiles().apply(files[i])});
      }
      folders = org.apache.spark.api.python.PythonUtils.toScalaMap(found);
      listed = leafFiles();
    }
    return folders;
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
