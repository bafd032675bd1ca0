"""What every test stands on: a pinned environment, the golden tables, one local Spark, and no process left behind."""

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.archives import unpack as extract
from tests.class_archive import BARE_JVM
from tests.parts import leave_out
from tests.randomness import VARIABLE, choose_seed, lives, thorough
from tests.strict_metadata import damaged_on_purpose, findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPO_ROOT = Path(__file__).resolve().parent.parent

_RUN_MARK = "AIRFLOW_PAIMON_TEST_RUN"
_GRACE_SECONDS = 120.0

# Made by `make test`; where it isn't there, a JVM starts without it and says nothing.
_CLASS_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
QUICK_JVM = f"{BARE_JVM} -XX:SharedArchiveFile={_CLASS_ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"
"""For Spark that runs for seconds: compiling thoroughly, or loading every class anew, takes longer than its work."""
_INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""Spark writes and compiles a program for each query otherwise; `make thorough` lets it."""


_MEMORY = Path("/dev/shm")


def _has_room(gigabytes: int) -> bool:
    return os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > gigabytes * 2**30


def _pin_environment() -> str:
    """Make a run independent of who starts it, before anything that reads the environment at import is imported."""
    # In memory where there is room: SQLite syncs each transaction.
    airflow_home = tempfile.mkdtemp(prefix="airflow-paimon-tests-", dir=_MEMORY if _has_room(1) else None)
    for name in list(os.environ):
        if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AWS_", "SPARK_", "PYSPARK_")):
            del os.environ[name]
    os.environ.update(
        {
            _RUN_MARK: uuid.uuid4().hex,
            "TZ": "UTC",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "AIRFLOW_HOME": airflow_home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPO_ROOT / "dags"),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            # To import a file takes a second, and far longer where much else runs.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "500",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "500",
            # A test names its credentials; one that forgets must not find somebody's real ones.
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -Dspark.sql.shuffle.partitions=2 {'' if thorough() else _INTERPRETED}",
            "SPARK_LAUNCHER_OPTS": QUICK_JVM,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    )
    # spark-submit and airflow, as in an activated environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    time.tzset()
    return airflow_home


# Only a loss of power shows whether a file was synced, and each sync takes a disk milliseconds, thousands of times.
# That stores call for it, and in which order, tests/core/store/test_local.py sees in a process of its own.
os.fsync = lambda _: None  # type: ignore[assignment]
_AIRFLOW_HOME = _pin_environment()
# A test that stands still fails by itself, and the others go on: pytest-timeout interrupts it by a signal, which leaves
# its process alone (xdist would start the test that ends its worker again and again). What may take longer has the mark
# `timeout`; all the cases of a test take longer than some.
os.environ.setdefault("PYTEST_TIMEOUT", str(lives(600, 7200)))
_SEED = choose_seed()
# Without deadlines and checks of speed, which would measure the machine's other work.
settings.register_profile(
    "airflow-paimon",
    max_examples=lives(40, 200),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not thorough(),
    print_blob=True,
    database=None,
)
settings.load_profile("airflow-paimon")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random tests: {VARIABLE}={_SEED} repeats this run's seeds")


class _Failures:
    """Says at once which test failed and why: a run that is stopped has no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            self._terminal.write_line("\n".join(report.longreprtext.splitlines()[-3:]))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(terminal))
    if config.getoption("numprocesses", None) and _tables_fit_into_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def _tables_fit_into_memory() -> bool:
    """Whether the folders of all tests may lie in memory, where to write and rename a file takes a fifth of the time.

    A run leaves 300,000 small files of 1.5 GB. Without room for them beside what the workers hold, or where programs
    can't be started from there, they lie on the disk.
    """
    if not _has_room(6) or os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:
        return False
    with suppress(OSError):
        found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return found is not None and int(found[1]) > 14e6
    return False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector the modules, functions and tests, which stay to the end: millions of objects."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result  # type: ignore[return-value]


# Folders whose files take long go first: a file is one worker's, and a long one at the end leaves the other one idle.
_LONG_FIRST = ("live", "dags", "oracles", "airflow", "spark", "stateful", "jobs", "golden")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks of `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_out(items)
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("random")

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(REPO_ROOT / "tests").parts[0]
        return _LONG_FIRST.index(folder) if folder in _LONG_FIRST else len(_LONG_FIRST)

    items.sort(key=place)  # stable: the order within a file stays


# Folders, and beginnings of names, whose files share something that is slow to start, so one worker gets all of them.
_ONE_WORKER = ("tests/live/", "tests/oracles/test_flink")
# What needs the same things that are slow to start goes to one worker as long as there is some: what waits much of its
# time, for Airflow, a cluster or an approval; what asks the oracles; what computes in Spark. Workers without any of
# their own take what needs none of these, and then the rest.
_KINDS = (
    ("tests/live/", "tests/dags/", "tests/airflow/", "tests/plugin/"),
    ("tests/oracles/", "tests/data/test_java.py", "tests/data/chain/test_compact_java.py"),
    ("tests/spark/", "tests/golden/test_statement_lives.py", "tests/data/test_row_tracking_tries.py"),
)


def _kind(scope: str) -> int | None:
    return next((at for at, folders in enumerate(_KINDS) if scope.startswith(folders)), None)


def next_scope(waiting: Iterable[str], worker: int) -> str:
    """Choose what a worker gets of the files and folders that wait, which are in the order in which they should run."""

    def place(scope: str) -> int:
        kind = _kind(scope)
        # What waits is the last that another worker takes: it needs an Airflow of its own for it.
        return 0 if kind == worker else 1 if kind is None else 3 if kind == 0 else 2

    return min(waiting, key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrFolder(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((f for f in _ONE_WORKER if nodeid.startswith(f)), super()._split_scope(nodeid))

        def _assign_work_unit(self, node: Any) -> None:
            chosen = next_scope(self.workqueue, self.nodes.index(node))
            self.workqueue.move_to_end(chosen, last=False)
            super()._assign_work_unit(node)

    return ByFileOrFolder(config, log) if config.getvalue("dist") == "loadfile" else None


def require(condition: object, reason: str) -> None:
    """Skip the test where what it needs isn't there; where AIRFLOW_PAIMON_REQUIRE_ALL=1 (CI), fail it."""
    if condition:
        return
    if os.environ.get("AIRFLOW_PAIMON_REQUIRE_ALL") == "1":
        pytest.fail(f"AIRFLOW_PAIMON_REQUIRE_ALL=1, but: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpack a golden archive (``"paimon-2.0.0"``) once a run; the folder is shared: a test that writes copies it."""
    folder = Path(os.environ.get("AIRFLOW_PAIMON_GOLDEN") or REPO_ROOT.parent / "shared" / "golden")
    unpacked: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        if name not in unpacked:
            archive = folder / f"{name}.tar.gz"
            require(archive.is_file(), f"no golden tables: {name}.tar.gz is not in the folder AIRFLOW_PAIMON_GOLDEN")
            own = tmp_path_factory.getbasetemp()
            # One for all workers, whose folders lie side by side: each archive has thousands of files.
            shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"golden-{name}"
            if not shared.exists():
                target = tmp_path_factory.mktemp(f"golden-{name}-")
                extract(archive, target)
                with suppress(OSError):  # another worker was faster
                    target.rename(shared)
            unpacked[name] = shared
        return unpacked[name]

    return unpack


@pytest.fixture(scope="session")
def java_home() -> Path:
    """The Java that Spark and the Java oracle run on."""
    from airflow_paimon.spark.java import find_java

    home = find_java(REPO_ROOT / ".java")
    require(home, "no Java 17 or newer: `make test` finds or fetches one")
    assert home is not None
    os.environ["JAVA_HOME"] = str(home)
    return home


@pytest.fixture(scope="session")
def spark(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One small local Spark for the whole run; what a test changes in its configuration, it puts back."""
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("airflow-paimon tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Duser.timezone=UTC -Dderby.system.home={scratch}")
        # Its workers have the package loaded when they are forked.
        .config("spark.python.daemon.module", "tests.spark.python_daemon")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    if gateway is not None:
        # Spark keeps its JVM for the next session until Python ends; here it ends before leftovers are looked for.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=_GRACE_SECONDS)


@pytest.fixture(autouse=True)
def _metadata_is_readable(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, read the metadata of the tables in its folder as strictly as Paimon's newest Java does."""
    yield
    folder = request.node.funcargs.get("tmp_path")
    if folder is None:
        return
    if request.node.get_closest_marker("damages_metadata"):
        damaged_on_purpose(folder)
    found = [f"{path.relative_to(folder)}: {sentence}" for path, sentence in findings(folder)]
    damaged_on_purpose(folder)  # said now, so not once more at the end of the run
    if found:
        pytest.fail("Paimon's Java can't read what this test wrote:\n" + "\n".join(found[:20]), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None):
        faults = _FAULTS_OF_WORKERS  # each worker looked after its own
        folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        if folder.is_relative_to(_MEMORY) and session.exitstatus == pytest.ExitCode.OK and not faults:
            _DONE_WITH.append(folder)
    else:
        resource_tracker._resource_tracker._stop()  # of spawned processes: else it stays until Python ends
        left = _wait_for_children()
        _end(left)
        faults = [f"left behind by a test, ended now: {pid} {command}" for pid, command in left.items()]
        faults += _unreadable_metadata(session.config)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = faults
        return
    for line in faults:
        print(f"\n{line}", file=sys.stderr)
    if faults and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _unreadable_metadata(config: pytest.Config) -> list[str]:
    """Look at the tables that several tests share, or one test made in folders of its own."""
    factory = getattr(config, "_tmp_path_factory", None)
    folder = getattr(factory, "_basetemp", None)
    for golden in () if folder is None else folder.glob("golden-*"):
        damaged_on_purpose(golden)  # Java wrote it, and tests/test_strict_metadata.py has looked at it
    found = () if folder is None else findings(folder)
    return [f"Paimon's Java can't read what a test wrote: {path}: {sentence}" for path, sentence in found]


_FAULTS_OF_WORKERS: list[str] = []
_DONE_WITH: list[Path] = []
"""The folder of a run's tests, where it takes memory and nothing failed."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _FAULTS_OF_WORKERS.extend(getattr(node, "workeroutput", {}).get("faults", ()))


def _end(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def pytest_unconfigure() -> None:
    shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True)
    if _DONE_WITH:
        shutil.rmtree(_DONE_WITH.pop(), ignore_errors=True)


def _wait_for_children() -> dict[int, str]:
    """Tell which processes of this run are still there when they had time to end."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := _marked_processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _marked_processes() -> dict[int, str]:
    # By the environment that they inherited, so that a daemon which changed its parent and session is found as well.
    mark = f"{_RUN_MARK}={os.environ[_RUN_MARK]}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:  # it ended meanwhile, or it is another user's
            continue
    return found
