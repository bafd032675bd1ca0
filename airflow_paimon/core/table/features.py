"""Table features that the built-in engine does not read or write: refused by name instead of giving wrong rows.

The checks use the schema's options and types, the snapshot's index entries and the files' own fields. Options that
do not affect a batch read or a batch write (file indexes, compaction and expiry settings, ...) are ignored. Each check
raises ``UnsupportedFeatureError``, which names the table, the option and the way out.

See docs/contributing/format.md, What is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.types import AtomicType, types_within
from airflow_paimon.core.table.bucket import function_problem
from airflow_paimon.core.table.known_options import find_option
from airflow_paimon.core.table.merge_options import aggregate_problems, group_faults
from airflow_paimon.core.table.options import READ_TOGETHER, TableOptions
from airflow_paimon.core.table.paths import POSTPONED_BUCKET

DATA_FILE_FORMATS = frozenset({"parquet", "orc", "avro"})
"""File formats that are read, by the file name's extension."""

_CONNECTOR = "use Paimon's own Spark connector (correct_branch: engine='connector')"
_NEW_TABLE = "copy the rows to a new table"
_EVOLUTION = "data-evolution.enabled"
_EVOLVING = (
    "change a branch with UPDATE or MERGE INTO in a Spark session with Paimon's own connector, and publish it with "
    "merge_branch"
)
POSTPONED_WAY_OUT = (
    "write the new versions of the rows to main with INSERT INTO of Paimon's own engines, whose compaction makes them "
    "visible"
)
_KNOWN_TYPES = frozenset({
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "CHAR", "VARCHAR", "STRING",
    "BINARY", "VARBINARY", "BYTES", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "ARRAY", "MAP", "ROW",
})  # fmt: skip
SNAPSHOT_ORDERING = "sequence.snapshot-ordering"
_CLUSTERING = ("clustering.incremental", "clustering.columns")
_CLUSTERED, _MERGE_ON_READ = "pk-clustering-override", "deletion-vectors.merge-on-read"
_SCAN_MODES = frozenset({"default", "full", "latest", "latest-full"})
_INDEXES = frozenset({
    "deletion_vectors", "hash",
    "bitmap", "btree", "full-text", "lucene", "lumina", "faiss", "ivf-pq", "tantivy-fulltext",
})  # fmt: skip
"""Those that are handled, and global indexes of releases up to 2.0."""

Problem = tuple[str, str]
"""The unsupported feature, and the way out."""

_UNFINISHED_CHAIN = (
    "a chain table whose set-up is not finished (chain-table.enabled without the names of both branches)",
    "create its branches and set scan.fallback-snapshot-branch and scan.fallback-delta-branch in main and in both of "
    "them, or run create_chain_table",
)
_CHAIN_MAIN = "the main branch of a chain table (option chain-table.enabled)", "read its branches one by one"


def check_readable(
    schema: TableSchema,
    *,
    table: str,
    time_travel: bool = False,
    layered: bool = False,
    chained: bool = False,
    branch: str = "main",
) -> None:
    """Refuse a table for which the built-in engine could return wrong rows.

    ``time_travel``: the read names its snapshot, so a starting point stored in the schema has no effect.
    ``layered``: the caller handles ``scan.fallback-branch`` / ``scan.primary-branch`` and reads one layer of it.
    ``chained``: the caller reads the three branches of a chain table together, and this is one of them.
    """
    _refuse(table, "read", _read_problems(schema, time_travel, layered, chained, branch))


def check_writable(
    schema: TableSchema, *, table: str, branch: str = "main", chained: bool = False, by_buckets: bool = False
) -> None:
    """Refuse a table that the built-in engine would write differently from Paimon's own writers.

    ``chained``: the caller writes branches of a chain table as such and handles the effects on the other branches.
    ``by_buckets``: the caller replaces whole buckets by what a full compaction would read of them, with changes.
    """
    _refuse(table, "write", _write_problems(schema, branch, chained, by_buckets))


def check_compactable(schema: TableSchema, *, table: str, branch: str) -> None:
    """Refuse a snapshot branch of a chain table whose full partitions Paimon would store differently.

    They hold merged rows in their final buckets, so the merge engine, the way rows are assigned to
    buckets and deletion vectors have no effect. Full partitions are not changes, so no changelog is written either.
    """
    _refuse(table, "compact", _compact_problems(schema, TableOptions(schema.options), branch))


def check_mergeable(schema: TableSchema, *, table: str, branch: str) -> None:
    """Refuse a primary-key table whose files a compaction would not merge as Paimon's does.

    How rows are assigned to buckets has no effect: they stay in theirs.
    """
    _refuse(table, "compact", _merge_file_problems(schema, branch))


def check_rescalable(schema: TableSchema, *, table: str, branch: str) -> None:
    """Refuse a table whose rows don't lie in a fixed number of buckets, or which this engine would store differently.

    What is written is what a full compaction of the new buckets would leave.
    """
    _refuse(table, "rescale", _rescale_problems(schema, branch))


def check_unclustered(schema: TableSchema, *, table: str) -> None:
    """Refuse an append table whose files Paimon keeps in the order of some columns: a compaction would mix them."""
    options = TableOptions(schema.options)
    found = clustering_options(options)
    way_out = "use Paimon's own compact procedure, which clusters them"
    _refuse(table, "compact", ((f"tables with option {key}={options.text(key)}", way_out) for key in found))


def clustering_options(options: TableOptions) -> list[str]:
    """Return the options by which Paimon keeps the rows of an append table in the order of some columns."""
    return [key for key in _CLUSTERING if options.text(key).lower() not in ("", "false")]


def check_known(snapshots: Iterable[Snapshot | None], *, table: str) -> None:
    """Refuse a commit on top of a snapshot with fields of a later release: some such fields count up from commit to
    commit, as ``nextRowId`` does, and a snapshot without them would begin anew.
    """
    for snapshot in snapshots:
        names = [] if snapshot is None else [k for k, v in snapshot.unknown.items() if v not in _NO_VALUE]
        if snapshot is not None and names:
            raise UnsupportedFeatureError(
                f"{table}: snapshot {snapshot.id} has fields of a later Paimon release ({', '.join(names)}), which a "
                f"commit may have to continue; commit with that release, or upgrade airflow-paimon"
            )


_NO_VALUE: tuple[object, ...] = (None, {}, [], "")
"""Of a field that says nothing, such as ``logOffsets`` of releases before 2.0."""


def check_index(entries: Iterable[IndexEntry], *, table: str) -> None:
    """Refuse index files of a type that may affect which rows are visible."""
    # a global one, by its own fields, only speeds up a scan, whatever its type
    deciding = (e.index_type for e in entries if e.global_index is None)
    strange = sorted({t for t in deciding if t.lower() not in _INDEXES})
    _refuse(table, "read", ((f"index files of type {t!r}", _CONNECTOR) for t in strange))


def check_file(file: DataFile, schema: TableSchema, *, table: str) -> None:
    """Refuse a data file in a layout that is not read here. ``schema`` is the file's own."""
    _refuse(table, "read", _file_problems(file, schema))


def check_numbered(files: Iterable[DataFile], schema: TableSchema, *, table: str) -> None:
    """Refuse files that don't tell whether their rows have the number of the commit or one of their own.

    ``schema``: the schema of the read.
    """
    if TableOptions(schema.options).flag(SNAPSHOT_ORDERING):
        unknown = (f.file_name for f in files if f.file_source is None)
        _refuse(
            table, "read", ((f"files of an unknown source with {SNAPSHOT_ORDERING} ({n})", _CONNECTOR) for n in unknown)
        )


def file_format(file_name: str) -> str:
    """Return the format of a data file, by its extension, as Paimon does."""
    return file_name.rsplit(".", 1)[-1].lower() if "." in file_name else ""


def _refuse(table: str, verb: str, problems: Iterable[Problem]) -> None:
    for what, way_out in problems:
        raise UnsupportedFeatureError(
            f"{table}: the built-in engine does not {verb} {what}; {way_out}",
            details={"feature": what},
        )


def _file_problems(file: DataFile, schema: TableSchema) -> Iterator[Problem]:
    kind = file_format(file.file_name)
    if kind not in DATA_FILE_FORMATS:
        yield f"data files of format {kind!r} ({file.file_name})", _CONNECTOR
    if file.external_path is not None:
        yield f"files outside the table folder (data-file.external-paths: {file.file_name})", _CONNECTOR
    partial = file.write_cols is not None and not set(schema.field_names) <= set(file.write_cols)
    if partial and not TableOptions(schema.options).data_evolution:
        yield f"files with a part of the columns without data-evolution.enabled ({file.file_name})", _CONNECTOR


def _read_problems(
    schema: TableSchema, time_travel: bool, layered: bool, chained: bool, branch: str
) -> Iterator[Problem]:
    options = TableOptions(schema.options)
    if is_chain_main(options, branch) and not chained:
        yield _CHAIN_MAIN
    yield from _table_problems(schema, options, branch)
    yield from _option_problems(options, "read")
    for key in () if time_travel else stored_starts(options):
        yield f"from the stored starting point {key}={options.text(key)}", "name version= or timestamp="
    if options.fallback_branch and options.primary_branch:
        yield "a table that has both scan.fallback-branch and scan.primary-branch", "reset one of them"
    for key in READ_TOGETHER:
        if not layered and options.text(key, branch) != branch:
            yield f"through the layered read of option {key}", "read the branches one by one"
    if schema.primary_keys:
        folds = options.chain_table and options.merge_engine == "partial-update"
        yield from _partial_update_problems(options) if folds else _engine_problems(schema, options)


def _table_problems(schema: TableSchema, options: TableOptions, branch: str) -> Iterator[Problem]:
    """Features that prevent both reads and writes."""
    if options.chain_table and branch == "main" and not all(options.chain_branches):
        yield _UNFINISHED_CHAIN  # Paimon reads main alone, and fails on each commit
    if options.text("type", "table").lower() != "table":
        yield f"tables of type {options.text('type')!r}", "use the engine that made it"
    if options.text("branch", branch) != branch:
        yield f"a table whose stored option branch={options.text('branch')} names another branch", "open that branch"
    for name, data_type in ((f.name, f.type) for f in schema.fields):
        strange = next((t.root for t in types_within(data_type) if t.root not in _KNOWN_TYPES), None)
        if strange:
            yield f"columns of type {strange} (column {name!r})", _CONNECTOR
    for field in schema.key_fields if schema.primary_keys else ():
        if not isinstance(field.type, AtomicType):
            yield f"primary keys of type {field.type.root} (column {field.name!r})", _CONNECTOR
    for key in options.raw:
        if "shredding" in key and options.flag(key):
            yield f"shredded columns (option {key})", _CONNECTOR


def is_chain_main(options: TableOptions, branch: str) -> bool:
    """Return whether Paimon reads this branch as a chain table (docs/chain-tables.md, Set up)."""
    names = options.chain_branches
    return options.chain_table and all(names) and branch.lower() not in {n.lower() for n in names}


def is_chain_part(options: TableOptions, branch: str) -> bool:
    """Return whether this branch is the snapshot or the delta branch of a chain table."""
    return options.chain_table and branch.lower() in {n.lower() for n in options.chain_branches}


def holds_chain_rows(options: TableOptions, branch: str) -> bool:
    """Return whether this branch's deletes hide rows of other partitions: a chain table's snapshot or delta branch, or
    a branch taken from one, which has ``chain-table.enabled`` without their names.
    """
    return options.chain_table and not is_chain_main(options, branch)


def _is_text(schema: TableSchema, name: str) -> bool:
    return name in schema.field_names and schema.field(name).type.root in ("CHAR", "VARCHAR", "STRING")


_MANIFESTS, _DEFAULT_VALUE = "manifest.format", "fields.*.default-value"
_START = "a starting point of reads in the table's own options"
"""The heading of such options in ``known_options.txt``."""
_WAYS_OUT = {
    _EVOLUTION: _EVOLVING,
    _MANIFESTS: "keep Paimon's default, avro",
    _DEFAULT_VALUE: "set the default in the column (ALTER COLUMN ... SET DEFAULT)",
    "scan.bucket": "reset it",
}
_BY_TABLE = frozenset({"branch", "index-file-in-data-file-dir", "write.sequence-number-init-mode"})
"""Refused options that some tables may have."""


def check_manifest_format(options: TableOptions, *, table: str) -> None:
    """Refuse commits to a table whose manifests Paimon writes, and then reads, in another format than Avro."""
    only = TableOptions({key: value for key, value in options.raw.items() if key == _MANIFESTS})
    _refuse(table, "write", _option_problems(only, "write"))


def stored_starts(options: TableOptions) -> list[str]:
    """Return the options of a table that say where its reads start."""
    mode = options.text("scan.mode", "default").lower()
    starts = [key for key in options.raw if (known := find_option(key)) and known.why == _START and options.text(key)]
    return [*starts, *(["scan.mode"] if mode not in _SCAN_MODES else [])]


def _option_problems(options: TableOptions, operation: str) -> Iterator[Problem]:
    """Return the options that an operation refuses by ``known_options.txt``, unless their values are the defaults.

    ``operation``: ``read``, ``write`` or ``compact``.
    """
    for key, value in options.raw.items():
        known = find_option(key)
        if known is None or operation not in known.operations or known.name in _BY_TABLE or known.why == _START:
            continue
        text = value.strip().lower()
        is_set = text not in ("", known.default) and (known.type != "boolean" or text == "true")
        if is_set or known.name == _DEFAULT_VALUE:  # which may be an empty text
            yield f"tables with option {key}={value.strip()}", _WAYS_OUT.get(known.name, _CONNECTOR)


def _engine_problems(schema: TableSchema, options: TableOptions) -> Iterator[Problem]:
    """Merge engines and functions whose result can't be stated here."""
    engine = options.merge_engine
    if engine not in _ENGINES:
        yield f"tables with merge-engine={engine}", _CONNECTOR
    yield from aggregate_problems(schema)
    if engine == "partial-update":
        yield from ((fault, "correct the option") for fault in group_faults(schema))
    if options.flag(_CLUSTERED) and options.flag(_MERGE_ON_READ):
        yield f"tables with both {_CLUSTERED}=true and {_MERGE_ON_READ}=true", _CONNECTOR


_ENGINES = frozenset({"deduplicate", "partial-update", "aggregation", "first-row"})


def _merge_problems(options: TableOptions) -> Iterator[Problem]:
    if options.merge_engine != "deduplicate":
        yield f"tables with merge-engine={options.merge_engine}", _CONNECTOR


def _chain_write_problems(options: TableOptions, chained: bool, by_buckets: bool) -> Iterator[Problem]:
    """With ``by_buckets``: tables whose chain reads would change if a bucket kept one version of each key."""
    if not chained:
        yield "branches of chain tables (option chain-table.enabled)", "use the chain operators"
    if not by_buckets:
        return
    way_out = "write the new versions of the rows with write_arrow or write_table"
    if options.merge_engine == "partial-update":
        # versions folded into one would win, or lose, as one against those of other partitions
        instead = "append the columns that change with write_arrow or write_table, on a branch that is published"
        yield "rows in place in chain tables with merge-engine=partial-update", instead
    if options.ignore_delete:
        yield "rows in place in chain tables with ignore-delete=true, whose reads ignore deletes", way_out
    if options.deletion_vectors:
        yield "rows in place in chain tables with option deletion-vectors.enabled=true", _CONNECTOR
    yield from _changelog_problems(options)


def _producer_problems(options: TableOptions) -> Iterator[Problem]:
    producer = options.text("changelog-producer", "none").lower()
    if producer not in _PRODUCERS:
        yield f"tables with changelog-producer={producer}", _CONNECTOR


def _partial_update_problems(options: TableOptions) -> Iterator[Problem]:
    if options.flag("partial-update.remove-record-on-sequence-group"):
        yield "tables with option partial-update.remove-record-on-sequence-group", _CONNECTOR
    for key in options.raw:
        if key.startswith("fields.") and key.endswith((".sequence-group", "aggregate-function")):
            yield f"partial updates with option {key}", _CONNECTOR


def _write_problems(schema: TableSchema, branch: str, chained: bool, by_buckets: bool) -> Iterator[Problem]:
    options = TableOptions(schema.options)
    if is_chain_main(options, branch) and not chained:
        yield _CHAIN_MAIN[0], "name the branch whose rows are to change, as db.`t$branch_NAME` or in branch (--branch)"
    yield from _table_problems(schema, options, branch)
    yield from _option_problems(options, "write")
    if options.chain_table:
        yield from _chain_write_problems(options, chained, by_buckets)
    if options.bucket > 0 and set(schema.bucket_keys) <= set(schema.field_names):
        function, types = options.bucket_function, [schema.field(n).type for n in schema.bucket_keys]
        if function_problem(function, types) is not None:
            yield f"tables with bucket-function.type={function} and this bucket key", _CONNECTOR
    for field in schema.fields:
        if field.default_value is not None and not isinstance(field.type, AtomicType):
            yield f"default values of nested columns (column {field.name!r})", _CONNECTOR
    yield from _naming_problems(schema, options)
    if options.bucket > 0 and not schema.bucket_keys and not schema.has_keyless_bucket:
        yield f"tables with bucket={options.bucket} but without bucket-key, which no Paimon opens", _NEW_TABLE
    if schema.primary_keys:
        yield from _key_table_write_problems(schema, options, by_buckets)
        yield from _moving_key_problems(schema, options, by_buckets)


def _naming_problems(schema: TableSchema, options: TableOptions) -> Iterator[Problem]:
    """Options that name columns which aren't there, or are of another type."""
    kind = options.given("rowkind.field")
    if kind is not None and schema.primary_keys and not _is_text(schema, kind):
        yield f"tables with rowkind.field={kind}, which is not a string column", "reset it"
    if options.bucket > 0 and (missing := set(schema.bucket_keys) - set(schema.field_names)):
        yield f"tables with bucket-key={options.given('bucket-key')}, as {min(missing)!r} is not a column", _NEW_TABLE


def _compact_problems(schema: TableSchema, options: TableOptions, branch: str) -> Iterator[Problem]:
    yield from _table_problems(schema, options, branch)
    yield from _option_problems(options, "compact")


def _merge_file_problems(schema: TableSchema, branch: str) -> Iterator[Problem]:
    options = TableOptions(schema.options)
    if is_chain_main(options, branch):
        yield "the main branch of a chain table (option chain-table.enabled)", "use compact_chain_table"
    yield from _compact_problems(schema, options, branch)
    yield from _engine_problems(schema, options)
    if options.chain_table:
        yield from _merge_problems(options)
    yield from _producer_problems(options)


def _rescale_problems(schema: TableSchema, branch: str) -> Iterator[Problem]:
    options = TableOptions(schema.options)
    if options.chain_table:
        yield (
            "chain tables (option chain-table.enabled), whose branches need the same number of buckets",
            "make a new chain table with the other number and copy the rows",
        )
    if options.bucket > 0 and not schema.bucket_keys:
        yield "append tables without bucket-key, which have one bucket", _NEW_TABLE
    if options.bucket == -1 and schema.primary_keys:
        yield "tables with dynamic buckets (bucket=-1), which get more as they grow", "use compact"
    if options.bucket == -1:
        yield "append tables without buckets (bucket=-1)", "use compact, which writes small files together"
    if options.bucket < 0:
        yield f"tables with postponed buckets (bucket={options.bucket})", "use Paimon's own procedure sys.rescale"
    if options.row_tracking:
        yield "tables with option row-tracking.enabled=true", "use Paimon's own procedure sys.rescale"
    for key in clustering_options(options):
        yield f"tables with option {key}={options.text(key)}", "use Paimon's own procedure sys.rescale"
    yield from _write_problems(schema, branch, False, True)
    if schema.primary_keys:
        yield from _merge_file_problems(schema, branch)


_PRODUCERS = frozenset({"none", "input", "lookup", "full-compaction"})


def _key_table_write_problems(schema: TableSchema, options: TableOptions, by_buckets: bool) -> Iterator[Problem]:
    if not options.chain_table:
        yield from _engine_problems(schema, options)
    elif options.merge_engine == "partial-update":
        yield from _partial_update_problems(options)
    else:
        yield from _merge_problems(options)
    if options.chain_table and not by_buckets:  # readers would not get appended rows, nor from the compaction after
        yield from _changelog_problems(options)
        if options.deletion_vectors:
            yield "chain tables with option deletion-vectors.enabled=true", _CONNECTOR
    yield from _producer_problems(options)
    if options.text("write.sequence-number-init-mode", "scan").lower() not in ("scan", "file"):
        mode = options.text("write.sequence-number-init-mode")
        yield f"tables with write.sequence-number-init-mode={mode}", _CONNECTOR
    if options.bucket == -1 and options.chain_table:
        yield "chain tables with dynamic buckets (bucket=-1)", "use a fixed number of buckets"
    if options.bucket == -1 and options.flag("index-file-in-data-file-dir"):
        yield "dynamic buckets with option index-file-in-data-file-dir", _CONNECTOR
    if options.bucket == POSTPONED_BUCKET:
        yield "primary-key tables with postponed buckets (bucket=-2)", POSTPONED_WAY_OUT


def _moving_key_problems(schema: TableSchema, options: TableOptions, by_buckets: bool) -> Iterator[Problem]:
    """Tables with one row of a key in all partitions: what an append would have to do in the old partition too."""
    if not schema.crosses_partitions or options.bucket != -1:
        return
    what = "tables whose primary key lacks partition columns, with"
    if options.sequence_fields:  # not allowed by Paimon; it could keep the row in the old partition
        yield f"{what} sequence.field", "reset it"
    if not by_buckets and options.text("changelog-producer", "none").lower() == "input":
        yield f"{what} changelog-producer=input", _CONNECTOR


def _changelog_problems(options: TableOptions) -> Iterator[Problem]:
    producer = options.text("changelog-producer", "none").lower()
    if producer == "input" or (producer != "none" and not options.write_only):
        yield f"tables with changelog-producer={producer} (its changelog would be missing)", _CONNECTOR
