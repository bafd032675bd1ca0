"""Sphinx's configuration of the documentation site; `make docs` builds it, and any warning fails the build."""

import inspect
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]
# Importing an operator imports Airflow, which writes a configuration into its home.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-paimon-docs-"))

from airflow_paimon import __version__  # noqa: E402  # the path comes first

project = "airflow-paimon"
version = release = __version__
author = "the airflow-paimon authors"
project_copyright = "the airflow-paimon authors, Apache License 2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "reference_directives"]
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
exclude_patterns = ["_ext"]
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"show-inheritance": False}
# Airflow's base classes document themselves on Airflow's site.
autodoc_inherit_docstrings = False
nitpicky = False

html_theme = "furo"
html_title = f"airflow-paimon {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True


def operator_signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, None] | None:
    """Show the arguments of an operator with their defaults; Airflow's metaclass hides them from autodoc."""
    if what != "class" or not name.endswith(("Operator", "Sensor")):
        return None
    shown: dict[str, inspect.Parameter] = {}
    for base in thing.__mro__:
        is_ours = base.__module__.startswith("airflow_paimon.") and "__init__" in vars(base)
        if is_ours and (base is thing or base.__name__ != "PaimonOperator"):
            for parameter in list(inspect.signature(base.__init__).parameters.values())[1:]:
                if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                    shown.setdefault(parameter.name, parameter.replace(annotation=inspect.Parameter.empty))
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    return str(inspect.Signature([*shown.values(), rest])), None


def escape_names(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep the underscore at the end of an argument's name (``from_``), which marks a reference elsewhere."""
    lines[:] = [re.sub(r"^(:param \w+)_:", r"\1\\_:", line) for line in lines]


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """Make the navigation of the lists of the index, which are links where Sphinx doesn't show the page."""
    if name == "index":
        found = re.findall(r"^## (.+)\n\n((?:- .+\n)+)", source[0], re.MULTILINE)
        lists = [(title, "\n".join(re.findall(r"\]\((.+)\.md\)", pages))) for title, pages in found]
        trees = [f"```{{toctree}}\n:hidden:\n:caption: '{title}'\n\n{pages}\n```\n\n" for title, pages in lists]
        text, contributing = source[0].split("```{toctree}")
        source[0] = "".join([text, *trees, "```{toctree}", contributing])


def add_dark_pictures(app: Any, doctree: nodes.document) -> None:
    """Show ``x-dark.png`` instead of ``x.png`` in the dark theme, where it exists."""
    for image in list(doctree.findall(nodes.image)):
        dark = image["uri"].replace(".png", "-dark.png")
        if dark != image["uri"] and (Path(app.srcdir, app.env.docname).parent / dark).is_file():
            other = image.deepcopy()
            other["uri"], other["classes"], image["classes"] = dark, ["only-dark"], ["only-light"]
            image.parent.insert(image.parent.index(image) + 1, other)


def setup(app: Any) -> None:
    """Register what the configuration adds."""
    app.connect("doctree-read", add_dark_pictures, priority=400)  # before Sphinx collects the images
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", escape_names)
    app.connect("autodoc-process-signature", operator_signature)
