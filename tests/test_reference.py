"""The built site: every public class of the Airflow layer is in its reference, with each of its parameters."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.get_provider_info import get_provider_info
from tests.environment import REPO_ROOT

KINDS = ("operators", "sensors", "triggers", "hooks")
WORDS = ("run_on", "deploy_mode", "storage_options", "py_files", "spark_conf", "paimon_conn_id", "spark_conn_id")


def public_classes() -> list[type[Any]]:
    info = get_provider_info()
    names = [name for kind in KINDS for group in info[kind] for name in group["python-modules"]]
    modules = [importlib.import_module(name) for name in [*names, "airflow_paimon.operators._base"]]
    public = [(module, name) for module in modules for name in getattr(module, "__all__", ["PaimonOperator"])]
    things = [getattr(module, name) for module, name in public]
    return sorted({thing for thing in things if inspect.isclass(thing)}, key=str)


def own_bases(thing: type[Any]) -> list[type[Any]]:
    """The class and its bases of this package, the class first."""
    return [base for base in thing.__mro__ if base.__module__.startswith("airflow_paimon.")]


def parameters(thing: type[Any]) -> set[str]:
    """What its constructor takes, without what Airflow's own bases take."""
    found = [p for base in own_bases(thing) for p in list(inspect.signature(base.__init__).parameters.values())[1:]]
    return {p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the site as `make docs` does, but for its theme, which takes a quarter of the time; gives what the
    reference says of each class, by its full name.
    """
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    # The words of its search, without their endings taken off, which takes as long as the theme would.
    command += ["-D", "html_theme=basic", "-D", "html_search_language=none"]
    done = subprocess.run([*command, str(REPO_ROOT / "docs"), str(folder)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    described: dict[str, str] = {}
    for page in folder.rglob("*.html"):
        for part in re.split(r'<dl class="py (?:class|function|exception)">', page.read_text())[1:]:
            if name := re.search(r'id="([\w.]+)"', part):
                described[name[1]] = part
    return described


def test_every_class_and_parameter_of_the_airflow_layer_is_described(site: dict[str, str]) -> None:
    classes = public_classes()
    assert len(classes) >= 24
    missing = []
    for thing in classes:
        names = [f"{base.__module__}.{base.__qualname__}" for base in own_bases(thing)]
        said = " ".join(site.get(name, "") for name in names)
        fields = set(re.findall(r"<strong>(\w+)</strong>", said))
        missing += [names[0]] if names[0] not in site else []
        missing += [f"{names[0]}: {name}" for name in sorted(parameters(thing) - fields)]
    assert missing == []


def test_signatures_show_what_a_class_takes_besides_what_all_operators_take(site: dict[str, str]) -> None:
    signature = site["airflow_paimon.operators.branch.MergeBranchOperator"].split("</dt>")[0]
    assert {"branch", "undo_retention", "writers_stopped"} <= set(
        re.findall(r'<span class="pre">(\w+)</span>', signature)
    )


def test_the_overview_names_every_operator_and_sensor() -> None:
    overview = set(re.findall(r"\w+", (REPO_ROOT / "docs" / "operators" / "index.md").read_text().split("\n## ")[0]))
    names = {thing.__name__ for thing in public_classes() if thing.__name__.endswith(("Operator", "Sensor"))}
    assert names - {"PaimonOperator"} - overview == set()


@pytest.mark.parametrize("word", WORDS)
def test_a_page_explains_what_operators_have_in_common(word: str) -> None:
    pages: list[Path] = [REPO_ROOT / "README.md", *(REPO_ROOT / "docs").rglob("*.md")]
    assert any(re.search(rf"`[^`]*\b{word}\b[^`]*`", page.read_text()) for page in pages)
