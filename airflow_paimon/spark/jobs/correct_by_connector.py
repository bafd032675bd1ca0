"""correct_branch with engine=connector: Paimon's own Spark connector runs one UPDATE, DELETE, MERGE or INSERT.

The statement's target becomes a staging branch that starts from the branch's head, and what the connector commits there
becomes one commit of the branch: a retry finds it, and an interrupted try changes no branch. The views ``branch`` and
``main`` are read by the connector, too, other tables as with the built-in engine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.catalogs.options import CATALOGS, catalog_options
from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.commit.staging import Staging, discard_staging, open_staging, take_over
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError, UnsupportedFeatureError, first_few
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.features import POSTPONED_WAY_OUT
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN, POSTPONED_BUCKET
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import invisible_files
from airflow_paimon.data.files.arrow_types import is_finer_than_micros
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.correct_statement import ALL_ROWS
from airflow_paimon.spark.jobs.correction import CorrectionBase, made_of, properties, read_heads, result_of
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW, MAIN_VIEW
from airflow_paimon.spark.jvm import planned_frame
from airflow_paimon.spark.progress import progress
from airflow_paimon.spark.spark_types import sql_name
from airflow_paimon.spark.statements.insert import is_dynamic
from airflow_paimon.spark.statements.parse import parse_plan, with_target
from airflow_paimon.spark.statements.statement_plan import Statement, check_statement
from airflow_paimon.spark.statements.tables import NamedTables, names_of
from airflow_paimon.spark.statements.views import registered
from airflow_paimon.spark.truncated_times import lossy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXTENSIONS_CONF = "spark.sql.extensions"
EXTENSIONS = "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions"
CATALOG = "org.apache.paimon.spark.SparkCatalog"

_CATALOG_CONF = re.compile(r"spark\.sql\.catalog\.([A-Za-z0-9_]+)")
_MISSING_CLASS = re.compile(r"Cannot find catalog plugin class|CATALOG_PLUGIN_CLASS_NOT_FOUND|NoClassDefFoundError")
_UNCERTAIN = ("sequence.field", "ignore-delete")
"""Parts of the names of options by which the connector drops a change of a row with a primary key without a word."""
_REFUSALS = frozenset({"java.lang.UnsupportedOperationException", "java.lang.IllegalArgumentException"})
_NAMED, _LISTED = 5, 100


def correct_by_connector(
    spark: SparkSession,
    context: Context,
    request: CorrectBranch,
    branch: Table,
    statement: Statement,
    views: Mapping[str, str],
    identity: CommitIdentity,
) -> OperationResult:
    """Run a statement on the branch, as one commit.

    Raises:
        InvalidInputError: what Spark or the connector says is wrong. ConflictError: the branch was written meanwhile.
        UnsupportedFeatureError: the session has no connector, or this kind of table is not supported.
        UnsafeOperationError: rows of the branch wait for a compaction, so the connector can't see them.
    """
    base = read_heads(context, request, branch)
    check_statement(statement, base.schema, all_rows=request.all_rows, flag=ALL_ROWS, dynamic=is_dynamic(spark))
    _check_table(base, statement)
    catalog = _catalog(spark, request)
    made = made_of(request, branch, statement.text)

    def described(removed: Sequence[ManifestEntry], added: Sequence[ManifestEntry]) -> Mapping[str, str]:
        return properties(request, made, {"statement": statement.kind, **base.figures(removed, added)})

    staging = open_staging(branch, base.head, base.schema, request.operation_id, context.now_iso)
    try:
        what = f"correct_branch {branch.label}: {statement.kind}, engine connector"
        branch_rows = _rows(spark, catalog, branch, base.head)
        own = {
            MAIN_VIEW: _rows(spark, catalog, branch.branch(MAIN), base.main_head),
            **dict.fromkeys({BRANCH_VIEW, *names_of(branch, views)}, branch_rows),
        }
        restricted = request.restricted_sql
        tables = NamedTables(spark, request, statement.text, branch, restricted=restricted)
        frames = tables.views(views, own)
        with registered(spark, {**frames, **own}, marked=restricted), progress(spark, what):
            _execute(spark, base, tables, statement, branch_rows, _parts(catalog, staging.view))
        _require_compacted(staging, base)
        taken = take_over(staging, identity=identity, properties=described)
    finally:
        discard_staging(staging.view)
    committed = taken.receipt.snapshot
    if committed is not None and taken.receipt.replayed:
        return result_of(context, request, committed)
    details = {"statement": statement.kind, **base.figures(taken.removed, taken.added)}
    if committed is None:
        details["notes"] = [f"{statement.kind} changed nothing: Paimon's connector committed no change"]
    return base.result(context, request, details, changed=committed is not None, after=committed)


def _execute(
    spark: SparkSession,
    base: CorrectionBase,
    tables: NamedTables,
    statement: Statement,
    branch_rows: DataFrame,
    target: Sequence[str],
) -> None:
    from py4j.protocol import Py4JJavaError

    def own() -> DataFrame:
        return branch_rows

    with query_errors(statement.title):
        try:
            plan = with_target(parse_plan(spark, statement.text), target)
            tables.check(statement, own)
            planned_frame(spark, tables.plan(plan, own, target))
        except Py4JJavaError as error:
            cause = error.java_exception
            if str(cause.getClass().getName()) in _REFUSALS:
                raise InvalidInputError(
                    f"{base.table.label}: Paimon's connector refuses the {statement.kind}: {cause.getMessage()}"
                ) from None
            raise


def _parts(catalog: str, view: Table) -> tuple[str, str, str]:
    """Return the name by which Spark finds a branch: catalog, database, table."""
    database, _, table = view.name.partition(".")
    return catalog, database, table if view.branch_name == MAIN else f"{table}$branch_{view.branch_name}"


def _rows(spark: SparkSession, catalog: str, view: Table, snapshot: Snapshot | None) -> DataFrame:
    """Return the rows of a branch's newest snapshot, as the connector reads them."""
    pinned = {} if snapshot is None else {"scan.snapshot-id": str(snapshot.id)}
    return spark.read.options(**pinned).table(".".join(map(sql_name, _parts(catalog, view))))


def _check_table(base: CorrectionBase, statement: Statement) -> None:
    """Refuse tables that the connector would not change right on a branch, or of which it doesn't see all rows.

    Raises:
        UnsupportedFeatureError: names the option and the way out. UnsafeOperationError: names the partitions.
    """
    options, branch, problem = TableOptions(base.schema.options), base.table, None
    uncertain = [o for o in base.schema.options if any(part in o for part in _UNCERTAIN)]
    if options.chain_table:
        problem = "chain tables (option chain-table.enabled)", "leave engine out: the built-in engine does"
    elif options.flag("data-evolution.enabled"):
        problem = (
            "tables with data-evolution.enabled=true",
            "change the branch with SQL of Paimon's own engine (UPDATE, MERGE INTO), and publish it with merge_branch",
        )
    elif base.schema.primary_keys and options.bucket == POSTPONED_BUCKET:
        problem = "primary-key tables with postponed buckets (bucket=-2)", POSTPONED_WAY_OUT
    elif base.schema.primary_keys and uncertain:
        problem = (
            f"primary-key tables with the option {uncertain[0]}, with which Paimon's connector may ignore a "
            f"{statement.kind}",
            "use engine=embedded",
        )
    if problem is not None:
        raise UnsupportedFeatureError(
            f"{branch.label}: correct_branch with engine=connector does not write {problem[0]}; {problem[1]}",
            details={"feature": problem[0]},
        )
    for field in base.schema.fields:
        if is_finer_than_micros(field.type):  # the connector's rows tell nothing of what it cut off
            raise lossy(branch.label, field.name)
    _require_visible(base)


def _require_visible(base: CorrectionBase) -> None:
    """Refuse a branch with committed rows that no query sees before they are compacted."""
    hidden = invisible_files(live_entries(base.table, base.head).values(), base.schema)
    if not hidden:
        return
    values = StoredPartitions(base.schema).values
    names = sorted({shown_partition(base.schema, values(e.partition)) for e in hidden})
    where = f"partition{'s' * (len(names) > 1)} {first_few(names, _NAMED)}" if names != [""] else "the table"
    rows = sum(e.file.row_count for e in hidden)
    _, database, name = _parts("", base.table)
    raise UnsafeOperationError(
        f"{base.table.label}: {len(hidden)} files of {where} have {rows} uncompacted rows, which no query sees, so a "
        "correction would lose them. Compact the branch first (job compact, or with the connector CALL "
        f"sys.compact(table => '{database}.{sql_name(name)}'))",
        details={"partitions": names[:_LISTED], "files": len(hidden), "rows": rows},
    )


def _require_compacted(staging: Staging, base: CorrectionBase) -> None:
    """Refuse files written by the connector whose rows the branch would not show."""
    before = {e.identifier for e in live_entries(base.table, base.head).values()}
    staged = live_entries(staging.view, staging.view.latest_snapshot()).values()
    hidden = [e for e in invisible_files(staged, base.schema) if e.identifier not in before]
    if hidden:
        raise UnsafeOperationError(
            f"{base.table.label}: Paimon's connector did not compact {len(hidden)} of the files that it wrote, so the "
            f"branch would not show their rows; nothing was published. Remove table options that put compaction off "
            f"(lookup-wait, lookup-compact)"
        )


def with_extensions(known: str | None) -> str:
    """Return the value of ``spark.sql.extensions`` that a session must start with; it can't be set later."""
    names = [n.strip() for n in (known or "").split(",") if n.strip()]
    return ",".join(names if EXTENSIONS in names else [*names, EXTENSIONS])


def _catalog(spark: SparkSession, request: CorrectBranch) -> str:
    """Find the session's Paimon catalog of the request's warehouse, or set one up, and return its name.

    Raises:
        UnsupportedFeatureError: the connector's jar is not on the class path, or its extensions are not switched on.
        InvalidInputError: the warehouse is on an object store, and no catalog says how to reach it.
    """
    metastore = catalog_options(request.storage_options).kind
    if metastore != CATALOGS[0]:
        raise UnsupportedFeatureError(
            f"{request.table}: engine=connector works on tables of filesystem catalogs, and this one is in a "
            f"{metastore} catalog; leave the engine out"
        )
    settings = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    name = configured(settings, request.warehouse) or _set_up(spark, request)
    _require_connector(spark, name, request)
    if EXTENSIONS not in settings.get(EXTENSIONS_CONF, ""):
        raise UnsupportedFeatureError(
            f"{request.table}: engine=connector needs {EXTENSIONS_CONF}={EXTENSIONS}, set before the Spark session "
            f"starts"
        )
    return name


def configured(settings: Mapping[str, str], warehouse: str) -> str | None:
    """Find the filesystem catalog of a warehouse among a session's settings."""
    for key, value in sorted(settings.items()):
        found = _CATALOG_CONF.fullmatch(key)
        if found is None or value != CATALOG or settings.get(f"{key}.metastore", "filesystem") != "filesystem":
            continue
        if _folder(settings.get(f"{key}.warehouse", "")) == _folder(warehouse):
            return found[1]
    return None


def _folder(warehouse: str) -> str:
    return re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:/*", "/", warehouse)).rstrip("/")


def _set_up(spark: SparkSession, request: CorrectBranch) -> str:
    path = _folder(request.warehouse)
    if "://" in path:
        raise InvalidInputError(
            f"{request.table}: engine=connector needs a catalog of the session for {path}: set "
            f"spark.sql.catalog.paimon={CATALOG}, its .warehouse={path} and the storage's settings (.s3.endpoint, "
            "...), and add the storage's jar (paimon-s3, ...)"
        )
    name = f"airflow_paimon_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spark.conf.set(f"spark.sql.catalog.{name}", CATALOG)
    spark.conf.set(f"spark.sql.catalog.{name}.warehouse", f"file:{path}")
    # it would create a missing database "default"
    spark.conf.set(f"spark.sql.catalog.{name}.defaultDatabase", request.table.partition(".")[0])
    # commits of the core must be visible at once
    spark.conf.set(f"spark.sql.catalog.{name}.cache-enabled", "false")
    return name


def _require_connector(spark: SparkSession, name: str, request: CorrectBranch) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        spark.sql(f"SHOW NAMESPACES IN `{name}`").collect()
    except (Py4JJavaError, PySparkException) as error:
        if not _MISSING_CLASS.search(str(error)):
            raise
        raise UnsupportedFeatureError(
            f"{request.table}: engine=connector needs Paimon's Spark connector on the session's class path. Add the "
            f"Maven artifact {artifact(spark.version)} as a package or jar (operators: spark_options={{'packages': "
            "...}), or use engine=embedded"
        ) from None


def artifact(spark_version: str) -> str:
    """Return the connector's Maven artifact for a version of Spark."""
    line = ".".join(spark_version.split(".")[:2])
    if line.startswith("3."):
        return f"org.apache.paimon:paimon-spark-{line}_2.12 (before Paimon 1.1 org.apache.paimon:paimon-spark-{line})"
    return f"org.apache.paimon:paimon-spark-{line}_2.13"
