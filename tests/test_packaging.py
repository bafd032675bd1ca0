"""The wheel, built and installed elsewhere: what works only in a checkout is no product."""

import hashlib
import json
import os
import py_compile
import re
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

import airflow_paimon
from airflow_paimon.bundled import dags_folder, job_names, job_path, package_archive
from airflow_paimon.core.errors import InvalidInputError
from hatch_build import standalone
from tests.distributions import build, differing, findings, unpacked
from tests.environment import REPO_ROOT

DOCS = REPO_ROOT / "docs"
ONLY_THE_TOOL = (DOCS / "reference" / "python.md").read_text()
_EPOCH = "1700000000"
_POINTERS = re.compile(
    r"docs/([\w-]+(?:/[\w-]+)?)\.md"  # a text that becomes a link
    r"|page_address\(['\"]([\w/-]+)"  # advice in a log
    r"|/_docs/([\w-]+(?:/[\w-]+)?)\""  # a template of the page Paimon
)


@dataclass(frozen=True)
class Installed:
    """A virtual environment, far from the checkout, with the wheel in it and the dependencies lent by this one."""

    python: Path
    site: Path
    scratch: Path

    def run(self, code: str, *, blocked: tuple[str, ...] = ()) -> Any:
        """Run code that prints one JSON value, isolated from the working folder and the environment; give the value."""
        prelude = f"import sys; sys.modules.update({dict.fromkeys(blocked)!r})\n"
        return json.loads(run([str(self.python), "-I", "-c", prelude + textwrap.dedent(code)], self.scratch))


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sdist and the wheel of the checkout."""
    return build(REPO_ROOT, tmp_path_factory.mktemp("built"), _EPOCH)


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> Path:
    return built[1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    run([*install, "--python", str(python), str(wheel)], folder)
    site = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    # Only the folder is lent, not what a .pth in it adds: the editable install of the checkout stays out of sight.
    (site / "lent_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(python, site, folder)


def names_under(folder: Path, pattern: str) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob(pattern) if "__pycache__" not in p.parts}


def test_the_wheel_holds_the_package_the_jobs_and_the_dags_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = f"airflow_paimon-{airflow_paimon.__version__}.dist-info/"
    kinds = ("*.py", "*.html", "*.css", "*.js")
    documents = {name for kind in ("*.md", "*.svg", "*.png") for name in names_under(DOCS, kind)}
    pages = {f"airflow_paimon/_bundled/docs/{name}" for name in documents}
    expected = {f"airflow_paimon/{n}" for kind in kinds for n in names_under(REPO_ROOT / "airflow_paimon", kind)} | {
        f"airflow_paimon/_bundled/{folder}/{name}"
        for folder in ("spark_jobs", "dags")
        for name in names_under(REPO_ROOT / folder, "*.py")
    }
    assert expected | pages <= names
    assert {f"{metadata}licenses/LICENSE", f"{metadata}licenses/NOTICE", "airflow_paimon/py.typed"} <= names
    assert all(name.startswith(("airflow_paimon/", metadata)) for name in names)


@pytest.mark.thorough
def test_distributions_of_the_source_distribution_are_the_same_bytes(built: list[Path], tmp_path: Path) -> None:
    source = unpacked(built[0], tmp_path / "source")
    assert not (source / "tests").exists(), "they need files of a checkout"
    for path in source.rglob("*"):
        os.utime(path, (1, 1))
    assert differing(built, build(source, tmp_path / "again", _EPOCH)) == []
    (source / "NOTICE").write_text("another")
    assert len(differing(built, build(source, tmp_path / "other", _EPOCH))) == 2


def test_an_index_takes_the_metadata_and_shows_the_description(built: list[Path], tmp_path: Path) -> None:
    assert [line for path in built for line in findings(path)] == []
    source = unpacked(built[0], tmp_path / "source")
    project = source / "pyproject.toml"
    project.write_text(project.read_text().replace("\nauthors = ", "\nmaintainers = "))
    (source / "PKG-INFO").unlink()  # where hatchling takes a description from that it has made before
    (source / "README.md").write_text("# airflow-paimon\n\nSee ![a picture](docs/_static/page.png)\n")
    wrong = findings(build(source, tmp_path / "wrong", _EPOCH)[1])
    assert [line.split(": ")[1] for line in wrong] == [
        "no author",
        "the description has a link that leads nowhere, docs/_static/page.png",
    ]


def test_links_of_the_readme_lead_to_the_documentation_where_its_address_is_known() -> None:
    text = "[a](docs/howto/sql.md#keys), [b](docs/_static/page.png), [c](https://paimon.apache.org/), [d](#here)"
    assert standalone(text, None) == "a, b, [c](https://paimon.apache.org/), [d](#here)"
    both = '<picture>\n  <source srcset="docs/p-dark.png">\n  <img src="docs/p.png">\n</picture>\n\n'
    assert standalone(f"![p](docs/p.png)\n\n{both}[a](NEWS.md)", "https://docs.test") == "a"
    site = "https://docs.test/paimon"
    assert standalone(text, f"{site}/").startswith(f"[a]({site}/howto/sql.html#keys), [b]({site}/_static/page.png), ")


def test_the_installed_package_is_the_one_under_test(installed: Installed) -> None:
    found = installed.run("import airflow_paimon, json; print(json.dumps(airflow_paimon.__file__))")
    assert Path(found).is_relative_to(installed.site)


def test_the_installed_package_finds_its_jobs_and_dags(installed: Installed) -> None:
    code = """
        import json
        from airflow_paimon.bundled import dags_folder, job_names, job_path
        print(json.dumps([{name: str(job_path(name)) for name in job_names()}, str(dags_folder())]))
    """
    jobs, dags = installed.run(code, blocked=("airflow", "pyspark"))
    assert set(jobs) == set(job_names())
    for name, path in jobs.items():
        assert Path(path).is_relative_to(installed.site)
        assert Path(path).read_bytes() == (REPO_ROOT / "spark_jobs" / f"{name}.py").read_bytes()
    assert names_under(Path(dags), "*.py") == names_under(REPO_ROOT / "dags", "*.py")


def test_the_installed_package_shows_every_page_that_dags_messages_and_the_ui_point_to(installed: Installed) -> None:
    folders = [REPO_ROOT / "dags", *(REPO_ROOT / "airflow_paimon" / name for name in ("dags", "runbooks", "plugin"))]
    sources = [path for folder in folders for kind in ("*.py", "*.html") for path in folder.rglob(kind)]
    pointed_to = {next(filter(None, found)) for path in sources for found in _POINTERS.findall(path.read_text())}
    assert {"runbook", "engines", "limits", "index"} <= pointed_to
    code = """
        import json
        from airflow_paimon.bundled import docs_folder
        from airflow_paimon.plugin.documents import render
        pages = [path.relative_to(docs_folder()).with_suffix("").as_posix() for path in docs_folder().rglob("*.md")]
        print(json.dumps([str(docs_folder()), {name: render(name, "/paimon/_docs").title for name in pages}]))
    """
    folder, titles = installed.run(code, blocked=("airflow", "pyspark"))
    assert Path(folder).is_relative_to(installed.site)
    assert pointed_to <= set(titles)
    assert {f"{name}.md" for name in titles} == names_under(DOCS, "*.md")
    assert all(titles.values())


def test_the_metadata_describes_the_project_and_invents_no_address(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(name).decode())
    assert metadata["Description-Content-Type"] == "text/markdown"
    body = str(metadata.get_payload())
    assert body.strip() == standalone((REPO_ROOT / "README.md").read_text(), None).strip()
    shown = MarkdownIt("commonmark", {"html": False}).enable("table").render(body)
    assert shown.startswith("<h1>airflow-paimon</h1>")
    assert "&lt;" not in re.sub(r"<(code|pre)>.*?</\1>", "", shown, flags=re.DOTALL), "raw HTML is not rendered"
    assert metadata.get_all("Project-URL") is None, "the repository's address is not known"


def test_the_tool_runs_on_the_five_packages_that_the_quick_start_names(installed: Installed, tmp_path: Path) -> None:
    """Nothing else that is installed can be imported: no Airflow, no Spark, nor what these bring."""
    named = re.findall(r'"([^"]+)"', re.search(r"^pip install (\"pyarrow.*)$", ONLY_THE_TOOL, re.MULTILINE)[1])  # type: ignore[index]
    project = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())["project"]
    for_airflow = ("apache-airflow", "markdown-it-py", "pyyaml", "requests")  # the page, rules in forms, and Flink
    assert sorted(named) == sorted(d for d in project["dependencies"] if not d.startswith(for_airflow))
    packages = [re.match(r"[\w-]+", name)[0] for name in named]  # type: ignore[index]
    code = f"""
        import contextlib, importlib.machinery, importlib.util, io, json, os, runpy
        lent, allowed = {sysconfig.get_path("purelib")!r}, {[*packages, "backports", "airflow_paimon"]!r}

        class Named(importlib.machinery.PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                found = super().find_spec(name, path, target)
                place = str(getattr(found, "origin", None) or getattr(found, "submodule_search_locations", ""))
                return None if lent in place and name.partition(".")[0] not in allowed else found

        sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Named
        assert not any(map(importlib.util.find_spec, ("airflow", "pyspark", "yaml", "markdown_it", "pandas")))
        import airflow_paimon, airflow_paimon.cli.main
        from airflow_paimon.bundled import job_path
        import pyarrow as pa
        from airflow_paimon.data import read_arrow, write_arrow

        assert all(callable(getattr(airflow_paimon, n)) for n in airflow_paimon.__all__ if n != "__version__")
        warehouse = {str(tmp_path)!r}
        orders = airflow_paimon.create_table(warehouse, "d.t", [("id", "INT"), ("dt", "STRING")], partition_keys=["dt"])
        orders = airflow_paimon.open_table(warehouse, "d.t")
        for i in range(6):
            write_arrow(orders, pa.table({{"id": pa.array([i], pa.int32()), "dt": ["2026-01-01"]}}))
        airflow_paimon.create_branch(orders, "fix", snapshot=6)
        write_arrow(orders.branch("fix"), pa.table({{"id": pa.array([9], pa.int32()), "dt": ["2026-01-01"]}}))
        airflow_paimon.merge_branch(orders, "fix")
        airflow_paimon.delete_branch(orders, "fix")
        files = airflow_paimon.compact(orders, processes=2).details["files_before"]
        expired = airflow_paimon.expire_snapshots(orders, retain_min=1, retain_max=2).changed
        rows = read_arrow(orders).num_rows
        with contextlib.redirect_stdout(io.StringIO()):
            assert airflow_paimon.cli.main.run(["count", "--warehouse", warehouse, "--table", "d.t"]) == 0
        codes = []
        for job, more in (("check_table", []), ("compact", [])):  # what is not small is Spark's
            sys.argv = [job, "--warehouse=" + warehouse, "--table=d.t", *more]  # where there is one
            kept = os.dup(1)
            try:
                with open("/dev/null", "w") as nowhere:
                    os.dup2(nowhere.fileno(), 1)
                    runpy.run_path(str(job_path(job)), run_name="__main__")
            except SystemExit as end:
                codes.append(end.code)
            finally:
                os.dup2(kept, 1)
        print(json.dumps([files, expired, rows, codes, sorted({{"airflow", "pyspark"}} & set(sys.modules))]))
    """
    assert installed.run(code) == [7, True, 7, [0, 0], []]


def test_every_installed_job_says_how_it_is_called(installed: Installed) -> None:
    bundled = installed.site / "airflow_paimon" / "_bundled" / "spark_jobs"
    usages = installed.run(f"""
        import contextlib, io, json, runpy
        usages = {{}}
        for name in {job_names()!r}:  # in one process: a start takes longer than the answer
            sys.argv = [f"{bundled}/{{name}}.py", "--help"]
            try:
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    runpy.run_path(sys.argv[0], run_name="__main__")
            except SystemExit as end:
                usages[name] = [end.code, said.getvalue()]
        print(json.dumps(usages))
    """)
    assert sorted(usages) == job_names()
    assert [name for name, (code, usage) in usages.items() if code or "--warehouse" not in usage] == []


def test_the_installed_package_answers_people(installed: Installed) -> None:
    usage = run([str(installed.python), "-I", "-m", "airflow_paimon", "--help"], installed.scratch)
    assert "chain" in usage


def test_airflow_finds_the_provider(installed: Installed) -> None:
    code = """
        import json
        from importlib.metadata import entry_points
        (entry,) = [e for e in entry_points(group="apache_airflow_provider") if e.dist.name == "airflow-paimon"]
        print(json.dumps(entry.load()()))
    """
    info = installed.run(code)
    assert info["package-name"] == "airflow-paimon"
    assert airflow_paimon.__version__ in info.get("versions", [airflow_paimon.__version__])


def test_the_archive_for_the_cluster_serves_without_the_package(installed: Installed, tmp_path: Path) -> None:
    built = installed.run(f"""
        import json
        from pathlib import Path
        from airflow_paimon.bundled import package_archive
        print(json.dumps(str(package_archive(Path({str(tmp_path)!r})))))
    """)
    with zipfile.ZipFile(built) as archive:
        folders = {name.split("/")[1] for name in archive.namelist() if not name.endswith(".pyc")}
    assert folders == {"__init__.py", "cli", "core", "data", "execution.py", "notebook", "shown", "spark"}
    code = f"""
        import json, pkgutil, importlib
        sys.path.insert(0, {built!r})
        import airflow_paimon.core, airflow_paimon.data, airflow_paimon.notebook
        assert airflow_paimon.open_table("/nowhere", "d.t").label == "d.t"
        from airflow_paimon.core.table.known_options import is_known
        assert is_known("bucket") and not is_known("buckets"), "data files are read from the archive"
        modules = [m.name for layer in (airflow_paimon.core, airflow_paimon.data, airflow_paimon.notebook)
                   for m in pkgutil.walk_packages(layer.__path__, layer.__name__ + ".")]
        print(json.dumps([importlib.import_module(m).__file__ for m in modules]))
    """
    files = installed.run(code, blocked=("airflow", "pyspark"))
    assert files
    assert all(file.startswith(built + "/") for file in files)


def test_the_archive_is_deterministic_and_written_once(tmp_path: Path) -> None:
    first = package_archive(tmp_path / "a")
    second = package_archive(tmp_path / "b")
    assert first.name == second.name
    assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
    before = first.stat()
    assert package_archive(tmp_path / "a") == first
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list((tmp_path / "a").iterdir()) == [first], "a temporary file was left"


def test_the_archive_holds_modules_compiled_as_well(tmp_path: Path) -> None:
    name = "airflow_paimon/core/errors.py"
    py_compile.compile(str(REPO_ROOT / name))  # where Python keeps what it has compiled
    built = package_archive(tmp_path)
    probe = f"""
        import sys, json
        sys.path.insert(0, {str(built)!r})
        from airflow_paimon.core import errors
        code = errors.PaimonError.__init__.__code__
        print(json.dumps([errors.__file__, code.co_filename, errors.__spec__.loader.get_source(errors.__name__)]))
    """
    command = [sys.executable, "-S", "-c", textwrap.dedent(probe)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    file, in_tracebacks, source = json.loads(ran.stdout)
    assert (file, in_tracebacks) == (f"{built}/{name}c", name), "not compiled again, and no path of this machine"
    assert source == (REPO_ROOT / name).read_text()


def test_another_python_takes_the_sources_of_the_archive(tmp_path: Path) -> None:
    built, other = package_archive(tmp_path), tmp_path / "other.zip"
    with zipfile.ZipFile(built) as archive, zipfile.ZipFile(other, "w") as copy:
        for name in archive.namelist():
            data = archive.read(name)
            copy.writestr(name, b"\0\0\r\n" + data[4:] if name.endswith(".pyc") else data)
    probe = f"import sys; sys.path.insert(0, {str(other)!r}); import airflow_paimon.core.errors as e; print(e.__file__)"
    ran = subprocess.run([sys.executable, "-S", "-c", probe], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert ran.stdout.strip() == f"{other}/airflow_paimon/core/errors.py"


def test_a_checkout_finds_its_own_jobs() -> None:
    assert dags_folder() == REPO_ROOT / "dags"
    assert {job_path(name).parent for name in job_names()} <= {REPO_ROOT / "spark_jobs"}


@pytest.mark.parametrize("name", ["../secrets", "a/b", "", "__init__", "create_branch.py", "fly_to_the_moon"])
def test_a_name_that_is_not_a_job_name_is_invalid(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"There is no job {name!r}"):
        job_path(name)


def test_the_changelog_tells_of_this_version() -> None:
    assert f"## {airflow_paimon.__version__}" in (REPO_ROOT / "CHANGELOG.md").read_text()
