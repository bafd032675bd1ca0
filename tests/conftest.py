"""What every test stands on: a pinned environment, the golden tables, one local Spark, and no process left behind."""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests import environment, left_processes, scheduling, tiers
from tests.archives import unpack as extract
from tests.environment import REPO_ROOT
from tests.randomness import VARIABLE, choose_seed, lives, thorough
from tests.strict_metadata import damaged_on_purpose, findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AIRFLOW_HOME = environment.pin()
left_processes.mark_this_run()
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
    if config.getoption("numprocesses", None) and environment.tables_fit_into_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(environment.MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector the modules, functions and tests, which stay to the end: millions of objects."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result  # type: ignore[return-value]


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks of `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark(items)
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("random")

    scheduling.sort(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling.ByFileOrFolder(config, log) if config.getvalue("dist") == "loadfile" else None


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
        gateway.proc.wait(timeout=left_processes.GRACE_SECONDS)


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
        if folder.is_relative_to(environment.MEMORY) and session.exitstatus == pytest.ExitCode.OK and not faults:
            _DONE_WITH.append(folder)
    else:
        left = left_processes.end_all()
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


def pytest_unconfigure() -> None:
    shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True)
    if _DONE_WITH:
        shutil.rmtree(_DONE_WITH.pop(), ignore_errors=True)
