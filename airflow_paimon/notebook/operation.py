"""What the functions of operations have in common: arguments become a request, its result a typed value."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.operations import operation_of
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import run_here
from airflow_paimon.notebook.table import ReadableTable

Result = OperationResult

_COMMON = "``warehouse``, ``storage_options``, ``operation_id``, ``now`` and ``dry_run``, which every function takes"


class CommonArguments(TypedDict, total=False):
    """The arguments that every function takes besides its own."""

    warehouse: str | None
    storage_options: Mapping[str, Any] | None
    operation_id: str | None
    now: str | None
    dry_run: bool


def perform(operation: str, given: dict[str, Any], run: Callable[[Request, int], OperationResult] = run_here) -> Result:
    """Run an operation with the arguments of its function.

    Raises:
        InvalidInputError: neither an opened table nor a warehouse and a name, or a wrong value.
        PaimonError: see the operation. TypeError: an argument that the function doesn't have.
    """
    values = dict(given)
    processes, common = values.pop("processes", 1), values.pop("common")
    if unknown := common.keys() - CommonArguments.__annotations__:
        raise TypeError(f"{operation}() got an unexpected keyword argument {min(unknown)!r}")
    values |= common
    if not isinstance(values["table"], str):
        values |= _opened(operation, values)
    elif values.get("warehouse") is None:
        raise InvalidInputError(
            f"{operation}: give warehouse= with the name {values['table']!r}, or what open_table returned"
        )
    return run(build_request(operation, values), processes)


def _opened(operation: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return where an opened table lies. A branch stays in its name, which is refused: it would be taken for main."""
    table = values["table"]
    if not isinstance(table, Table):
        raise InvalidInputError(f"{operation}: table is db.table or what open_table returned, not {table!r}")
    if values.get("warehouse") is not None or values.get("storage_options") is not None:
        raise InvalidInputError(
            f"{operation}: an opened table knows its warehouse and its storage_options; leave them out"
        )
    if not isinstance(table, ReadableTable) or table.place is None:
        raise InvalidInputError(
            f"{operation}: {table.label} was not opened by airflow_paimon.open_table(warehouse, name); do that, or "
            f"give its name and warehouse="
        )
    branch = "" if table.branch_name == MAIN else f"$branch_{table.branch_name}"
    return {"table": f"{table.name}{branch}", "warehouse": table.place[0], "storage_options": table.place[1]}


def describe(name: str, function: Callable[..., Any]) -> None:
    """Add the arguments of an operation to the text of its function, as its job's ``--help`` has them."""
    known = {f.name: _in_python(f.metadata["help"]) for f in dataclasses.fields(operation_of(name).request)}
    known["processes"] = "How many processes of this machine read and write rows; a script needs a __main__ guard"
    known["common"] = _COMMON
    _, *names = inspect.signature(function).parameters
    lines = "\n".join(f"        {argument}: {known[argument]}." for argument in names)
    function.__doc__ = f"{function.__doc__ or ''}\n    Args:\n{lines}\n"


def _in_python(text: str) -> str:
    """Reword the help of a flag: flags are arguments, and a list is not repeated. A star is none of markup."""
    named = re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), text.replace(" (repeat)", ""))
    return re.sub(r"'([^' ]*\*[^' ]*)'", r"``\1``", named)
