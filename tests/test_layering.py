"""The arrows between the layers, checked over every import statement, those inside functions too."""

import ast
import gc
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.environment import REPO_ROOT

PACKAGE = "airflow_paimon"
AIRFLOW = ("airflow",)
SPARK = ("pyspark", "py4j")
STORAGE_LIBRARIES = (
    "fsspec", "s3fs", "botocore", "boto3", "aiobotocore", "google", "azure", "alibabacloud_oss_v2", "requests",
    "hdfs_native",
)  # fmt: skip
# The hook asks it, too, where Java is; a test below holds that it brings no Spark with it.
JAVA_SEARCH = "airflow_paimon.spark.java"
MUTATIONS = {
    "create", "create_many", "delete", "delete_empty", "delete_same", "hint", "open_output", "replace", "replace_same",
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """``ours``: the parts of airflow_paimon that it may import; ``banned``: the foreign packages that it may not."""

    name: str
    ours: frozenset[str]
    banned: tuple[str, ...]


CORE = Layer("core", frozenset({"core"}), AIRFLOW + SPARK)
DATA = Layer("data", frozenset({"core", "data"}), AIRFLOW + SPARK)
SPARK_LAYER = Layer("spark", frozenset({"core", "data", "execution", "spark"}), AIRFLOW)
JOBS = Layer("spark_jobs", frozenset({"core", "data", "spark"}), AIRFLOW)
# Binds the functions of core and data to the names of operations; whoever runs an operation without Spark imports it.
EXECUTION = Layer("execution", frozenset({"core", "data", "execution"}), AIRFLOW + SPARK)
SHOWN = Layer("shown", frozenset({"core", "shown", "execution"}), AIRFLOW + SPARK)
# `bundled` finds the job scripts, which the command `job` runs.
CLI = Layer("cli", frozenset({"core", "shown", "cli", "bundled"}), AIRFLOW + SPARK)
# Of the look-ups, only these read rows; the others, which the page shows as well, read metadata.
CLI_ROWS = Layer("cli/rows", frozenset({"core", "shown", "data"}), AIRFLOW + SPARK)
NOTEBOOK = Layer("notebook", frozenset({"core", "shown", "cli", "data", "execution", "notebook"}), AIRFLOW + SPARK)
# Its functions take SQL and functions of the user, which only Spark runs.
WITH_SPARK = Layer("notebook/with_spark", NOTEBOOK.ours | {"spark"}, AIRFLOW + SPARK)
# Rows for one hook of the Airflow layer, in the worker: a test below holds that nothing else of that layer reads any.
SQL = Layer("sql", frozenset({"core", "data", "sql"}), AIRFLOW + SPARK)
# The root imports nothing at all until `open_table` is asked for.
ROOT = Layer("__init__", frozenset({"core", "notebook"}), AIRFLOW + SPARK)


def airflow_layer() -> Layer:
    """Everything else in the package: it may use itself and the core, and submits Spark instead of importing it."""
    lower = {"data", "spark", "notebook"}
    parts = {path.stem for path in (REPO_ROOT / PACKAGE).iterdir()}
    return Layer("airflow", frozenset(parts - lower), SPARK)


def sources() -> list[Path]:
    return sorted(
        path.relative_to(REPO_ROOT) for folder in (PACKAGE, "spark_jobs") for path in (REPO_ROOT / folder).rglob("*.py")
    )


def layer_of(path: Path) -> Layer:
    if path.parts[0] == "spark_jobs":
        return JOBS
    if path.parts[1:] == ("cli", "rows.py"):
        return CLI_ROWS
    if path.parts[1:] == ("notebook", "with_spark.py"):
        return WITH_SPARK
    by_name = {layer.name: layer for layer in (CORE, SHOWN, DATA, SPARK_LAYER, CLI, NOTEBOOK, SQL)} | {
        "__main__.py": CLI,
        "execution.py": EXECUTION,
    }
    if path.parts[1] == "__init__.py":
        return ROOT
    return by_name.get(path.parts[1]) or airflow_layer()


parsed = cache(ast.parse)
"""The tree of a source, which several tests look at."""


@pytest.fixture(scope="module", autouse=True)
def without_garbage_collection() -> Iterator[None]:
    """The trees are a million objects that stay: to collect among them takes three times as long as to parse."""
    gc.disable()
    yield
    parsed.cache_clear()
    executed.cache_clear()
    gc.enable()


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every module that may be imported, with its line; ``from a import b`` is ``a.b``, as b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__"} and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


@cache
def imported_in(source: str) -> tuple[tuple[int, str], ...]:
    return tuple(imported(parsed(source)))


def called_name(node: ast.Call) -> str | None:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def import_faults(source: str, path: Path, layer: Layer) -> list[str]:
    faults = []
    for line, module in imported_in(source):
        head, _, rest = module.partition(".")
        part = rest.partition(".")[0]
        if head == "":
            faults.append(f"{path}:{line}: relative import")
        elif layer.name == "airflow" and module.startswith(f"{JAVA_SEARCH}."):
            continue
        elif head in layer.banned or (head == PACKAGE and part and part not in layer.ours | {"__version__"}):
            faults.append(f"{path}:{line}: {layer.name} imports {module}")
        elif layer is CORE and head in STORAGE_LIBRARIES and "store" not in path.parts:
            faults.append(f"{path}:{line}: only the store package may import {module}")
    return faults


def private_faults(source: str, path: Path) -> list[str]:
    """Imports of a name that begins with an underscore, from outside of the module or the folder that it belongs to."""
    faults = []
    for line, module in imported_in(source):
        parts = module.split(".")
        for at, part in enumerate(parts):
            is_private = part.startswith("_") and not part.startswith("__")
            if is_private and parts[0] == PACKAGE and path.with_suffix("").parts[:at] != tuple(parts[:at]):
                faults.append(f"{path}:{line}: imports {module}, which is private to {'.'.join(parts[:at])}")
    return faults


def resolved_faults(source: str, path: Path) -> list[str]:
    """Texts that name modules of the layers below the Airflow layer; docstrings may."""
    tree = parsed(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        f"{path}:{node.lineno}: names {node.value!r}, a module of another layer"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in prose
        and re.match(rf"{PACKAGE}\.(data|spark)\b", node.value)
    ]


def names_in(node: ast.AST) -> Iterator[str]:
    """The names along a receiver: ``self._store.child(p)`` gives child, _store and self."""
    while True:
        match node:
            case ast.Call(func=inner):
                node = inner
            case ast.Attribute(value=inner, attr=name):
                yield name
                node = inner
            case ast.Name(id=name):
                yield name
                return
            case _:
                return


def mutation_faults(source: str, path: Path) -> list[str]:
    return [
        f"{path}:{node.lineno}: {node.func.attr}() on a store; only the committer mutates storage"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in MUTATIONS
        and any(name == "store" or name.endswith("_store") for name in names_in(node.func.value))
    ]


def may_mutate(path: Path) -> bool:
    """The committer and the stores; the data layer puts files that no table names yet.

    The result file lies beside no table: a job puts it, the hook that read it deletes it.
    """
    parts = path.with_suffix("").parts[1:]
    committer = parts[:2] in {("core", "store"), ("core", "commit")}
    return committer or parts[:1] == ("data",) or parts in {("spark", "launch"), ("hooks", "_job_files")}


def test_every_import_goes_down_the_layers() -> None:
    paths = sources()
    assert len(paths) > 10, "the walk found no sources"
    faults = [fault for path in paths for fault in import_faults((REPO_ROOT / path).read_text(), path, layer_of(path))]
    assert not faults, "\n".join(faults)


def test_only_the_hook_for_sql_reads_rows_in_airflows_processes() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources()
        if layer_of(path).name == "airflow"
        for _, module in imported_in((REPO_ROOT / path).read_text())
        if module.startswith(f"{PACKAGE}.sql.")
    }
    assert found == {"hooks/sql.py"}


def test_no_room_imports_what_is_private_to_another() -> None:
    faults = [fault for path in sources() for fault in private_faults((REPO_ROOT / path).read_text(), path)]
    assert not faults, "\n".join(faults)


def test_the_airflow_layer_resolves_no_module_of_data_and_spark_by_its_name() -> None:
    paths = [path for path in sources() if layer_of(path).name == "airflow"]
    assert len(paths) > 50
    faults = [fault for path in paths for fault in resolved_faults((REPO_ROOT / path).read_text(), path)]
    assert not faults, "\n".join(faults)


def test_only_the_committer_mutates_storage() -> None:
    faults = [
        fault
        for path in sources()
        if not may_mutate(path)
        for fault in mutation_faults((REPO_ROOT / path).read_text(), path)
    ]
    assert not faults, "\n".join(faults)


# A room of the core may import the rooms before it. `errors` and `plan` are modules that stand for a room.
ROOMS = (
    "errors", "garbage", "plan", "store", "format", "row_tracking", "catalogs", "table", "commit",
    "sql_text", "streaming", "requests", "manifests", "rules", "schema", "branches", "table_sets", "publish",
    "audit", "metadata_expiry", "erasure", "partition_marks", "partition_expiry", "check", "chain", "health",
)  # fmt: skip
# Module -> the later rooms that it may import all the same, and why.
UPWARD = {
    "core/__init__.py": ({"commit"}, "registers the guard of commits"),
    "core/catalogs/options.py": ({"table"}, "reads durations"),
    "core/catalogs/rest_statistics.py": ({"table"}, "names partitions"),
    "core/catalogs/rest_store.py": ({"table"}, "knows the paths of metadata, and which branch is being deleted"),
    "core/catalogs/table_store.py": ({"table"}, "knows the paths of snapshots and schemas"),
    "core/commit/staging.py": ({"branches", "publish"}, "makes and deletes a branch, merges its index entries"),
    "core/commit/idempotency.py": ({"requests"}, "digests a request"),
    "core/schema/tables.py": ({"chain"}, "checks the schemas of a chain table's branches"),
    "core/publish/publish_branch.py": ({"chain"}, "refuses to publish a branch of a chain table"),
    "core/partition_expiry/expire_partitions.py": ({"chain"}, "expires chain tables by segments"),
}


def room_faults(source: str, path: Path) -> dict[str, list[str]]:
    """Imports of later rooms of the core: room -> the lines that import it."""
    room = path.parts[2].removesuffix(".py")
    before = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ()
    faults: dict[str, list[str]] = {}
    for line, module in imported_in(source):
        parts = module.split(".")
        if parts[:2] == [PACKAGE, "core"] and len(parts) > 2 and parts[2] not in before:
            faults.setdefault(parts[2], []).append(f"{path}:{line}: room {room!r} imports {module}")
    return faults


def test_what_is_not_sparks_public_api_is_used_in_its_modules_alone() -> None:
    private = re.compile(
        r"\._(jvm|jdf|jsparkSession|jsc|jc|jseq|gateway|serialize_to_jvm|collect_as_arrow)\b|import _\w+"
    )
    own = {f"{PACKAGE}/spark/{name}.py" for name in ("jvm", "parquet_scan", "native_scan")}
    for path in sources():
        if path.parts[:2] == (PACKAGE, "spark") and path.as_posix() not in own:
            assert not private.findall((REPO_ROOT / path).read_text()), path


def test_the_rooms_of_the_core_import_only_the_rooms_before_them() -> None:
    faults, needless = [], {name: set(rooms) for name, (rooms, _) in UPWARD.items()}
    for path in (path for path in sources() if path.parts[1] == "core"):
        name = path.relative_to(PACKAGE).as_posix()
        allowed = UPWARD.get(name, (set(), ""))[0]
        for room, lines in room_faults((REPO_ROOT / path).read_text(), path).items():
            needless.get(name, set()).discard(room)
            faults += [] if room in allowed else lines
    assert not faults, "\n".join(faults)
    assert not any(needless.values()), f"exceptions that nothing needs any more: {needless}"


def test_the_committer_knows_nothing_of_chain_tables() -> None:
    modules = [path for path in sources() if path.parts[1:3] == ("core", "commit")]
    assert len(modules) > 5
    assert not [path for path in modules if "core.chain" in (REPO_ROOT / path).read_text()]


IMPURE = {"time", "random", "uuid", "os", "secrets", "socket", "subprocess", "pathlib", "tempfile"}


def purity_faults(source: str, path: Path) -> list[str]:
    """What a ``*_plan.py`` module must not do: reach a store, a clock or chance."""
    tree = executed(source)
    faults = [
        f"{path}:{line}: a plan imports {module}"
        for line, module in imported(tree)
        if module.partition(".")[0] in IMPURE | set(STORAGE_LIBRARIES) or module.startswith(f"{PACKAGE}.core.store")
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"store", "now", "utcnow", "today"}:
            faults.append(f"{path}:{node.lineno}: a plan uses .{node.attr}")
    return faults


def test_plans_are_pure() -> None:
    plans = [path for path in sources() if path.stem.endswith("_plan")]
    assert len(plans) > 10
    faults = [fault for path in plans for fault in purity_faults((REPO_ROOT / path).read_text(), path)]
    assert not faults, "\n".join(faults)


@cache
def loaded_by(source: str) -> frozenset[str]:
    """What a source imports outside of functions."""
    body = [node for node in executed(source).body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return frozenset(name for _, name in imported(ast.Module(body, [])))


def loaded_with(module: str, modules: dict[str, Path]) -> set[str]:
    """The modules of ours that are loaded when a module is imported: through what stands outside of functions."""
    seen, waiting = set(), {module}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        loaded = loaded_by((REPO_ROOT / modules[name]).read_text())
        found = {m if m in modules else m.rpartition(".")[0] for m in loaded}
        waiting |= (found & modules.keys()) - seen
    return seen


def test_plans_load_no_store() -> None:
    """Not directly, and not through what they import."""
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in sources()}
    stores = {name for name in modules if name.startswith(f"{PACKAGE}.core.store")}
    assert stores & loaded_with(f"{PACKAGE}.core.table.scan", modules), "the walk misses what scan loads"
    plans = [name for name in modules if name.endswith("_plan")]
    faults = {name: sorted(found) for name in plans if (found := stores & loaded_with(name, modules))}
    assert not faults


@pytest.mark.parametrize(
    "source",
    ["import time", "from uuid import uuid4", "from airflow_paimon.core.store import Store", "table.store.read('x')",
     "datetime.now(UTC)"],
)  # fmt: skip
def test_an_impure_plan_is_found(source: str) -> None:
    assert len(purity_faults(source, Path("x_plan.py"))) == 1


def test_an_arrow_between_rooms_that_points_up_is_found() -> None:
    path = Path(PACKAGE, "core", "table", "x.py")
    assert room_faults("from airflow_paimon.core.commit.put import execute", path).keys() == {"commit"}
    assert not room_faults("from airflow_paimon.core.format.schema import TableSchema", path)


def test_modules_form_no_cycle() -> None:
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in sources()}
    graph = {}
    for name, path in modules.items():
        statements = imported(executed((REPO_ROOT / path).read_text()))
        # `from package import name` names a module of the package, or the package itself.
        found = {module if module in modules else module.rpartition(".")[0] for _, module in statements}
        graph[name] = (found & modules.keys()) - {name}
    assert cycle(graph) is None, "import cycle: " + " -> ".join(cycle(graph) or [])


@cache
def executed(source: str) -> ast.Module:
    """The source without what only a type checker runs."""
    return ast.Module(
        [n for n in parsed(source).body if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))], []
    )


def cycle(graph: dict[str, set[str]]) -> list[str] | None:
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str] | None:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return None
        for other in sorted(graph[name]):
            if found := visit(other, [*trail, name]):
                return found
        done.add(name)
        return None

    return next((found for name in sorted(graph) if (found := visit(name, []))), None)


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        (CORE, "def f():\n    import airflow.sdk"),
        (CORE, "from airflow_paimon import data"),
        (CORE, "from airflow_paimon.spark.java import find_java"),
        (CORE, "import importlib\nimportlib.import_module('pyspark.sql')"),
        (CORE, "import fsspec"),
        (CORE, "from . import paths"),
        (DATA, "from pyspark.sql import SparkSession"),
        (SPARK_LAYER, "from airflow_paimon.hooks.paimon import PaimonHook"),
        (JOBS, "from airflow_paimon import bundled"),
        (CLI, "from airflow_paimon.data.arrow_read import read_arrow"),
        (CLI_ROWS, "from airflow_paimon.notebook.table import open_table"),
        (NOTEBOOK, "from airflow_paimon.spark.read import read_table"),
        (SQL, "from airflow_paimon.hooks.paimon import PaimonHook"),
        (ROOT, "from airflow_paimon.data import read_arrow"),
        (airflow_layer(), "from airflow_paimon.notebook.table import open_table"),
        (airflow_layer(), "if True:\n    import pyspark"),
        (airflow_layer(), "import airflow_paimon.data.read"),
    ],
)
def test_a_forbidden_import_is_found(layer: Layer, source: str) -> None:
    assert len(import_faults(source, Path(PACKAGE, layer.name, "x.py"), layer)) == 1


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("from airflow_paimon.operators._base import PaimonOperator", 1),
        ("def f():\n    from airflow_paimon.core.table.scan import _merged", 1),
        ("import airflow_paimon.operators._base", 1),
        ("from airflow_paimon.hooks._drivers import driver_of", 0),
        ("from airflow_paimon._compat import conf", 0),
        ("from airflow_paimon.core.table import __doc__", 0),
    ],
)
def test_an_import_of_something_private_is_found(source: str, number: int) -> None:
    assert len(private_faults(source, Path(PACKAGE, "hooks", "x.py"))) == number


def test_a_module_that_is_resolved_by_its_name_is_found() -> None:
    calls = 'import_module("airflow_paimon.data." + name)', 'import_module(f"airflow_paimon.spark.{name}")'
    source = "\n".join(['"""Calls airflow_paimon.data.read."""', *calls])
    assert len(resolved_faults(source, Path("x.py"))) == 2


@pytest.mark.parametrize(
    "call", ["store.create(p, b)", "self._store.delete(p)", "table.store.child(p).delete_empty('')"]
)
def test_a_forbidden_mutation_is_found(call: str) -> None:
    assert len(mutation_faults(f"def f(self):\n    {call}", Path("x.py"))) == 1
    assert not mutation_faults(f"def f(self):\n    committer.replace(p)\n    '{'a'}'.replace('a', 'b')", Path("x.py"))


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_layers_below_the_airflow_layer_import_without_airflow_and_spark() -> None:
    out = run_python("""
        import importlib, pkgutil, sys
        sys.modules.update(airflow=None, pyspark=None)
        for layer in ("core", "shown", "data", "cli", "notebook", "sql"):
            package = importlib.import_module(f"airflow_paimon.{layer}")
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                importlib.import_module(module.name)
                print(module.name)
    """)
    assert "airflow_paimon.core.errors" in out.split()


def test_what_runs_without_a_jvm_imports_without_spark() -> None:
    run_python(f"""
        import sys
        sys.modules.update(airflow=None, pyspark=None)
        import airflow_paimon.bundled, airflow_paimon.spark.launch, {JAVA_SEARCH}
    """)


def test_the_package_itself_imports_nothing_heavy() -> None:
    out = run_python("""
        import sys
        import airflow_paimon
        heavy = {"airflow", "pyspark", "pyarrow", "numpy", "fsspec", "fastavro", "pandas"}
        print(sorted(heavy & sys.modules.keys()), airflow_paimon.__version__)
    """)
    assert out.startswith("[] ")


def test_a_table_is_opened_without_arrow() -> None:
    out = run_python("""
        import sys
        import airflow_paimon
        table = airflow_paimon.open_table("/nowhere", "d.t")
        print(table.label, sorted({"airflow", "pyspark", "pyarrow", "numpy", "pandas"} & sys.modules.keys()))
    """)
    assert out.split() == ["d.t", "[]"]


def test_open_table_and_create_table_are_found_lazily() -> None:
    out = run_python("""
        import airflow_paimon
        from airflow_paimon.notebook.create import create_table
        from airflow_paimon.notebook.table import open_table
        print(airflow_paimon.open_table is open_table, airflow_paimon.create_table is create_table)
        print({"open_table", "create_table"} <= set(dir(airflow_paimon)), hasattr(airflow_paimon, "x"))
    """)
    assert out.split() == ["True", "True", "True", "False"]
