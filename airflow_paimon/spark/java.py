"""Finds a Java for Spark. ``python -m airflow_paimon.spark.java [FOLDER]`` prints a JAVA_HOME."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from airflow_paimon.core.errors import NotFoundError

__all__ = ["MINIMUM_VERSION", "ensure_java", "find_java"]

MINIMUM_VERSION = 17
"""The oldest version that Spark 4 supports."""

_PROBE_SECONDS = 30


def find_java(folder: Path | None = None) -> Path | None:
    """Return the home of a Java 17 or newer: ``JAVA_HOME``, else ``java`` on the PATH, else one under ``folder``."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    if folder is not None:
        # macOS puts the home two folders deeper.
        candidates += sorted([*folder.glob("*/bin/java"), *folder.glob("*/Contents/Home/bin/java")])
    for executable in candidates:
        if (found := _home_if_new_enough(executable)) is not None:
            return found
    return None


def ensure_java(folder: Path) -> Path:
    """Like ``find_java``, but put a Temurin 17 into ``folder`` where there is none.

    Raises ``NotFoundError``, which says what to install, where that can't be fetched.
    """
    if (found := find_java(folder)) is not None:
        return found
    reason = _install(folder)
    if reason is None and (found := find_java(folder)) is not None:
        return found
    raise NotFoundError(
        f"Spark needs Java {MINIMUM_VERSION} or newer, and none was found: install one (Debian: apt-get install "
        f"openjdk-17-jre-headless) or set JAVA_HOME; fetching Temurin failed: {reason or 'it does not start'}"
    )


def _home_if_new_enough(executable: Path) -> Path | None:
    # Asked rather than guessed from the path: `java` may be a wrapper that lies in no Java's home.
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", probe.stderr, re.MULTILINE)
    # "1.8" is how Java 8 says it.
    version = re.search(r"^\s*java\.specification\.version = (\d+)", probe.stderr, re.MULTILINE)
    if home is None or version is None or int(version[1]) < MINIMUM_VERSION:
        return None
    return Path(home[1].strip())


def _install(folder: Path) -> str | None:
    """Fetch a Temurin 17 with install-jdk; return the reason of a failure in one line."""
    try:
        import jdk
    except ImportError:
        return "the package install-jdk is not installed"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        jdk.install(str(MINIMUM_VERSION), path=str(folder))
    except Exception as error:  # whatever the download or the unpacking raises: the caller reports it and ends
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def main(arguments: list[str]) -> int:
    try:
        print(ensure_java(Path(arguments[0] if arguments else ".java")))
    except NotFoundError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
