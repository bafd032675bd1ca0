"""What a job does before it starts a Spark session: all checks that need none, and work too small for one.

Imports no pyspark: under plain ``python`` a wrong request is answered in the time that it takes to read the table.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from airflow_paimon.core.chain.guard import is_chain_rows
from airflow_paimon.core.commit.idempotency import once
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.requests.local_execution import ALL, MEMORY_BYTES, NONE, NeedsSparkError
from airflow_paimon.core.requests.operations import names_several
from airflow_paimon.core.requests.requests import (
    CheckBranchData,
    Compact,
    CompactChainTable,
    CorrectBranch,
    DiffBranches,
    EraseRows,
    ReplayBranch,
    Request,
    Rescale,
)
from airflow_paimon.core.sql_text.checks import naming_statement, viewed_columns
from airflow_paimon.core.sql_text.columns import check_columns
from airflow_paimon.core.table.features import check_writable
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data.chain.compact import check_compaction
from airflow_paimon.data.compact import compaction_fits
from airflow_paimon.data.diff.run_diff import small_diff
from airflow_paimon.data.erasure.erase_rows import check_erasure
from airflow_paimon.data.local import rewrite_files
from airflow_paimon.data.rescale import rescale_fits
from airflow_paimon.execution import run_here
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.jobs.check_results import check_before_spark
from airflow_paimon.spark.jobs.correction import branch_to_correct, read_base, read_heads
from airflow_paimon.spark.jobs.correction_sources import as_asked, divided, read_sql
from airflow_paimon.spark.jobs.replay_check import plan_replay, replay_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@cached_reads()
def run_before_spark(request: Request, local: str = ALL, *, without_spark: bool = False) -> OperationResult | None:
    """Check a request as far as that goes without Spark. Gives the result where no session is needed for it, where an
    earlier try of the operation has ended, or where no Spark is installed and this process can do the work.

    ``local``: what this process may do itself, one of ``LOCAL_EXECUTION``. ``without_spark``: no Spark session follows
    here for what this process can't do.

    Raises:
        PaimonError: as the operation does. NeedsSparkError: ``without_spark``, and another process may open the table.
    """
    if names_several(request):
        return run_here(request) if request.dry_run else None
    context = _opened(request) if without_spark else open_context(request)
    return once(context, partial(_run, context, request, local, without_spark), as_asked)


def run_in_session(request: Request, spark: SparkSession | None = None) -> OperationResult:
    """Check a request, do what needs no session, and else run it in ``spark``; None: a session is found or started.

    Raises:
        PaimonError: as the operation does.
    """
    done = run_before_spark(request)
    if done is not None:
        return done
    from pyspark.sql import SparkSession

    return run_spark_operation(spark or SparkSession.builder.getOrCreate(), request)


def _run(context: Context, request: Request, local: str, without_spark: bool) -> OperationResult | None:
    memory = 0 if local == NONE else MEMORY_BYTES
    rewritten = MEMORY_BYTES if local == ALL else 1  # a byte: only what finds nothing to write, which needs no session
    any_size = request.dry_run or (not without_spark and find_spec("pyspark") is None)
    if isinstance(request, CorrectBranch):
        _check_correction(context, request)
    elif isinstance(request, ReplayBranch):
        replay = plan_replay(context, request)
        return replay_result(context, request, replay, {}) if request.dry_run else None
    elif isinstance(request, CompactChainTable):
        check_compaction(context, request)
        return rewrite_files(context, request) if any_size else None
    elif isinstance(request, Compact):
        return rewrite_files(context, request) if compaction_fits(context, request, rewritten) or any_size else None
    elif isinstance(request, Rescale):
        return rewrite_files(context, request) if rescale_fits(context, request, rewritten) or any_size else None
    elif isinstance(request, EraseRows):
        check_erasure(context.table, request)
        return rewrite_files(context, request) if any_size else None
    elif isinstance(request, CheckBranchData):
        return check_before_spark(context, request, memory)
    elif isinstance(request, DiffBranches):
        return small_diff(context, request, memory)
    return None


def _opened(request: Request) -> Context:
    """Open the table.

    Raises:
        NeedsSparkError: it is not in reach of this process. The one that Spark runs may reach it, or has the last word.
    """
    try:
        context = open_context(request)
        context.table.schema()
    except PaimonError as error:
        raise NeedsSparkError(f"the table can't be opened here ({error.message})") from None
    return context


def _check_correction(context: Context, request: CorrectBranch) -> None:
    sql = read_sql(request)
    branch = branch_to_correct(context, request)
    texts = divided(request, sql)
    # Only rows need partitions, not an UPDATE; a text that does not begin with SELECT is left for Spark to parse.
    gives_rows = sql is None or sql.lstrip()[:6].lower() == "select"
    base = (read_base if gives_rows else read_heads)(context, request, branch)
    if request.engine == "embedded":
        name, chained = branch.branch_name, is_chain_rows(branch)
        check_writable(base.schema, table=branch.label, branch=name, chained=chained, by_buckets=True)
    opened = partial(open_table, request.warehouse, storage_options=request.storage_options)
    columns = {
        "branch": base.schema.field_names,
        "main": context.table.schema().field_names,
        **viewed_columns(request.view, opened),
    }
    for at, text in enumerate(texts, 1):
        with naming_statement(at, texts):
            check_columns(text, columns, {"branch": branch.label, "main": f"main of {context.table.name}"})
