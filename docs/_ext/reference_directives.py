"""Directives for reference pages that are made from the code itself, so that they can't fall behind it.

``{job-reference}`` describes every bundled job: what it does, where it runs, and its flags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from airflow_paimon.core.requests.operations import OPERATIONS, OperationSpec
from airflow_paimon.core.requests.requests import Request, flag_name

_COMMON = {field.name for field in dataclasses.fields(Request)}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("job-reference", JobReference)
    return {"parallel_read_safe": True}


class JobReference(SphinxDirective):
    """A section for each job; the flags that all jobs take come first, once."""

    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        """Return the sections, parsed as text of the page that holds the directive."""
        return self.parse_text_to_nodes("\n".join(_pages()), allow_section_headings=True)


def _pages() -> Iterator[str]:
    yield "## Flags that every job takes\n"
    yield from _flag_table(list(dataclasses.fields(Request)))
    for operation in OPERATIONS.values():
        yield from _job(operation)


def _job(operation: OperationSpec) -> Iterator[str]:
    yield f"\n## {operation.request.operation}\n\n{operation.summary}\n"
    spark = "Spark, or in any Python if the work is small" if operation.in_python else "Spark"
    yield f"Runs in {spark if operation.needs_spark else 'any Python, without Spark'}.\n"
    own = [field for field in dataclasses.fields(operation.request) if field.name not in _COMMON]
    yield from _flag_table(own)


def _flag_table(fields: list[dataclasses.Field[Any]]) -> Iterator[str]:
    if not fields:
        return
    yield "| flag | meaning | default |\n|---|---|---|"
    for field in fields:
        text = str(field.metadata["help"]).replace("|", "\\|")
        yield f"| `{_flag(field)}` | {text} | {_default(field)} |"


def _flag(field: dataclasses.Field[Any]) -> str:
    name = flag_name(field.name)
    if isinstance(field.default, bool):
        return f"--no-{name[2:]}" if field.default else name
    choices = field.metadata.get("choices")
    value = "\\|".join(choices) if choices else "VALUE"
    return f"{name} {value}" + (" ..." if field.metadata.get("repeat") else "")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default == "":
        return "required"
    if isinstance(field.default, bool) or field.default in (None, ()) or field.default is dataclasses.MISSING:
        return ""
    return f"`{field.default}`"
