"""Where an operator's arguments come from: the DAG's own code, or a form, an XCom, a variable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import MappedOperator
from airflow_paimon.core.requests.text_files import names_file
from airflow_paimon.forms.locked import locked_names

if TYPE_CHECKING:
    from airflow.sdk import Context

_STARTS = {"variable_start_string": "{{", "block_start_string": "{%", "line_statement_prefix": ""}
"""What a template begins with, by Jinja's names; a DAG may choose other characters."""
_FIELD = re.compile(r"\{\{ params\.(\w+) \}\}")


def from_outside(operator: Any, names: Iterable[str], context: Context, *, throughout: bool = False) -> frozenset[str]:
    """Return which of a task's arguments are not literals of the DAG's code: templates, functions, what is mapped.

    A mapping or list that the code spells out is its own, whatever templates stand for single values in it: its author
    has chosen the keys. ``throughout``: one with a template anywhere in it is not, as its values are what runs. An
    operator that another task's code calls has no declaration, so its arguments are code. So is the value of a field
    that the DAG locks, where the argument is that field and nothing else.
    """
    declared = context["dag"].task_dict.get(context["ti"].task_id)
    return frozenset(n for n in names if _is_from_outside(declared, n, getattr(operator, n, None), throughout))


def _is_from_outside(declared: Any, name: str, value: Any, throughout: bool) -> bool:
    if not isinstance(declared, MappedOperator):
        return _is_computed(getattr(declared, name, None), declared, throughout, name)
    said = _said_of_mapped(declared, name)
    return is_mapped_value(declared, name, value) or any(_is_computed(one, declared, throughout, name) for one in said)


def _said_of_mapped(declared: Any, name: str) -> list[Any]:
    """Return what a mapped task's code says an argument is: for all, and in lists that it spells out for each one."""
    said, mapped = [declared.partial_kwargs.get(name)], declared.expand_input.value
    if isinstance(mapped, Mapping):  # expand(name=[...])
        listed = mapped.get(name)
        return [*said, *(listed.items() if isinstance(listed, Mapping) else _items(listed))]
    return [*said, *(one.get(name) if isinstance(one, Mapping) else one for one in _items(mapped))]


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def is_mapped_value(declared: Any, name: str, value: Any) -> bool:
    """Say whether a mapped task gets an argument from another task, as ``expand`` or ``expand_kwargs`` says.

    ``value`` is the argument before rendering; one that equals the DAG's default for it is that default.
    """
    if not isinstance(declared, MappedOperator) or name in declared.partial_kwargs:
        return False
    for scope in (declared.task_group, declared.dag):
        if scope is not None and name in (scope.default_args or {}) and scope.default_args[name] == value:
            return False
    mapped = declared.expand_input.value
    if isinstance(mapped, Mapping):  # expand(name=[...])
        return name in mapped and not isinstance(mapped[name], list | tuple | dict)
    return not isinstance(mapped, list | tuple)  # expand_kwargs([...])


def _is_computed(value: Any, declared: Any, throughout: bool, name: str = "") -> bool:
    """``name``: the argument's, where ``value`` is all of it."""
    if value is None or isinstance(value, int | float | Decimal | date):
        return False
    if isinstance(value, Mapping | list | tuple):
        items = value.values() if isinstance(value, Mapping) else value
        return throughout and any(_is_computed(item, declared, throughout) for item in items)
    if _is_locked_field(value, declared):
        return False
    if not isinstance(value, str):
        return True
    starts = _STARTS | (getattr(declared.dag, "jinja_environment_kwargs", None) or {})
    text = source_of(declared, name, value)
    return any(starts[one] and starts[one] in text for one in _STARTS)


def _is_locked_field(value: Any, declared: Any) -> bool:
    """Airflow takes no other value for it from a run; one that a task's own ``params`` give is code as well."""
    found = _FIELD.fullmatch(value) if isinstance(value, str) else None
    name: Any = found[1] if found else getattr(value, "field", None)
    return name in locked_names(getattr(declared.dag, "params", None))


def source_of(operator: Any, name: str, value: Any, env: Any = None) -> Any:
    """Return an argument, or the text of the file that it names: only in a field of ``file_fields``, and as a whole."""
    ends = getattr(getattr(operator, "operator_class", operator), "file_fields", {}).get(name, ())
    if not isinstance(value, str) or not names_file(value, ends):
        return value
    env = env or operator.get_template_env()
    return str(env.loader.get_source(env, value)[0]) if env.loader is not None else value
