"""``@task.paimon_sql`` and ``@task.paimon_correct``: corrections of a branch whose SQL or rows a Python function gives.

The function of ``@task.paimon_sql`` runs in the worker, that of ``@task.paimon_correct`` in Spark's driver, where there
is no Airflow. So its source is shipped as a module of its own, and it may use nothing else of the DAG's file.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import json
import symtable
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk.definitions._internal.types import SET_DURING_EXECUTION

from airflow_paimon.arguments import as_dict, as_list, is_blank
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.operators.branch import CorrectBranchOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["paimon_correct_task", "paimon_sql_task"]

_IN_SPARK = ("spark", "branch", "main")
"""What a correction's function may take besides its own arguments and the views that the task names."""
_MODULE = '''"""Made of a task's function by airflow-paimon."""

from __future__ import annotations

import json

{source}

def corrected(spark, views):
    known = {{"spark": spark, **views}}
    return {name}(**{{name: known[name] for name in {taken!r}}}, **json.loads({given!r}))
'''


class _DecoratedCorrection(DecoratedOperator, CorrectBranchOperator):
    """A ``CorrectBranchOperator`` made of a function."""

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *CorrectBranchOperator.template_fields)
    native_fields: ClassVar[Collection[str]] = DecoratedOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers, **CorrectBranchOperator.template_fields_renderers
    }  # fmt: skip
    overwrite_rtif_after_execution = True


class _PaimonSqlOperator(_DecoratedCorrection):
    """Its SQL is what the function returns."""

    custom_operator_name = "@task.paimon_sql"

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        if {"sql", "function"} & set(kwargs):
            raise InvalidInputError("@task.paimon_sql takes neither sql nor function: the function returns the SQL")
        super().__init__(python_callable=python_callable, sql=SET_DURING_EXECUTION, **kwargs)

    def execute(self, context: Context) -> Any:
        """Call the function, and run the statement that it returns."""
        context_merge(context, self.op_kwargs)
        arguments = determine_kwargs(self.python_callable, self.op_args, context)
        statement = self.python_callable(*self.op_args, **arguments)
        with self._airflow_errors(context):
            if not isinstance(statement, str) or is_blank(statement):
                raise InvalidInputError(f"{self.table}: the function returned {statement!r}; it must return SQL")
        self.sql = statement
        return super().execute(context)

    def _from_outside(self, context: Context) -> frozenset[str]:
        # It may have put a form's values into the text; `declared` may be this very object, which has the text by now.
        return super()._from_outside(context) | {"sql"}


class _PaimonCorrectOperator(_DecoratedCorrection):
    """Its function is the decorated one, shipped with the job."""

    custom_operator_name = "@task.paimon_correct"

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        if {"sql", "function"} & set(kwargs):
            raise InvalidInputError("@task.paimon_correct takes neither sql nor function: the function gives the rows")
        _refuse_names_of_the_file(python_callable)
        self._provided = [*_IN_SPARK, *(view.partition("=")[0] for view in as_list("view", kwargs.get("view")))]
        self._in_spark = python_callable
        super().__init__(
            python_callable=_without(python_callable, self._provided), function=SET_DURING_EXECUTION, **kwargs
        )
        self._module: tuple[str, str] = ("", "")

    def _restricted_request(self, hook: PaimonHook, context: Context) -> Request:
        self._module = self._as_module()
        self.function = f"{self._module[0]}:corrected"
        return super()._restricted_request(hook, context)

    def _as_module(self) -> tuple[str, str]:
        """Return the name and the source of the module that is shipped: another one for other code or arguments."""
        given = inspect.signature(self.python_callable).bind(*self.op_args, **self.op_kwargs).arguments
        text = _module_text(self._in_spark, self._provided, given)
        return f"{self._in_spark.__name__}_{hashlib.sha256(text.encode()).hexdigest()[:12]}", text

    def _from_outside(self, context: Context) -> frozenset[str]:
        return super()._from_outside(context) - {"function"}  # it is the DAG's own code

    def _submit(self, hook: PaimonHook, request: Request, context: Context) -> dict[str, Any]:
        """Submit with the module among ``py_files``; what is deferred has been uploaded by then."""
        name, text = self._module
        options = as_dict("spark_options", self.spark_options)
        known = hook.spark_settings(options=options).options.get("py_files")
        with TemporaryDirectory(prefix="airflow-paimon-function-") as folder:
            module = Path(folder) / f"{name}.py"
            module.write_text(text, encoding="utf-8")
            self.spark_options = {**options, "py_files": ",".join(filter(None, [known, str(module)]))}
            return super()._submit(hook, request, context)


def paimon_sql_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """
    Make a task that changes a branch by the SQL that a function returns: ``@task.paimon_sql``.

    The function runs in the worker, with the arguments and the context that ``@task`` gives. The text is not rendered
    as a template. As it may hold what a form says, it is restricted SQL unless ``restricted_sql=False`` or the Paimon
    connection's ``forms`` allow more.

    :param python_callable: the function
    :param kwargs: arguments of :class:`~airflow_paimon.operators.branch.CorrectBranchOperator` but ``sql`` and
        ``function``
    """
    return task_decorator_factory(python_callable, decorated_operator_class=_PaimonSqlOperator, **kwargs)


def paimon_correct_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """
    Make a task that writes the rows of the DataFrame that a function returns into a branch: ``@task.paimon_correct``.

    The function runs in Spark's driver, without Airflow: it imports what it needs itself. By name it gets ``branch``
    and ``main``, the rows as DataFrames, ``spark``, the session, and each view of ``view``; its other arguments are
    what the DAG calls it with, and must be JSON.

    :param python_callable: the function
    :param kwargs: arguments of :class:`~airflow_paimon.operators.branch.CorrectBranchOperator` but ``sql`` and
        ``function``
    """
    return task_decorator_factory(python_callable, decorated_operator_class=_PaimonCorrectOperator, **kwargs)


def _refuse_names_of_the_file(function: Callable[..., Any]) -> None:
    """Refuse a function that would miss something in Spark's driver.

    Raises:
        InvalidInputError: it uses names that its file defines or imports outside of it, or there is no source of it.
    """
    if not hasattr(function, "__code__") or function.__name__ == "<lambda>":
        raise InvalidInputError("@task.paimon_correct decorates a function made by def")
    if hasattr(function, "__wrapped__"):  # its source is that of the function inside, which alone would be shipped
        raise InvalidInputError(f"{function.__name__} has another decorator: do inside the function what that does")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidInputError(f"{function.__name__}: {parameter.name} has no name that Spark's driver could give")
    module = symtable.symtable(f"from __future__ import annotations\n{_source_of(function)}", "<task>", "exec")
    missing = sorted(n for n in _names_from_outside(module) - {function.__name__} if not hasattr(builtins, n))
    if missing:
        raise InvalidInputError(
            f"{function.__name__} runs in Spark's driver and uses {', '.join(missing)} of the DAG's file: import or "
            f"define it inside the function, or pass it as an argument"
        )


def _names_from_outside(scope: symtable.SymbolTable) -> set[str]:
    """Return the names that a scope and those inside of it read and no one of them gives; defaults are the module's."""
    outside = {s.get_name() for s in scope.get_symbols() if s.is_referenced() and s.is_global() and not s.is_assigned()}
    return outside.union(*map(_names_from_outside, scope.get_children()))


def _source_of(function: Callable[..., Any]) -> str:
    """Return the definition without its decorators.

    Raises:
        InvalidInputError: there is no source.
    """
    try:
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    except OSError as error:
        raise InvalidInputError(f"{function.__name__} can't be shipped to Spark: {error}") from None
    (definition,) = ast.parse("\n".join(lines)).body
    return "\n".join(lines[definition.lineno - 1 :])  # the decorators stand before


def _without(function: Callable[..., Any], provided: Collection[str]) -> Callable[..., Any]:
    """Return a stand-in that has the function's signature but what Spark's driver provides; it isn't called."""

    def stand_in(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"{function.__name__} runs in Spark's driver")

    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.name not in provided]
    stand_in.__name__, stand_in.__doc__ = function.__name__, function.__doc__
    stand_in.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return stand_in


def _module_text(function: Callable[..., Any], provided: Collection[str], given: Mapping[str, Any]) -> str:
    """Return the source of a module with the function, whose ``corrected`` calls it as the job does.

    Raises:
        InvalidInputError: an argument is no JSON, or there is no source.
    """
    taken = [name for name in inspect.signature(function).parameters if name in provided]
    try:
        arguments = json.dumps(dict(given))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{function.__name__}: its arguments must be JSON to reach Spark: {error}") from None
    return _MODULE.format(source=_source_of(function), name=function.__name__, taken=taken, given=arguments)
