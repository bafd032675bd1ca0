"""What is used of the Spark provider without its promise: a new version of the provider is compared with this list."""

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest
from airflow.providers.apache.spark.hooks import spark_connect, spark_submit

import airflow_paimon

pytestmark = pytest.mark.airflow

HOOKS = Path(airflow_paimon.__file__).parent / "hooks"
METHODS = {
    "_build_spark_submit_command": ("self", "application"),
    "_get_spark_binary_path": ("self",),
    "_resolve_connection": ("self",),
    "_run_post_submit_commands": ("self",),
}
"""Called, or replaced by our own hook."""
ATTRIBUTES = frozenset((
    "_application_args", "_conf", "_conn_id", "_connection", "_env", "_env_vars", "_files",
    "_is_kubernetes", "_is_yarn", "_name", "_properties_file", "_py_files",
))  # fmt: skip
"""Read or set."""


def own_members(module: ModuleType) -> set[str]:
    """Name the private methods of a module's classes, and the private attributes that these set."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def used(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} | {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)
    }


def test_the_private_members_that_are_used_are_listed_and_there() -> None:
    theirs = own_members(spark_submit)
    assert METHODS.keys() | ATTRIBUTES <= theirs
    ours = set().union(*(used(HOOKS / f"{name}.py") for name in ("spark_job", "_drivers", "_kubernetes", "_yarn")))
    assert ours & theirs == METHODS.keys() | ATTRIBUTES
    assert used(HOOKS / "spark_connect_job.py") & own_members(spark_connect) == {"_conn_id"}


@pytest.mark.parametrize("name", METHODS)
def test_a_private_method_takes_what_it_is_given(name: str) -> None:
    found = inspect.signature(getattr(spark_submit.SparkSubmitHook, name)).parameters
    assert tuple(found) == METHODS[name]


def test_the_client_of_kubernetes_is_where_the_driver_looks_for_it() -> None:
    """It is optional: the provider imports it where Kubernetes' client is installed."""
    imports = [n for n in ast.walk(ast.parse(inspect.getsource(spark_submit))) if isinstance(n, ast.ImportFrom)]
    assert "kube_client" in {alias.name for node in imports for alias in node.names}
