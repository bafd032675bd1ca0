"""Where the oracles live: `.oracles/` at the repository root, ignored by git, made by prepare.py. Standard library
only."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

REPO_ROOT = Path(__file__).resolve().parents[2]
ORACLES_DIR = REPO_ROOT / ".oracles"
JARS_DIR = ORACLES_DIR / "jars"

PYPAIMON = "2.1.0"
PYPAIMON_RUST = "0.4.0"
PYSPARK = "3.5.9"
BUNDLE = "1.4.2"
CONNECTOR = "0.9.0"
MINICLUSTER = "3.4.2"
POSTGRES_DRIVER = "42.7.4"
KUBERNETES_VERSION = "1.34.4"
"""As in kubernetes.mod."""
AZURITE = "3.35.0"
"""The last one that runs on a Node.js older than 22."""

BUNDLE_JAR = JARS_DIR / f"paimon-bundle-{BUNDLE}.jar"
POSTGRES_DRIVER_JAR = JARS_DIR / f"postgresql-{POSTGRES_DRIVER}.jar"
CONNECTOR_JAR = JARS_DIR / f"paimon-spark-3.5-{CONNECTOR}.jar"
MINICLUSTER_JAR = JARS_DIR / f"hadoop-client-minicluster-{MINICLUSTER}.jar"
"""Of the Hadoop that the project's own PySpark brings."""
YARN_JARS = ORACLES_DIR / "yarn"
"""The resource manager and the node manager of that Hadoop, with all that they need."""
KUBERNETES = ORACLES_DIR / "kubernetes"
KUBERNETES_PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
"""Programs, and the packages that they are built from."""
AZURITE_PROGRAM = ORACLES_DIR / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
REST_ARTIFACTS = (
    f"org.apache.paimon:paimon-core:{BUNDLE}:jar:tests",
    "com.squareup.okhttp3:mockwebserver:4.12.0",
    "com.squareup.okhttp3:okhttp:4.12.0",
    "com.squareup.okio:okio-jvm:3.6.0",
    "org.jetbrains.kotlin:kotlin-stdlib:1.9.10",
    "junit:junit:4.13.2",
)
"""Paimon's own server of REST catalogs is among the tests of its core; beside it stand what it needs."""
HADOOP_JARS = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j", "lz4-java", "rocksdbjni")
"""Beside the bundle, the Java engine needs these (the last three for ORC, for spilling merges, and for keys that
move between partitions); every PySpark ships them."""

MINIMUM_JAVA = 17


class FlinkRelease(NamedTuple):
    """``gateway``: of its SQL gateway, which may be another one. ``line``: that Paimon's connector is for."""

    version: str
    gateway: str
    line: str
    paimon: str

    @property
    def title(self) -> str:
        return f"Flink {self.version} with Paimon {self.paimon}"

    @property
    def jars(self) -> dict[str, Path]:
        """Paimon's connector and the gateway, by the artifacts that they are."""
        return {
            f"org.apache.paimon:paimon-flink-{self.line}:{self.paimon}": JARS_DIR
            / f"paimon-flink-{self.line}-{self.paimon}.jar",
            f"org.apache.flink:flink-sql-gateway:{self.gateway}": JARS_DIR / f"flink-sql-gateway-{self.gateway}.jar",
        }


FLINKS = {
    "flink": FlinkRelease("2.0.1", "2.0.0", "2.0", BUNDLE),  # no gateway 2.0.1 is served; the two work together
    "flink120": FlinkRelease("1.20.3", "1.20.3", "1.20", "1.0.1"),  # the newest connector for 1.20 that is served
}


def venv_python(name: str) -> Path:
    """The interpreter of oracle environment `name` ("o1", "o2", "o4")."""
    return ORACLES_DIR / name / "bin" / "python"


def hadoop_jars() -> list[Path]:
    """HADOOP_JARS from the O4 environment's PySpark, else from the project's own; empty when neither is installed."""
    for venv in (ORACLES_DIR / "o4", REPO_ROOT / ".venv"):
        for folder in sorted(venv.glob("lib/python*/site-packages/pyspark/jars")):
            found = [sorted(folder.glob(f"{name}-[0-9]*.jar")) for name in HADOOP_JARS]
            if all(found):
                return [jars[0] for jars in found]
    return []


def flink_jars(name: str) -> list[Path]:
    """The class path of the processes of one of ``FLINKS``: its own, what its connector needs of Hadoop, ``jars``."""
    folder = next(iter((ORACLES_DIR / name).glob("lib/python*/site-packages/pyflink/lib")), None)
    hadoop = [jar for jar in hadoop_jars() if jar.name.startswith("hadoop-client-")]
    return [*sorted(folder.glob("*.jar")), *hadoop, *FLINKS[name].jars.values()] if folder and hadoop else []


def rest_jars() -> list[Path]:
    """The jars of REST_ARTIFACTS."""
    parts = [artifact.split(":") for artifact in REST_ARTIFACTS]
    return [JARS_DIR / f"{'-'.join([name, version, *more[1:]])}.jar" for _, name, version, *more in parts]


def stamp(name: str) -> Path:
    """Written by prepare.py when oracle `name` is complete."""
    return ORACLES_DIR / f"{name}.stamp"


def missing(name: str) -> str | None:
    """Why oracle `name` can't be started, None when it can."""
    if not stamp(name).is_file():
        return f"oracle {name} is not prepared: run `make oracles`"
    if name in ("o3", "rest", *FLINKS) and not hadoop_jars():
        return f"oracle {name} finds no PySpark with {', '.join(HADOOP_JARS)}: run `make oracles`"
    if name in ("o3", "o4", "rest", *FLINKS) and java_executable() is None:
        return f"oracle {name} needs Java {MINIMUM_JAVA} or newer: set JAVA_HOME or put java on the PATH"
    return None


def java_executable() -> Path | None:
    """A Java of at least MINIMUM_JAVA: JAVA_HOME, then the PATH, then what the project installed into its ignored
    folders."""
    candidates: list[Path] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        candidates.append(Path(found))
    candidates += sorted(REPO_ROOT.glob(".java/**/bin/java")) + sorted(REPO_ROOT.glob(".venv/**/bin/java"))
    return next((java for java in candidates if java.is_file() and java_major(java) >= MINIMUM_JAVA), None)


def java_program(source: Path, class_path: str) -> list[str]:
    """Give the arguments with which ``java`` runs a program of one source file.

    The class is compiled once and kept: ``java X.java`` compiles it at each start, which takes seconds. Without a
    compiler beside ``java`` it does that nevertheless.
    """
    java = java_executable()
    compiler = java.with_name("javac") if java else None
    if compiler is None or not compiler.is_file():
        return ["-cp", class_path, str(source)]
    made = hashlib.sha256(source.read_bytes() + f"{compiler} {class_path}".encode()).hexdigest()[:16]
    classes = ORACLES_DIR / "classes" / f"{source.stem}-{made}"
    if not classes.is_dir():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as folder:
            target = Path(folder) / "classes"
            command = [compiler, "-cp", class_path, "-d", target, source]
            made_it = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if made_it.returncode:
                raise RuntimeError(f"{source.name} can't be compiled: {made_it.stderr[:2000]}")
            with contextlib.suppress(OSError):  # another worker has made it meanwhile
                target.rename(classes)
    return ["-cp", f"{classes}{os.pathsep}{class_path}", source.stem]


@functools.cache
def java_major(java: Path) -> int:
    """The major version that `java -version` tells, 0 when it tells none."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except OSError:
        return 0
    version = told.partition('version "')[2].partition('"')[0]
    parts = version.replace("-", ".").split(".")
    major = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(major) if major.isdigit() else 0
