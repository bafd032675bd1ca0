"""What every job does around its operation: strict flags in, one line of JSON out, the exit code from the error tree.

Stdout carries the result alone; everything else that is printed goes to stderr. Spark starts only where the operation
needs it: a metadata-only job run by plain ``python`` starts no JVM and imports no pyspark.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import json
import logging
import math
import os
import select
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.errors import (
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsupportedFeatureError,
    UnsupportedStorageError,
)
from airflow_paimon.core.garbage import collect_seldom
from airflow_paimon.core.requests.arguments import (
    NEEDS_SPARK,
    RESULT_URI,
    SESSION_IS_READY,
    STORAGE_OPTIONS,
    STORAGE_OPTIONS_ONCE,
    JobArguments,
    parse_arguments,
    peek,
    read_storage_options,
)
from airflow_paimon.core.requests.context import OperationResult, failure_json, running_in_spark
from airflow_paimon.core.requests.local_execution import MEMORY_BYTES, NONE, NeedsSparkError
from airflow_paimon.core.requests.operations import operation_of
from airflow_paimon.core.requests.printed import printable
from airflow_paimon.core.requests.requests import CheckBranchData, CorrectBranch, Request
from airflow_paimon.core.store.secrets import secret_values
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.table_sets import same_versions
from airflow_paimon.execution import run_operation
from airflow_paimon.spark.connect import connect_session, uses_connect

log = logging.getLogger("airflow_paimon")


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job ends with: the result as plain JSON values, and the exit code."""

    result: Mapping[str, Any]
    exit_code: int


_OTHERWISE_IN_SPARK = (StorageError, UnsupportedStorageError, MemoryError, ModuleNotFoundError)
"""What may fail in this process alone: on another machine, or spread over tasks, the same work may succeed."""


_PARENT_POLL_MS = 1000


class _Terminated(BaseException):
    """SIGTERM or SIGINT arrived. No ``Exception``: nothing that handles failures may swallow it."""


def main(operation: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run one operation as a program: parse, run, print the result as the last line on stdout, exit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--help" in arguments or "-h" in arguments:
        parse_arguments(operation, ["--help"])
    collect_seldom()
    stdout = _claim_stdout()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        _end_with_parent()
    formatter = _start_log()
    outcome = _run_job(operation, arguments, formatter)
    try:
        with os.fdopen(stdout, "w", encoding="utf-8") as stream:
            stream.write((_for_reading if stream.isatty() else _as_text)(outcome.result) + "\n")
    except OSError as error:
        log.error("The result can't be printed: %s", error)
        sys.exit(outcome.exit_code or OutcomeUnknownError.exit_code)
    sys.exit(outcome.exit_code)


class _MaskingFormatter(logging.Formatter):
    """Masks secrets of the storage options, in tracebacks too: Airflow does not mask a cluster's log. What would steer
    a terminal is spelled out.
    """

    secrets: Sequence[str] = ()

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return printable(text)


def _start_log() -> _MaskingFormatter:
    formatter = _MaskingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return formatter


def _run_job(operation: str, argv: Sequence[str], formatter: _MaskingFormatter) -> JobOutcome:
    try:
        arguments = parse_arguments(operation, argv)
        destination = _destination(arguments.result_uri, arguments.request.storage_options)
    except PaimonError as error:
        return _rejected(operation, argv, error)
    request = arguments.request
    formatter.secrets = secret_values(request.storage_options)
    outcome = _run(arguments)
    outcome = JobOutcome(_without_secrets(outcome.result, request.storage_options), outcome.exit_code)
    if destination is None:
        return outcome
    return _report(arguments, destination, outcome)


def _run(arguments: JobArguments) -> JobOutcome:
    request, started = arguments.request, time.monotonic()
    try:
        _on_signals(_terminate)
        try:
            result = _run_operation(arguments)
        finally:
            # From here on there is a result to report, and that takes no time.
            _on_signals(signal.SIG_IGN)
    except (_Terminated, KeyboardInterrupt):
        interrupted = OutcomeUnknownError(
            f"{request.operation} was stopped by a signal while it ran: the commit may have succeeded. Run it again "
            f"with the same operation id, which checks first"
        )
        return _failure(request, interrupted)
    except NeedsSparkError as error:
        return _needs_spark(request, str(error))
    except Exception as error:  # the last line is a result, whatever went wrong; the traceback goes to stderr
        if arguments.without_spark and isinstance(error, _OTHERWISE_IN_SPARK):
            return _needs_spark(request, f"{type(error).__name__} here: {error}")
        return _failed(request, error)
    timed = dataclasses.replace(result, duration_s=time.monotonic() - started)
    return JobOutcome(timed.to_json(), 0)


def _needs_spark(request: Request, why: str) -> JobOutcome:
    log.info("%s of %s needs Spark: %s", request.operation, request.table, why)
    return JobOutcome({"operation": request.operation, "table": request.table, "needs_spark": why}, NEEDS_SPARK)


_WITHOUT_SPARK = "Small compactions and rescales need no Spark: local_execution (--local-execution) all"


def _failed(request: Request, error: Exception) -> JobOutcome:
    missing = None
    if isinstance(error, ModuleNotFoundError):
        needed = "a cluster needs pyarrow, numpy, fsspec, fastavro and, below Python 3.14, backports.zstd"
        if error.name in ("pyspark", "py4j"):
            needed = f"{request.operation} runs in Spark (pip install pyspark), or submit the job with spark-submit. "
            needed += _WITHOUT_SPARK
        missing = UnsupportedFeatureError(
            f"The Python that runs this job ({sys.executable}) has no package {error.name}; install it there: {needed}"
        )
    elif "[JAVA_GATEWAY_EXITED]" in str(error):
        missing = UnsupportedFeatureError(
            f"{request.operation} runs in Spark, which could not be started here: it needs Java (JAVA_HOME; the log "
            f"has Spark's own message), or submit the job with spark-submit. {_WITHOUT_SPARK}"
        )
    elif isinstance(error, PaimonError):
        log.error("%s of %s failed (%s): %s", request.operation, request.table, error.kind, error.message)
        return _failure(request, error)
    log.exception("%s failed", request.operation)
    return _failure(request, missing or error)


def _failure(request: Request, error: Exception) -> JobOutcome:
    code = error.exit_code if isinstance(error, PaimonError) else PaimonError.exit_code
    return JobOutcome(failure_json(request.operation, request.table, error), code)


class _NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not needed here", name=name)


@contextmanager
def _without_pandas(request: Request) -> Iterator[None]:
    """Leave pandas out unless a function of the user may run here: importing it is a tenth of a small job.

    PyArrow and PySpark import it where it is installed, only to recognise its objects, and go on without it. Python
    workers are not affected.
    """
    runs_functions = getattr(request, "function", None) is not None or isinstance(request, CheckBranchData)
    if runs_functions or uses_connect():  # a Connect client needs it
        yield
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@verified_commits()
@same_versions()
@cached_reads()
def _run_operation(arguments: JobArguments) -> OperationResult:
    request = arguments.request
    with _without_pandas(request), running_in_spark() if _is_submitted() else nullcontext():
        needs_spark = operation_of(request.operation).needs_spark
        if not _in_yarn_cluster():
            done = _run_before_spark(arguments) if needs_spark else run_operation(request)
            if done is not None:
                return done
        from airflow_paimon.spark.jobs import run_spark_operation

        spark = _session(request)
        try:
            return run_spark_operation(spark, request) if needs_spark else run_operation(request)
        finally:
            _stop(spark)


def _run_before_spark(arguments: JobArguments) -> OperationResult | None:
    from airflow_paimon.spark.jobs.before_spark import run_before_spark

    # Of a submitted job this process does nothing itself: whoever submits it wants Spark.
    local = NONE if _is_submitted() else arguments.local_execution
    done = run_before_spark(arguments.request, local, without_spark=arguments.without_spark)
    if done is None and arguments.without_spark:
        raise NeedsSparkError(f"it is more than {MEMORY_BYTES >> 20:,} MiB allow, or Spark's own work")
    return done


def _is_submitted() -> bool:
    """Whether ``spark-submit`` has started this process, or a Spark Connect server does its work."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or uses_connect()


def _stop(spark: Any) -> None:
    """Stop the session. A JVM that is gone by then takes no result with it: the work is committed, or it failed."""
    try:
        spark.stop()
    except Exception as error:  # py4j raises many kinds for a dead JVM
        log.warning("The Spark session could not be stopped: %s: %s", type(error).__name__, error)


def _session(request: Request) -> Any:
    from pyspark.sql import SparkSession

    name = f"airflow-paimon {request.operation} {request.table}"
    if uses_connect():
        return connect_session(request, name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ and "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        from airflow_paimon.spark.java import find_java

        if (home := find_java(Path(".java"))) is not None:
            os.environ["JAVA_HOME"] = str(home)
    builder = SparkSession.builder.appName(name)
    _configure(builder, request)
    spark = builder.getOrCreate()
    log.info(SESSION_IS_READY)
    if spark.conf.get("spark.log.level", None) is None:
        # Spark's own progress is thousands of lines, each of which an Airflow task would log; ours is logged anyway.
        spark.sparkContext.setLogLevel("WARN")
    return spark


def _configure(builder: Any, request: Request) -> None:
    """Complete the settings of ``spark-submit`` and of the cluster, which are the JVM's."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    conf = SparkConf()
    if not conf.contains("spark.pyspark.python"):
        os.environ.update(default_python(os.environ, conf.get("spark.master", None) or "local[*]"))
    if isinstance(request, CorrectBranch) and request.engine == "connector":
        from airflow_paimon.spark.jobs.correct_by_connector import EXTENSIONS_CONF, with_extensions

        # no session takes extensions later
        builder.config(EXTENSIONS_CONF, with_extensions(conf.get(EXTENSIONS_CONF, None)))
    if (conf.get("spark.master", None) or "local").startswith("local") and not conf.contains("spark.ui.enabled"):
        # a web UI is a tenth of what a session's start costs
        builder.config("spark.ui.enabled", "false")


def default_python(environment: Mapping[str, str], master: str) -> dict[str, str]:
    """Return the variables that make a local master's tasks run in this Python; none if one is configured.

    Spark's default is the first ``python3`` of the PATH.
    """
    if not master.startswith("local") or "PYSPARK_PYTHON" in environment:
        return {}
    return {n: sys.executable for n in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if n not in environment}


def _in_yarn_cluster() -> bool:
    # YARN's application master fails an application that ends without having made a Spark context.
    return "APPLICATION_WEB_PROXY_BASE" in os.environ and "PYSPARK_GATEWAY_PORT" in os.environ


def _rejected(operation: str, argv: Sequence[str], error: PaimonError) -> JobOutcome:
    """Report arguments that can't be used; the result file is written where that is still possible."""
    outcome = JobOutcome(failure_json(operation, peek(argv, "table") or "", error), error.exit_code)
    log.error("%s refused (%s): %s", operation, error.kind, error.message)
    if not peek(argv, RESULT_URI):
        return outcome
    try:
        options_file = peek(argv, STORAGE_OPTIONS) or peek(argv, STORAGE_OPTIONS_ONCE)
        options = read_storage_options(options_file) if options_file else None
        destination = _destination(peek(argv, RESULT_URI), options)
        if destination is not None:
            destination.write(outcome)
    except PaimonError as second:
        log.error("The result file can't be written: %s", second.message)
    return outcome


@dataclass(frozen=True, slots=True)
class _Destination:
    """The result file: complete or not there at all (a rename on local disks, one put on object stores)."""

    store: Any
    name: str

    def write(self, outcome: JobOutcome) -> None:
        self.store.replace(self.name, _as_text(outcome.result).encode())


def _destination(uri: str | None, storage_options: Mapping[str, Any] | None) -> _Destination | None:
    if uri is None:
        return None
    from airflow_paimon.core.catalogs.opening import file_place

    return _Destination(*file_place(uri, storage_options, "--result-uri"))


def _report(arguments: JobArguments, destination: _Destination, outcome: JobOutcome) -> JobOutcome:
    request = arguments.request
    try:
        destination.write(outcome)
    except PaimonError as error:
        log.error("The result file %s can't be written: %s", arguments.result_uri, error.message)
        if outcome.exit_code:
            return outcome
        failure: PaimonError = OutcomeUnknownError(
            f"{request.operation} is done, but its result could not be written to {arguments.result_uri}: "
            f"{error.message}. Run it again with the same operation id, which gives that result",
            details={"result": dict(outcome.result)},
        )
        if request.dry_run:
            failure = StorageError(f"The result could not be written to {arguments.result_uri}: {error.message}")
        return _failure(request, failure)
    return outcome


def _without_secrets(result: Mapping[str, Any], storage_options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Mask secrets of the storage options that an error message of a storage client may quote."""
    secrets = secret_values(storage_options)
    if not secrets:
        return result
    text = _as_text(result)
    for secret in secrets:
        text = text.replace(json.dumps(secret)[1:-1], "***")
    masked: dict[str, Any] = json.loads(text)
    return masked


def _as_text(result: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a result as strict JSON, on one line. Values that JSON doesn't have, such as NaN, become texts."""
    return json.dumps(_plain(result), ensure_ascii=True, allow_nan=False, default=str, indent=indent)


def _for_reading(result: Mapping[str, Any]) -> str:
    """Return a result for a terminal, whose user sees the end of it: the long ``details`` come first."""
    details = {name: value for name, value in result.items() if name == "details"}
    return _as_text({**details, **result}, indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _claim_stdout() -> int:
    """Keep stdout for the result; what anything else prints, the JVM included, goes to stderr. Gives its descriptor."""
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor


def _on_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _terminate(number: int, frame: object) -> NoReturn:
    raise _Terminated


def _end_with_parent() -> None:
    """Watch the parent in a daemon thread and kill this process (SIGKILL) when it is gone.

    For a driver that ``spark-submit`` started: its stdin is a pipe that the JVM holds, so even a parent that ended
    before this call is noticed. Nothing is read from it.
    """
    poll = select.poll()
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        poll.register(0, 0)  # POLLHUP comes unasked
    parent = os.getppid()
    threading.Thread(target=_watch, args=(poll, parent), name="parent-watch", daemon=True).start()


def _watch(poll: select.poll, parent: int) -> None:
    while os.getppid() == parent and not poll.poll(_PARENT_POLL_MS):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
