"""Arguments as operators get them: values, or the text that a template rendered to."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_paimon.argument_origin import is_mapped_value
from airflow_paimon.core.errors import InvalidInputError


class StrictTemplates:
    """A template that renders to None gives the text ``None``, also with ``render_template_as_native_obj``.

    So it is refused or allowed in both the same way: an argument that is None counts as left out. What ``expand`` and
    ``expand_kwargs`` take from other tasks is a value, not a template: Airflow (3.3.2) renders the latter, by which
    the SQL of a form would read connections and variables.
    """

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], *args: Any, **kwargs: Any
    ) -> None:
        dag = self.get_dag()  # type: ignore[attr-defined]
        declared = None if dag is None else dag.task_dict.get(self.task_id)  # type: ignore[attr-defined]
        fields = [name for name in template_fields if not is_mapped_value(declared, name, getattr(parent, name))]
        super()._do_render_template_fields(parent, fields, *args, **kwargs)  # type: ignore[misc]

    def render_template(self, content: Any, *args: Any, **kwargs: Any) -> Any:
        """Render as Airflow does."""
        rendered = super().render_template(content, *args, **kwargs)  # type: ignore[misc]
        return "None" if rendered is None and isinstance(content, str) else rendered


def is_blank(value: Any) -> bool:
    """Say whether an argument is left out, or a template that rendered to nothing."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "None"))


def as_list(name: str, value: Any) -> list[str]:
    """Take a list, one text or number, or a template that rendered to the text of a list."""
    if value is None:
        return []
    if isinstance(value, str):
        text = value.strip()
        parsed = _literal(name, text) if text.startswith(("[", "(")) else [text] if text else []
    else:
        parsed = [value] if isinstance(value, int) else value
    if isinstance(parsed, Mapping) or not isinstance(parsed, Iterable):
        raise InvalidInputError(f"{name} must be a list of texts, got {parsed!r}")
    return [str(item) for item in parsed]


def as_dict(name: str, value: Any) -> dict[str, Any]:
    """Take a mapping, or a template that rendered to the text of one, or to nothing."""
    parsed = {} if is_blank(value) else _literal(name, value) if isinstance(value, str) else value
    if not isinstance(parsed, Mapping):
        raise InvalidInputError(f"{name} must be a mapping, got {type(parsed).__name__}")
    return dict(parsed)


def _literal(name: str, text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    raise InvalidInputError(f"{name} rendered to {text!r}, which is neither JSON nor a Python literal")
