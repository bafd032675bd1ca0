"""An error that a task raised, as the same error on the driver: Spark hands over its text only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_paimon.core import errors
from airflow_paimon.core.errors import PaimonError

_RAISED = re.compile(r"airflow_paimon\.core\.errors\.(\w+): (.+)")


@contextmanager
def task_errors(table: str) -> Iterator[None]:
    """Raise what a task of ours raised inside, with the class that says the kind."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = known_error(str(error), table)
        if found is None:
            raise
        raise found from error


def known_error(text: str, table: str) -> PaimonError | None:
    """Find the last error of ours in a traceback's text."""
    raised = [m for m in _RAISED.finditer(text) if m[1] in errors.__all__]
    if not raised:
        return None
    cls: type[PaimonError] = getattr(errors, raised[-1][1])
    return cls(raised[-1][2].strip(), table=table)
