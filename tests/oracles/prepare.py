"""Prepares the oracle engines under `.oracles/`: run `python tests/oracles/prepare.py [--only o1,o3]`.

Standard library only; running it again does nothing that is already done. Each oracle has a stamp holding what it was
made from. Prints one line for each, and exits 1 when one can't be had.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import layout

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.9.0"
STEP_TIMEOUT_S = 1200
STORED = "--config-settings=--build-option=--compression=stored"
"""PySpark comes as sources only; a wheel that is made of them to be unpacked at once needs no compression."""
OURS = ("fsspec", "fastavro", "backports.zstd")
"""What our own package needs beside pyarrow: the engine "connector" runs in O4."""


class CannotPrepareError(Exception):
    """Something needed is missing; the message is the one line to print."""


def run(command: Sequence[str | Path], log: Path) -> None:
    """Runs without input, output into `log`; a failure names the last lines that say why."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=STEP_TIMEOUT_S, check=False
        )
    if done.returncode:
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        why = next((line for line in said if "ERROR" in line), said[-1] if said else "no output")
        raise CannotPrepareError(f"{Path(command[0]).name} failed: {why[:300]} (all of it: {log})")


def make_venv(name: str, packages: Sequence[str]) -> None:
    """An environment of its own with `packages`, their dependencies pinned by constraints-<name>.txt."""
    target, log = layout.ORACLES_DIR / name, layout.ORACLES_DIR / f"{name}.log"
    constraints = Path(__file__).with_name(f"constraints-{name}.txt")
    shutil.rmtree(target, ignore_errors=True)
    python = layout.venv_python(name)
    if uv := shutil.which("uv"):
        run([uv, "venv", "--quiet", "--python", sys.executable, target], log)
        run([uv, "pip", "install", "--quiet", STORED, "--python", python, "-c", constraints, *packages], log)
        return
    run([sys.executable, "-m", "venv", target], log)
    run([python, "-m", "pip", "install", "--quiet", "--no-input", STORED, "-c", constraints, *packages], log)


def require_maven() -> str:
    maven = shutil.which("mvn")
    if maven is None:
        raise CannotPrepareError("mvn is not on the PATH: install Maven")
    require_java()
    return maven


def copy_jars(names: Sequence[str], log: str) -> None:
    """Copies the jars of these oracles that are not there yet, in one run of Maven: it takes seconds to start."""
    wanted = {artifact: jar for name in names for artifact, jar in JARS.get(name, {}).items() if not jar.is_file()}
    if not wanted:
        return
    maven, pom = require_maven(), layout.ORACLES_DIR / f"{log}-pom.xml"
    pom.write_text(pom_of(wanted))
    run([maven, "-q", "-B", "-f", pom, f"{DEPENDENCY_PLUGIN}:copy"], layout.ORACLES_DIR / f"{log}.log")
    for artifact, jar in wanted.items():
        if not jar.is_file():
            raise CannotPrepareError(f"mvn copied {artifact}, but there is no {jar.name}")


def pom_of(artifacts: Iterable[str]) -> str:
    """A project that has nothing but what Maven is to copy: group:artifact:version, and maybe type and classifier."""
    keys = ("groupId", "artifactId", "version", "type", "classifier")
    items = [
        "".join(f"<{key}>{value}</{key}>" for key, value in zip(keys, artifact.split(":"), strict=False))
        for artifact in artifacts
    ]
    group, plugin, version = DEPENDENCY_PLUGIN.split(":")
    return f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>airflow-paimon</groupId>
  <artifactId>oracles</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <build><plugins><plugin>
    <groupId>{group}</groupId><artifactId>{plugin}</artifactId><version>{version}</version>
    <configuration>
      <outputDirectory>{layout.JARS_DIR}</outputDirectory>
      <useBaseVersion>true</useBaseVersion>
      <artifactItems>{"".join(f"<artifactItem>{item}</artifactItem>" for item in items)}</artifactItems>
    </configuration>
  </plugin></plugins></build>
</project>
"""


def require_java() -> None:
    if layout.java_executable() is None:
        raise CannotPrepareError(
            f"no Java {layout.MINIMUM_JAVA} or newer: set JAVA_HOME, put java on the PATH, or run make venv first"
        )


def prepare_pypaimon() -> None:
    make_venv("o1", [f"pypaimon=={layout.PYPAIMON}"])


def prepare_rust() -> None:
    make_venv("o2", [f"pypaimon-rust=={layout.PYPAIMON_RUST}", "pyarrow"])


def prepare_java() -> None:
    copy_jars(["o3"], "o3")
    if not layout.hadoop_jars():
        raise CannotPrepareError(f"no PySpark to take {', '.join(layout.HADOOP_JARS)} from: prepare o4 first")


def prepare_postgres_driver() -> None:
    copy_jars(["jdbc"], "jdbc")


def prepare_connector() -> None:
    copy_jars(["o4"], "o4-jars")
    make_venv("o4", [f"pyspark=={layout.PYSPARK}", "setuptools", "numpy", "pandas", "pyarrow", *OURS])


def prepare_flink(name: str) -> None:
    """Flink's jars come as a Python package; none of its programs does."""
    copy_jars([name], f"{name}-jars")
    make_venv(name, [f"apache-flink-libraries=={layout.FLINKS[name].version}"])


def prepare_hdfs() -> None:
    copy_jars(["hdfs"], "hdfs")


def prepare_yarn() -> None:
    shutil.rmtree(layout.YARN_JARS, ignore_errors=True)
    pom = Path(__file__).with_name("yarn-pom.xml")
    settings = [f"-Dhadoop={layout.MINICLUSTER}", "-DincludeScope=runtime", f"-DoutputDirectory={layout.YARN_JARS}"]
    command = [require_maven(), "-q", "-B", "-f", pom, f"{DEPENDENCY_PLUGIN}:copy-dependencies", *settings]
    run(command, layout.ORACLES_DIR / "yarn.log")


def prepare_kubernetes() -> None:
    """Build the programs: there is no registry of ours that has them ready. Go downloads about 150 MB for it."""
    go, source = shutil.which("go"), layout.KUBERNETES / "source"
    assert go is not None
    source.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("kubernetes.mod"), source / "go.mod")
    told = {"gitVersion": f"v{layout.KUBERNETES_VERSION}", "gitMajor": "1", "gitMinor": "34"}
    flags = "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in told.items())
    for name, package in layout.KUBERNETES_PROGRAMS.items():
        command = [go, "build", "-C", source, "-mod=mod", "-buildvcs=false", "-ldflags", flags]
        run([*command, "-o", layout.KUBERNETES / name, package], layout.ORACLES_DIR / f"{name}.log")


def prepare_azurite() -> None:
    npm, folder = shutil.which("npm"), layout.ORACLES_DIR / "azurite"
    assert npm is not None
    folder.mkdir(exist_ok=True)
    quiet = ["--no-audit", "--no-fund", "--omit=optional", "--ignore-scripts"]
    run([npm, "install", "--prefix", folder, *quiet, f"azurite@{layout.AZURITE}"], layout.ORACLES_DIR / "azurite.log")


def prepare_rest() -> None:
    copy_jars(["rest"], "rest")


_BUNDLE = {f"org.apache.paimon:paimon-bundle:{layout.BUNDLE}": layout.BUNDLE_JAR}
JARS: dict[str, dict[str, Path]] = {
    "o3": _BUNDLE,
    "o4": {f"org.apache.paimon:paimon-spark-3.5:{layout.CONNECTOR}": layout.CONNECTOR_JAR},
    **{name: release.jars for name, release in layout.FLINKS.items()},
    "rest": {**_BUNDLE, **dict(zip(layout.REST_ARTIFACTS, layout.rest_jars(), strict=True))},
    "jdbc": {f"org.postgresql:postgresql:{layout.POSTGRES_DRIVER}": layout.POSTGRES_DRIVER_JAR},
    "hdfs": {f"org.apache.hadoop:hadoop-client-minicluster:{layout.MINICLUSTER}": layout.MINICLUSTER_JAR},
}
"""What Maven copies for an oracle: the artifact, and the file."""
# o4 before o3: the Java engine borrows some jars from O4's PySpark.
STEPS: dict[str, tuple[str, Callable[[], None], tuple[Path, ...]]] = {
    "o1": (f"pypaimon {layout.PYPAIMON}", prepare_pypaimon, (layout.venv_python("o1"),)),
    "o2": (f"pypaimon-rust {layout.PYPAIMON_RUST}", prepare_rust, (layout.venv_python("o2"),)),
    "o4": (
        f"Paimon Spark connector {layout.CONNECTOR} on PySpark {layout.PYSPARK}",
        prepare_connector,
        (layout.venv_python("o4"), layout.CONNECTOR_JAR),
    ),
    "o3": (f"Paimon Java {layout.BUNDLE}", prepare_java, (layout.BUNDLE_JAR,)),
    "rest": (
        f"Paimon's REST catalog server {layout.BUNDLE}",
        prepare_rest,
        (layout.BUNDLE_JAR, *layout.rest_jars()),
    ),
    "jdbc": (
        f"Java's driver for PostgreSQL {layout.POSTGRES_DRIVER}",
        prepare_postgres_driver,
        (layout.POSTGRES_DRIVER_JAR,),
    ),
    "hdfs": (f"HDFS {layout.MINICLUSTER}", prepare_hdfs, (layout.MINICLUSTER_JAR,)),
    "yarn": (f"YARN {layout.MINICLUSTER}", prepare_yarn, (layout.YARN_JARS,)),
    "kubernetes": (
        f"Kubernetes {layout.KUBERNETES_VERSION}",
        prepare_kubernetes,
        tuple(layout.KUBERNETES / name for name in layout.KUBERNETES_PROGRAMS),
    ),
    **{
        name: (flink.title, partial(prepare_flink, name), (layout.venv_python(name), *flink.jars.values()))
        for name, flink in layout.FLINKS.items()
    },
    "azurite": (f"Azurite {layout.AZURITE}", prepare_azurite, (layout.AZURITE_PROGRAM,)),
}
ON_DEMAND = ("yarn", "kubernetes", "flink120")
"""Made only where they are named: `make reach` and `make thorough` need them, `make test` doesn't."""
ASIDE = ("azurite", *layout.FLINKS)
"""Made beside the others, of which they need nothing."""
NEEDS = {"azurite": "npm", "kubernetes": "go"}
"""Programs without which an oracle is left out, and its tests are skipped: Maven and Java are asked for, these not."""


def stamp_text(name: str) -> str:
    """What the oracle is made from: versions, constraints, interpreter."""
    constraints = Path(__file__).with_name(f"constraints-{name}.txt")
    pinned = constraints.read_bytes() if constraints.is_file() else b""
    return f"{STEPS[name][0]}\npython {sys.version_info[:2]}\n{hashlib.sha256(pinned).hexdigest()}\n"


def prepared(name: str) -> bool:
    stamp = layout.stamp(name)
    made = stamp.is_file() and stamp.read_text() == stamp_text(name) and all(path.exists() for path in STEPS[name][2])
    return made and layout.missing(name) is None


def prepare(name: str) -> bool:
    title, step, _ = STEPS[name]
    started = time.monotonic()
    if prepared(name):
        print(f"{name} {title}: ready", flush=True)
        return True
    if name in NEEDS and not shutil.which(NEEDS[name]):
        print(f"{name} {title}: left out, there is no {NEEDS[name]}", flush=True)
        return True
    stamp = layout.stamp(name)
    stamp.unlink(missing_ok=True)
    try:
        step()
    except (CannotPrepareError, OSError, subprocess.TimeoutExpired) as error:
        print(f"{name} {title}: NOT ready: {error}", flush=True)
        return False
    partial = stamp.with_suffix(f".{os.getpid()}")
    partial.write_text(stamp_text(name))
    partial.replace(stamp)
    print(f"{name} {title}: made in {time.monotonic() - started:.0f} s", flush=True)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Prepare the oracle engines under .oracles/")
    parser.add_argument(
        "--only",
        default=",".join(n for n in STEPS if n not in ON_DEMAND),
        help=f"comma-separated, of {', '.join(sorted(STEPS))}",
    )
    wanted = [name.strip() for name in parser.parse_args(argv).only.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in STEPS]:
        parser.error(f"unknown oracle {', '.join(unknown)}: choose from {', '.join(sorted(STEPS))}")
    layout.JARS_DIR.mkdir(parents=True, exist_ok=True)
    (layout.ORACLES_DIR / ".gitignore").write_text("*\n")
    chosen = [name for name in STEPS if name in wanted]
    with ThreadPoolExecutor(1) as pool:  # npm waits for its downloads as long as the others for theirs
        aside = pool.submit(lambda: [prepare(name) for name in chosen if name in ASIDE])
        with contextlib.suppress(CannotPrepareError, OSError, subprocess.TimeoutExpired):  # said by the oracle's step
            copy_jars([name for name in chosen if name not in ASIDE and not prepared(name)], "jars")
        results = [prepare(name) for name in chosen if name not in ASIDE]
        results += aside.result()
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
