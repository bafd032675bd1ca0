"""Arguments as operators get them: values, or the text that a template rendered to."""

from __future__ import annotations

import ast
import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, ParamSpec

from jinja2.nativetypes import NativeEnvironment

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.forms.origin import is_mapped_value, source_of

_Arguments = ParamSpec("_Arguments")


class StrictTemplates:
    """Renders templates to texts, and only to texts, also with ``render_template_as_native_obj``.

    Names stay what they are: natively rendered the tag ``2026_11_18`` would be the number 20261118. Arguments that are
    no texts are parsed from theirs. A template that renders to None gives the text ``None``; an argument that is None
    counts as left out. What ``expand`` and ``expand_kwargs`` take from other tasks is a value, not a template: Airflow
    (3.3.2) renders the latter, by which the SQL of a form would read connections and variables.

    Of Airflow's ``template_ext`` any text with such an end would be taken for a file: a table, or a value in a list.
    Here only a field of ``file_fields`` may name one, by all of its text.
    """

    file_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields whose text may be the name of a file beside the DAG instead, with the ends of such names."""
    native_fields: ClassVar[Collection[str]] = ()
    """Fields that Airflow renders as it does elsewhere."""

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Any, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        dag, as_airflow = self.get_dag(), super()._do_render_template_fields  # type: ignore[attr-defined,misc]
        declared = None if dag is None else dag.task_dict.get(self.task_id)  # type: ignore[attr-defined]
        fields = [name for name in template_fields if not is_mapped_value(declared, name, getattr(parent, name))]
        as_airflow(parent, [name for name in fields if name in self.native_fields], context, jinja_env, seen_oids)
        texts = [name for name in fields if name not in self.native_fields]
        is_native = dag is not None and isinstance(jinja_env, NativeEnvironment)
        env = dag.get_template_env(force_sandboxed=True) if is_native else jinja_env
        for name in texts if parent is self else ():
            setattr(parent, name, source_of(self, name, getattr(parent, name), env))
        as_airflow(parent, texts, context, env, seen_oids)

    def render_template(self, content: Any, context: Any, jinja_env: Any = None, seen_oids: Any = None) -> Any:
        """Render as Airflow does, but a text to a text."""
        if isinstance(content, str) and jinja_env is not None and not isinstance(jinja_env, NativeEnvironment):
            return jinja_env.from_string(content).render(context)
        rendered = super().render_template(content, context, jinja_env, seen_oids)  # type: ignore[misc]
        return "None" if rendered is None and isinstance(content, str) else rendered

    def _check_arguments(self, given: Mapping[str, Any]) -> None:
        """Check arguments that the DAG's code spells out; for subclasses."""


def keeps_arguments(init: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Keep the arguments that an operator's ``__init__`` names as attributes of the same names, and check them.

    Template fields and the request are made of them. The signature is what editors and the reference show.
    """
    parameters = inspect.signature(init).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

    @functools.wraps(init)
    def kept(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        init(*args, **kwargs)
        operator: Any = args[0]
        for name, default in defaults.items():
            setattr(operator, name, kwargs.get(name, default))
        operator._check_arguments({name: kwargs[name] for name in defaults if name in kwargs})

    return kept


def is_literal(value: Any) -> bool:
    """Say whether no template can change an argument; a DAG may choose with what its templates begin."""
    return isinstance(value, bool | int) or (isinstance(value, str) and not set(value) & set("{}[]<>%#$@!\n"))


def is_rendered(value: Any) -> bool:
    """Say whether an argument is a text that needs no rendering."""
    return isinstance(value, str) and "{{" not in value and "{%" not in value


def is_blank(value: Any) -> bool:
    """Say whether an argument is left out, or a template that rendered to nothing."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "None"))


def as_list(name: str, value: Any) -> list[str]:
    """Take a list, one text or number, or a template that rendered to the text of a list.

    Raises:
        InvalidInputError: it is none of these, or an item of it is true, false, a list or a mapping.
    """
    if value is None:
        return []
    if isinstance(value, str):
        text = value.strip()
        parsed = literal(name, text) if text.startswith(("[", "(")) else [text] if text else []
    else:
        parsed = [value] if isinstance(value, int) else value
    items = None if isinstance(parsed, Mapping) or not isinstance(parsed, Iterable) else list(parsed)
    if items is None or any(isinstance(item, bool | Mapping | list | tuple | set) for item in items):
        raise InvalidInputError(f"{name} must be a list of strings, got {parsed!r}")
    return [str(item) for item in items]


def as_dict(name: str, value: Any) -> dict[str, Any]:
    """Take a mapping, or a template that rendered to the text of one, or to nothing."""
    parsed = {} if is_blank(value) else literal(name, value) if isinstance(value, str) else value
    if not isinstance(parsed, Mapping):
        raise InvalidInputError(f"{name} must be a mapping, got {type(parsed).__name__}")
    return dict(parsed)


def literal(name: str, text: str) -> Any:
    """Parse JSON, or what Python prints of a value: the text that a template renders to.

    Raises:
        InvalidInputError: it is neither.
    """
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the latter: nested too deeply
            continue
    raise InvalidInputError(f"{name} rendered to {text!r}, which is neither JSON nor a Python literal")
