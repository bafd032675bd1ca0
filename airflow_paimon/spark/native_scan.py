"""Files whose rows are the table's rows, read by Spark's own Parquet reader, partition values taken from the manifest.

Built as Spark builds its own file scans, because the public ``spark.read.parquet`` does not accept partition values: it
reads them off folder names, which differ from Paimon's (and one relation serves any number of partitions).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.deletion_vectors import Positions
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import (
    AtomicType,
    DataField,
    DataType,
    nested_ids,
    types_within,
)
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.features import file_format
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_values import comparable
from airflow_paimon.core.table.reachability import DeletionVectorPlace
from airflow_paimon.data.files.arrow_types import (
    FILE_NAME,
    FILE_NAME_FIELD,
    FILE_POSITION,
    ROW_ID,
    SEQUENCE_NUMBER,
    arrow_schema,
    arrow_type,
    is_finer_than_micros,
    repeated,
)
from airflow_paimon.data.read import load_deletions
from airflow_paimon.data.read_splits import ReadSplit, TableRead
from airflow_paimon.data.row_columns import ROW_COLUMNS, stored_row_fields
from airflow_paimon.spark.jvm import has_jvm, sequence_items
from airflow_paimon.spark.parquet_scan import check_values, has_parquet_scan, parquet_relation
from airflow_paimon.spark.row_positions import ROW_INDEX, row_column, without_deleted
from airflow_paimon.spark.rows_in import temporary_conf
from airflow_paimon.spark.spark_types import metadata_of, shipped_schema, spark_schema, spark_type, sql_name, to_shipped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

MAX_FOLDERS = 20_000
"""More bucket folders than this make planning in the JVM slower than reading in tasks."""

MAX_BITMAP_ROWS = 1 << 28
"""The rows of files with deletion vectors that Spark's reader gets: the driver has a bit of each, 32 MiB."""
MAX_SCAN_ROWS = 1 << 25
"""Those of one scan, about: each of its tasks has a bit of each, 4 MiB."""

_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_READER_OPTIONS = {
    # a session that ignores broken files would lose rows silently
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_OF_MANIFEST: Mapping[str, tuple[DataType, Callable[[DataFile], Any]]] = {
    FILE_NAME: (FILE_NAME_FIELD.type, lambda f: f.file_name),
    ROW_ID: (AtomicType("BIGINT"), lambda f: f.first_row_id),
    SEQUENCE_NUMBER: (AtomicType("BIGINT"), lambda f: f.max_sequence_number),
}
_PLACED = frozenset((ROW_ID, FILE_POSITION))
"""Columns that a row's place in its file decides."""
_HIDDEN = frozenset((ROW_INDEX.name, *(n.lower() for n in ROW_COLUMNS)))
"""Names, in lower case, that Spark's reader fills in or files hold besides the table's columns."""
_WIDER = {
    "TINYINT": ("SMALLINT", "INT", "BIGINT"),
    "SMALLINT": ("INT", "BIGINT"),
    "INT": ("BIGINT",),
    "FLOAT": ("DOUBLE",),
}


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file that needs no merging, the partition it belongs to, and its deleted rows, if it has any."""

    values: tuple[Any, ...]
    folder: str
    file: DataFile
    deleted: Positions | None = None


class ScanGroup(NamedTuple):
    """``vectors``: which of the scans of files with deleted rows; 0 without. ``row_columns``: those that are asked for
    and that the files store.
    """

    schema: int
    vectors: int
    row_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a read: files for Spark's reader, by what one scan of them has in common, and splits for our
    reader.
    """

    native: Mapping[ScanGroup, Sequence[RawFile]]
    merged: Sequence[ReadSplit]


def divide(spark: SparkSession, read: TableRead, splits: Sequence[ReadSplit]) -> Division:
    """Find the files that Spark's reader reads correctly."""
    root = _hadoop_root(spark, read.store.uri)
    if root is None or read.kinds or not _names_are_clear(read.schema):
        return Division({}, [part for split in splits for part in split.divided()])
    readable = {i: _is_readable(read, schema) for i, schema in read.schemas.items()}
    # engines that don't know partition.legacy-name put files into other folders; our own reader looks there as well
    elsewhere = bool(read.schema.partition_keys) and not TableOptions(read.schema.options).legacy_partition_name
    looked_up = elsewhere or not read.store.remote  # on a local disk the look refuses symbolic links
    folders: set[str] = set()
    native: dict[ScanGroup, list[RawFile]] = {}
    row_columns = {f.name for f in read.fields if _is_row_column(read, f)}
    merged = []
    vectors = _VectorsInReach(read)
    for part in (part for split in splits for part in split.divided()):
        files = part.files
        folder = _folder(read, part)
        folders.add(folder)
        fits = all(s.is_raw for s in part.sections) and len(folders) <= MAX_FOLDERS
        fits = fits and all(readable[f.schema_id] and _is_plain(f) for f in files)
        there = [read.store.exists(f"{folder}/{f.file_name}") for f in files] if fits and looked_up else []
        fits = fits and (not elsewhere or all(there))
        if fits and vectors.take(part):
            for file in files:
                found = RawFile(part.bucket.values, f"{root}/{folder}", file)
                stored = tuple(f.name for f in stored_row_fields(file) if f.name in row_columns)
                scan = vectors.scans.get(file.file_name, 0)
                native.setdefault(ScanGroup(file.schema_id, scan, stored), []).append(found)
        else:
            merged.append(part)
    return Division({key: vectors.put_in(files) if key.vectors else files for key, files in native.items()}, merged)


class _VectorsInReach:
    """The deletion vectors of the files that Spark's reader gets: as many as their bitmaps may take memory.

    ``scans``: which of the scans with vectors gets a file, by its name.
    """

    def __init__(self, read: TableRead) -> None:
        self._read = read
        self._taken: dict[str, DeletionVectorPlace] = {}
        self.scans: dict[str, int] = {}
        self._rows = 0

    def take(self, part: ReadSplit) -> bool:
        """Return whether Spark's reader can leave out the deleted rows of a split."""
        if not part.deletions:
            return True
        names = {where.data_file for _, where in part.deletions}
        rows = sum(f.row_count for f in part.files if f.file_name in names)
        if self._rows + rows > MAX_BITMAP_ROWS:
            return False
        self.scans |= dict.fromkeys(names, 1 + self._rows // MAX_SCAN_ROWS)
        self._rows += rows
        self._taken |= {where.data_file: (path, where) for path, where in part.deletions}
        return True

    def put_in(self, files: Sequence[RawFile]) -> list[RawFile]:
        """Read the vectors of these files."""
        found = load_deletions(self._read.store, [self._taken[f.file.file_name] for f in files])
        return [replace(f, deleted=found[f.file.file_name]) for f in files]


def _folder(read: TableRead, part: ReadSplit) -> str:
    path = data_file_path(read.schema, part.bucket.values, part.bucket.bucket, part.files[0])
    return path.rpartition("/")[0]


def _hadoop_root(spark: SparkSession, uri: str) -> str | None:
    """Return the table's folder as a Hadoop path; None if Spark's reader can't be used.

    An object store is Hadoop's only where the cluster has its file system and gets in with credentials of its own.
    """
    if not has_jvm(spark) or "\n" in uri or not has_parquet_scan(spark):  # paths are passed in lines
        return None
    scheme, _, rest = uri.partition(":")
    if scheme == "file":
        return "file:" + rest.removeprefix("//").rstrip("/")
    for name in ("s3a", "s3") if scheme in ("s3", "s3a") else (scheme,):
        root = f"{name}:{rest}".rstrip("/")
        if _is_reachable(spark, name, root):
            return root
    return None


def _is_reachable(spark: SparkSession, scheme: str, root: str) -> bool:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        files.FileSystem.getFileSystemClass(scheme, conf)
        path = files.Path(root)
        return bool(path.getFileSystem(conf).exists(path))
    except Py4JJavaError as error:
        log.info("Spark's own reader is not used for %s: %s", root, str(error.java_exception).splitlines()[0])
        return False


def _names_are_clear(schema: TableSchema) -> bool:
    """Spark matches columns regardless of case, so names that differ only in case would be mixed up, also with those of
    ``_HIDDEN``.
    """
    names = {n.lower() for n in schema.field_names}
    return len(names) == len(schema.fields) and names.isdisjoint(_HIDDEN)


def _is_readable(read: TableRead, written: TableSchema) -> bool:
    by_id = {f.id: f for f in written.fields}
    constants = set(read.schema.partition_keys)
    stored = [f for f in read.fields if f.name not in constants and f.name not in (FILE_NAME, FILE_POSITION)]
    return _names_are_clear(written) and all(
        _is_row_column(read, f) or (f.name in read.schema.field_names and _fits(by_id.get(f.id), f)) for f in stored
    )


def _is_row_column(read: TableRead, field: DataField) -> bool:
    return field.name in ROW_COLUMNS and field.name not in read.schema.field_names


def _fits(source: DataField | None, target: DataField) -> bool:
    """Return whether Spark reads the same values of a column as our reader."""
    if not _is_exact(target.type):
        return False
    if source is None:
        return True
    if isinstance(source.type, AtomicType) and isinstance(target.type, AtomicType):
        is_wider = target.type.root in _WIDER.get(source.type.root, ())
        is_same = (source.type.root, source.type.args) == (target.type.root, target.type.args)
        return _is_exact(source.type) and (is_wider or is_same)
    return arrow_type(source.type) == arrow_type(target.type) and nested_ids(source.type) == nested_ids(target.type)


def _is_exact(data_type: DataType) -> bool:
    """TIME has no Spark type, and timestamps finer than microseconds are INT96, which Spark reads as instants."""
    return all(t.root != "TIME" for t in types_within(data_type)) and not is_finer_than_micros(data_type)


def _is_plain(file: DataFile) -> bool:
    """Spark skips files whose names start like those of temporary files."""
    return file_format(file.file_name) == "parquet" and not file.file_name.startswith(("_", "."))


def native_frame(spark: SparkSession, read: TableRead, group: ScanGroup, files: Sequence[RawFile]) -> DataFrame:
    """Read the files of one group, as the columns of ``read``.

    Raises:
        FormatError: a file is missing, or is not as long as the manifest says.
        NoParquetScanError: Spark's reader can't be used.
    """
    from pyspark.sql import functions as sf

    by_id = {f.id: f for f in read.schemas[group.schema].fields}
    fields = {f.name for f in read.fields}
    constants = _constants(read, group, files)
    own = [f for f in read.fields if f.name in group.row_columns]
    sources = [by_id[f.id] for f in read.fields if f.id in by_id and f.name not in constants]
    unplaced = {*read.schema.field_names, *({ROW_ID} - constants.keys())}
    position = [ROW_INDEX] if group.vectors or (fields - unplaced) & _PLACED else []
    stored = [*sources, *own, *position]
    prefix = _unused_prefix(f.name for f in stored)
    values = {f"{prefix} {name}": c for name, c in constants.items()}
    if group.vectors:  # by its file's number a row's bitmap is found
        values[prefix] = _Constant(AtomicType("INT"), pa.array(range(len(files)), pa.int32()))
    frame = _relation(spark, read, stored, files, values)
    if group.vectors:
        frame = without_deleted(frame, prefix, [f.deleted for f in files])
    columns: list[str | Column] = []
    for field in read.fields:
        source = by_id.get(field.id)
        if _is_row_column(read, field):
            known = constants.get(field.name)
            constant = known and f"{prefix} {field.name}"
            complete = known is not None and not known.values.null_count
            column = row_column(field.name, constant, stored=field in own, complete=complete)
        elif field.name == FILE_POSITION:
            column = sf.col(ROW_INDEX.name)
        elif field.name in constants:
            column = sf.col(sql_name(f"{prefix} {field.name}"))
        elif source is None:
            column = sf.lit(None).cast(spark_type(field.type))
        elif source.name == field.name and spark_type(source.type) == spark_type(field.type):
            columns.append(sql_name(field.name))  # a Column is several calls of the JVM, a name is one
            continue
        else:
            column = sf.col(sql_name(source.name)).cast(spark_type(field.type))
        columns.append(column.alias(field.name, metadata=metadata_of(field)))
    return frame.select(*columns)


class _Constant(NamedTuple):
    """A column that has one value in each file. ``values``: of the files, in their order."""

    type: DataType
    values: pa.Array


def _constants(read: TableRead, group: ScanGroup, files: Sequence[RawFile]) -> dict[str, _Constant]:
    """Return what is asked for and the same for all rows of a file. For ids and versions of rows these are the file's
    first id and its version, where the manifest has it of a file or the files have no such column.
    """
    found = {}
    fields = {f.name: f for f in read.fields}
    for place, field in enumerate(read.schema.partition_fields):
        if field.name in fields:
            found[field.name] = _Constant(field.type, _column([f.values[place] for f in files], field.type))
    for name in fields.keys() & (_OF_MANIFEST.keys() - set(read.schema.field_names)):
        kind, value_of = _OF_MANIFEST[name]
        values = pa.array([value_of(f.file) for f in files], arrow_type(kind))
        if name not in group.row_columns or values.null_count < len(values):
            found[name] = _Constant(kind, values)
    return found


def _column(values: Sequence[Any], kind: DataType) -> pa.Array:
    places: dict[Any, int] = {}
    distinct: list[pa.Array] = []
    for value in values:
        if places.setdefault(comparable(value), len(places)) == len(distinct):
            distinct.append(repeated(value, _cut_off(kind), 1))
    return pa.concat_arrays(distinct).take(pa.array([places[comparable(v)] for v in values]))


def _unused_prefix(names: Iterable[str]) -> str:
    """Return how no column's name begins: Spark would take a constant for a column of the same name."""
    prefix, known = "constant", [n.lower() for n in names]
    while any(n.startswith(prefix) for n in known):
        prefix += "_"
    return prefix


def _relation(
    spark: SparkSession,
    read: TableRead,
    sources: Sequence[DataField],
    files: Sequence[RawFile],
    constants: Mapping[str, _Constant],
) -> DataFrame:
    from pyspark.sql import DataFrame

    fields = [DataField(i, name, _cut_off(c.type)) for i, (name, c) in enumerate(constants.items())]
    values = pa.RecordBatch.from_arrays([c.values for c in constants.values()], schema=arrow_schema(fields))
    values = pa.Table.from_batches([to_shipped(values, shipped_schema(fields))])
    schema, paths = spark_schema(sources), [f"{f.folder}/{f.file.file_name}" for f in files]
    # Spark looks at more than 32 paths in a job of its own, with a task for each path.
    with temporary_conf(spark, {_LISTING_TASKS: str(spark.sparkContext.defaultParallelism)}):
        relation = parquet_relation(spark, paths, schema, _READER_OPTIONS, values, spark_schema(fields))
    _check_listing(read, relation.location(), files)
    check_values(relation, len(files))
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def _cut_off(kind: DataType) -> DataType:
    """Return the type whose values Spark gets: as nanoseconds, Arrow has no year 9999."""
    return replace(kind, args=(6,)) if isinstance(kind, AtomicType) and is_finer_than_micros(kind) else kind


def _check_listing(read: TableRead, index: Any, files: Sequence[RawFile]) -> None:
    """Check that the manifest's files exist, as Spark skips missing paths."""
    expected = sum(f.file.file_size for f in files)
    if index.allFiles().size() == len(files) and index.sizeInBytes() == expected:
        return
    there = {str(status.getPath().getName()): status.getLen() for status in sequence_items(index.allFiles())}
    for file in (f.file for f in files):
        size = there.get(file.file_name)
        if size != file.file_size:
            what = "is missing" if size is None else f"has {size} bytes instead of {file.file_size}"
            raise FormatError(f"{read.label}: data file {file.file_name} {what}; run check_table")
