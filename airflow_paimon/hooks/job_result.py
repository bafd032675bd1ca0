"""From a job's result JSON, or its lack, to the error of the core that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core import errors
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    PaimonError,
    UnsafeOperationError,
)
from airflow_paimon.core.requests.requests import Request

_CLASSES = {name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, PaimonError)}
_BY_EXIT_CODE: dict[int, type[PaimonError]] = {
    2: InvalidInputError,
    3: ConflictError,
    4: UnsafeOperationError,
    5: OutcomeUnknownError,
}
_NOT_STARTED = 127  # of a shell, and of _tied_child.py


def result_or_raise(result: dict[str, Any]) -> dict[str, Any]:
    """Return a job's result, or raise the error that it holds."""
    error = result.get("error")
    if error is None:
        return result
    raise error_from_json(error)


def error_from_json(error: Mapping[str, Any]) -> PaimonError:
    """Rebuild the error that ``error_to_json`` wrote; an unknown class becomes a plain ``PaimonError``."""
    cls = _CLASSES.get(str(error.get("class")), PaimonError)
    details = {k: v for k, v in error.items() if k not in ("kind", "class", "code", "message")}
    message = str(error.get("message"))
    if cls is PaimonError and error.get("class") not in (None, "PaimonError"):
        message = f"{error['class']}: {message}"
    return cls(message, code=error.get("code"), details=details)


def error_without_result(
    request: Request, exit_code: int | None, uri: str, program: str = "spark-submit"
) -> PaimonError:
    """Say what it means that a job ended without a result; the exit code is the program's."""
    what = f"{request.operation} on {request.table}: {program} ended with exit code {exit_code} and without a result"
    if exit_code == 0 or (exit_code is not None and not 0 <= exit_code <= 128):
        return OutcomeUnknownError(
            f"{what} at {uri}: the commit may have succeeded. Retry this task: it checks first", code="no-result"
        )
    if exit_code == _NOT_STARTED:
        return PaimonError(
            f"{request.operation} on {request.table}: spark-submit or its Java was not found (exit code {exit_code}): "
            "put Spark on the worker's PATH or install the extra airflow-paimon[spark], and Java 17 or newer; the "
            "log above shows which is missing",
            code="no-spark",
        )
    cls = _BY_EXIT_CODE.get(exit_code or 1, PaimonError)
    return cls(f"{what}; see the log above")


def error_of_lost_driver(operation: str, table: str, driver: str, state: str, uri: str) -> PaimonError:
    """Say what it means that a driver in a cluster ended without a result."""
    return OutcomeUnknownError(
        f"{operation} on {table}: driver {driver} ended ({state}) and left no result at {uri}: the commit may have "
        f"succeeded. Retry this task: it checks first. The driver's own log shows why it ended"
    )
