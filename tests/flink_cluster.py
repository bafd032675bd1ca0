"""A Flink of one job manager, one task manager and a SQL gateway on the loopback, and a client for it.

with flink_cluster(folder) as flink:
    flink.sql("CREATE TABLE ...")
    job = flink.insert("INSERT INTO t SELECT * FROM src")

Tests decide when it checkpoints (``Flink.checkpoint``) and what its sources read (``Flink.feed``), so nothing depends
on time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_paimon.core.format.snapshot import BATCH_COMMIT_IDENTIFIER
from airflow_paimon.core.table.table import Table
from tests.loopback import free_port, wait_for
from tests.oracles import layout

_WAIT_SECONDS = 400
_OPEN = (
    *(f"java.base/java.{name}" for name in ("lang", "net", "io", "nio", "lang.reflect", "text", "time", "util")),
    "java.base/sun.nio.ch",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
)
_EXPORTED = (
    "java.management/sun.management",
    "java.base/sun.net.util",
    "java.rmi/sun.rmi.registry",
    "java.security.jgss/sun.security.krb5",
)
_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPEN),
    *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTED),
)
_MEMORY = {
    "task.heap.size": "1400m",
    "task.off-heap.size": "64m",
    "managed.size": "256m",
    "network.min": "192m",
    "network.max": "192m",
    "framework.heap.size": "128m",
    "framework.off-heap.size": "128m",
    "jvm-metaspace.size": "400m",
    "jvm-overhead.min": "192m",
    "jvm-overhead.max": "192m",
}
"""Flink's own scripts compute these; a task manager that is started without them needs each."""
_LOG = """rootLogger.level = INFO
rootLogger.appenderRef.f.ref = F
appender.f.name = F
appender.f.type = File
appender.f.fileName = ${sys:log.file}
appender.f.layout.type = PatternLayout
appender.f.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


class FlinkError(Exception):
    """What the gateway or the job manager answers; of a failed statement the causes."""


@dataclass
class Flink:
    """One session of the gateway, in the catalog ``p``. ``gateway`` and ``manager``: addresses of REST interfaces."""

    folder: Path
    gateway: str
    manager: str
    paimon: str
    """The release of its connector."""
    session: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    start_tasks: Callable[[], None] = lambda: None
    """Starts a task manager, after ``kill_tasks``, and waits until it is there."""

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def is_up(self) -> bool:
        """Whether there is a job manager in charge, with a task manager."""
        try:
            return bool(_ask(f"{self.manager}/overview")["taskmanagers"])
        except FlinkError:  # the job manager is being elected
            return False

    def kill_tasks(self) -> None:
        """End the task manager at once, as ``kill -9`` does. Its jobs wait for another one."""
        self.processes["tasks"].kill()
        self.processes["tasks"].wait()

    def sql(self, statement: str, *, most: int | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows, the first ``most`` of an endless one."""
        base = f"{self.gateway}/sessions/{self.session}"
        operation = _ask(f"{base}/statements", {"statement": statement})["operationHandle"]
        rows: list[tuple[Any, ...]] = []
        page: str | None = f"{base}/operations/{operation}/result/0?rowFormat=JSON"
        until = time.monotonic() + _WAIT_SECONDS
        while page:
            found = _ask(page)
            rows += [(row["kind"], *row["fields"]) for row in (found.get("results") or {}).get("data", [])]
            if found["resultType"] == "EOS" or (most is not None and len(rows) >= most):
                break
            page = self.gateway.removesuffix("/v3") + found["nextResultUri"] if found.get("nextResultUri") else page
            assert time.monotonic() < until, f"no end of {statement}: {rows[:20]}"
            if not (found.get("results") or {}).get("data"):
                time.sleep(0.05)
        return rows

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query in batch mode, without their kinds, sorted."""
        with self.settings({"execution.runtime-mode": "batch"}):
            return sorted((row[1:] for row in self.sql(statement)), key=repr)

    def batch(self, statement: str) -> None:
        """Run a statement in batch mode and wait for its end."""
        with self.settings({"execution.runtime-mode": "batch", "table.dml-sync": "true"}):
            self.sql(statement)

    def insert(self, statement: str, settings: Mapping[str, str] | None = None) -> str:
        """Start a job that goes on until it is cancelled, and return its id."""
        with self.settings(settings or {}):
            ((_, job),) = self.sql(statement)
        self._wait(lambda: all(v["status"] == "RUNNING" for v in self._job(job)["vertices"]), f"start of {job}")
        return str(job)

    @contextmanager
    def settings(self, values: Mapping[str, str]) -> Iterator[None]:
        for name, value in values.items():
            self.sql(f"SET '{name}' = '{value}'")
        try:
            yield
        finally:
            for name in values:
                self.sql(f"RESET '{name}'")

    def source(self, name: str, columns: str) -> None:
        """Make a temporary table that reads what ``feed`` gives it."""
        folder = self.folder / "sources" / name
        folder.mkdir(parents=True)
        self.sql(
            f"CREATE TEMPORARY TABLE {name} ({columns}) WITH ('connector'='filesystem', 'path'='file://{folder}', "
            "'format'='csv', 'csv.null-literal'='', 'source.monitor-interval'='100ms')"
        )

    def feed(self, name: str, rows: Iterable[tuple[Any, ...]], *jobs: str) -> None:
        """Give the source some rows, as one file, and wait until each of ``jobs`` has read them all."""
        folder = self.folder / "sources" / name
        lines = [",".join("" if value is None else str(value) for value in row) + "\n" for row in rows]
        before = {job: self._read(job) for job in jobs}
        hidden = folder / f".{time.time_ns()}"
        hidden.write_text("".join(lines))
        hidden.rename(folder / f"{time.time_ns()}.csv")
        for job in jobs:
            self.has_read(job, before[job] + len(lines))

    def has_read(self, job: str, rows: int) -> None:
        """Wait until the job has read so many rows since it was started."""
        self._wait(lambda: self._read(job) >= rows, f"{job} to read {rows} rows")

    def checkpoint(self, *jobs: str) -> dict[str, int]:
        """Make each job checkpoint once, and return the checkpoints' ids. Paimon commits right after, as ``committed``
        tells.
        """
        asked = [(job, f"{self.manager}/jobs/{job}/checkpoints") for job in jobs]
        triggers = [(job, at, _ask(at, {"checkpointType": "FULL"})["request-id"]) for job, at in asked]
        made = {}
        for job, checkpoints, trigger in triggers:
            at = f"{checkpoints}/{trigger}"
            self._wait(lambda at=at: _ask(at)["status"]["id"] == "COMPLETED", f"a checkpoint of {job}")
            done = _ask(at)["operation"]
            assert "checkpointId" in done, f"{job} failed a checkpoint: {done}"
            made[job] = int(done["checkpointId"])
        return made

    def committed(self, table: Table, checkpoint: int) -> None:
        """Wait until the table has the snapshot of a checkpoint, by whose id it is identified."""

        def is_there() -> bool:
            head = table.latest_snapshot()
            return head is not None and checkpoint <= head.commit_identifier < BATCH_COMMIT_IDENTIFIER

        self._wait(is_there, f"commit of checkpoint {checkpoint} to {table.name}")

    def reaches(self, job: str, query: str, rows: list[tuple[Any, ...]]) -> None:
        """Let a job checkpoint until a query in batch mode gives these rows."""
        until = time.monotonic() + _WAIT_SECONDS
        while (found := self.query(query)) != rows:
            assert time.monotonic() < until, f"{query}: {found} instead of {rows}"
            self.checkpoint(job)

    def stop(self, job: str) -> str:
        """Stop a job with a savepoint, and return where that is."""
        asked = _ask(f"{self.manager}/jobs/{job}/stop", {"drain": False})["request-id"]
        at = f"{self.manager}/jobs/{job}/savepoints/{asked}"
        self._wait(lambda: _ask(at)["status"]["id"] == "COMPLETED", f"a savepoint of {job}")
        self._wait(lambda: self.state(job) == "FINISHED", f"the end of {job}")
        return str(_ask(at)["operation"]["location"])

    def cancel(self, *jobs: str) -> None:
        for job in jobs:
            _ask(f"{self.manager}/jobs/{job}?mode=cancel", {}, "PATCH")
        for job in jobs:
            self._wait(lambda job=job: self.state(job) in ("CANCELED", "FAILED", "FINISHED"), f"the end of {job}")

    def state(self, job: str) -> str:
        return str(_ask(f"{self.manager}/jobs/{job}/status")["status"])

    def restarts(self, job: str) -> int:
        """How often the job went back to a checkpoint."""
        return int(_ask(f"{self.manager}/jobs/{job}/checkpoints")["counts"]["restored"])

    def fails(self, job: str, pattern: str) -> None:
        """Wait until a job has failed twice for a cause that its stack traces say."""
        at = f"{self.manager}/jobs/{job}/exceptions"

        def has_failed() -> bool:
            entries = _ask(at).get("exceptionHistory", {}).get("entries", [])
            return sum(bool(re.search(pattern, entry["stacktrace"])) for entry in entries) > 1

        self._wait(has_failed, f"failure of {job} by {pattern}")

    def _job(self, job: str) -> Any:
        return _ask(f"{self.manager}/jobs/{job}")

    def _read(self, job: str) -> int:
        """How many rows the job's source has given to what follows it, or to itself where all is one vertex."""
        return max(self._source_rows(job, vertex["id"]) for vertex in self._job(job)["vertices"])

    def _source_rows(self, job: str, vertex: str) -> int:
        at = f"{self.manager}/jobs/{job}/vertices/{vertex}/metrics"
        names = [m["id"] for m in _ask(at) if m["id"].endswith("numRecordsIn") and "Source" in m["id"]]
        return sum(int(float(m["value"])) for m in _ask(f"{at}?get={','.join(names)}")) if names else 0

    @staticmethod
    def _wait(ready: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _WAIT_SECONDS
        while not ready():
            assert time.monotonic() < until, f"Flink: no {what} in {_WAIT_SECONDS} s"
            time.sleep(0.05)


def _ask(address: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        said = error.read().decode().replace("\\n", "\n")
        causes = [line for line in said.split("\n") if line.startswith("Caused by")]
        raise FlinkError("\n".join(causes[-4:]) or said[:2000]) from None


@contextmanager
def flink_cluster(folder: Path, release: str = "flink") -> Iterator[Flink]:
    """Run a cluster whose tables, checkpoints and logs lie in a folder. It ends with the block. ``release``: one of
    ``layout.FLINKS``.
    """
    manager, gateway, rpc = free_port(), free_port(), free_port()
    for name in ("conf", "log", "tmp", "warehouse"):
        (folder / name).mkdir()
    (folder / "conf" / "config.yaml").write_text(_configuration(folder, manager, gateway, rpc))
    (folder / "conf" / "log4j.properties").write_text(_LOG)
    paimon = layout.FLINKS[release].paimon
    flink = Flink(folder, f"http://127.0.0.1:{gateway}/v3", f"http://127.0.0.1:{manager}", paimon)
    with ExitStack() as ends:
        for name in _PROGRAMS:
            flink.processes[name] = ends.enter_context(_process(folder, name, release))
        wait_for(flink.processes["manager"], manager, "Flink's job manager")
        wait_for(flink.processes["gateway"], gateway, "Flink's SQL gateway")
        flink._wait(flink.is_up, "task manager")

        def start_tasks() -> None:
            flink.processes["tasks"] = ends.enter_context(_process(folder, "tasks", release))
            flink._wait(flink.is_up, "task manager")

        flink.start_tasks = start_tasks
        flink.session = _ask(f"{flink.gateway}/sessions", {})["sessionHandle"]
        flink.sql(f"CREATE CATALOG p WITH ('type'='paimon', 'warehouse'='file://{flink.warehouse}')")
        flink.sql("USE CATALOG p")
        yield flink


_PROGRAMS = {
    "manager": (
        "-Xmx500m",
        "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
        "--configDir {conf} --executionMode cluster",
    ),
    "tasks": (
        "-Xmx1528m -XX:MaxDirectMemorySize=512m -XX:MaxMetaspaceSize=400m",
        "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
        "--configDir {conf}",
    ),
    "gateway": ("-Xmx500m", "org.apache.flink.table.gateway.SqlGateway", ""),
}
"""Settings of the JVM, the main class and its arguments."""


def _configuration(folder: Path, manager: int, gateway: int, rpc: int) -> str:
    here = ("jobmanager.rpc.address", "jobmanager.bind-host", "rest.address", "rest.bind-address", "taskmanager.host")
    values = dict.fromkeys((*here, "taskmanager.bind-host"), "127.0.0.1") | {
        "jobmanager.rpc.port": rpc,
        "rest.port": manager,
        "sql-gateway.endpoint.rest.address": "127.0.0.1",
        "sql-gateway.endpoint.rest.bind-address": "127.0.0.1",
        "sql-gateway.endpoint.rest.port": gateway,
        "taskmanager.numberOfTaskSlots": 30,
        "taskmanager.cpu.cores": 30.0,
        "parallelism.default": 1,
        "execution.checkpointing.interval": "365d",  # the first one comes at a random moment of it
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"file://{folder}/savepoints",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 100,
        "restart-strategy.fixed-delay.delay": "1s",
        "heartbeat.interval": 2000,
        "heartbeat.timeout": 60000,
        "metrics.fetcher.update-interval": 100,
        "web.refresh-interval": 100,  # how old the states of jobs may be that the REST interface gives
        "io.tmp.dirs": f"{folder}/tmp",
        "table.exec.sink.upsert-materialize": "NONE",
        "classloader.check-leaked-classloader": "false",
        **{f"taskmanager.memory.{name}": size for name, size in _MEMORY.items()},
    }
    return "".join(f"{name}: {value}\n" for name, value in values.items())


@contextmanager
def _process(folder: Path, name: str, release: str) -> Iterator[subprocess.Popen[bytes]]:
    memory, program, arguments = _PROGRAMS[name]
    java = layout.java_executable()
    assert java
    *classes, gateway = layout.flink_jars(release)
    lib = classes[0].parent
    classes += [gateway] if name == "gateway" else []
    conf = folder / "conf"
    own = {"FLINK_CONF_DIR": conf, "FLINK_LIB_DIR": lib, "FLINK_OPT_DIR": lib.parent / "opt", "FLINK_HOME": lib.parent}
    environment = {**os.environ, **{k: str(v) for k, v in own.items()}, "FLINK_PLUGINS_DIR": str(folder / "plugins")}
    command = [java, *memory.split(), *_JVM, f"-Dlog4j.configurationFile=file:{conf}/log4j.properties"]
    command += [f"-Dlog.file={folder}/log/{name}.log", f"-Djava.io.tmpdir={folder}/tmp"]
    command += ["-cp", os.pathsep.join(map(str, classes)), program, *arguments.format(conf=conf).split()]
    with (folder / "log" / f"{name}.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
