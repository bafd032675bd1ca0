"""What the sensors share that can wait in the triggerer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_paimon._compat import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
)
from airflow_paimon.arguments import is_blank
from airflow_paimon.core.errors import InvalidInputError


@contextmanager
def failing_as_a_poke(sensor: BaseSensorOperator) -> Iterator[None]:
    """Do what Airflow does with a failing poke, and after a deferral."""
    try:
        yield
    except AirflowException as error:
        ends = isinstance(error, AirflowFailException | AirflowSensorTimeout)
        if sensor.never_fail or (sensor.soft_fail and ends):
            raise AirflowSkipException("Skipping due to soft_fail or never_fail") from error
        raise


def given(name: str, value: Any) -> Any:
    """Refuse a template that rendered to nothing: the condition would vanish, and the sensor would not wait for it."""
    if value is not None and is_blank(value):
        raise InvalidInputError(f"{name} rendered to {value!r}; leave the argument out where it does not apply")
    return value
