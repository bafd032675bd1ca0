"""Results of tasks, pickled for the driver: values, or errors that a retry would not change."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.spark.tasks import forgetting_zip_importers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "value binary"
_ARROW = pa.schema([pa.field("value", pa.binary())])


@dataclass(frozen=True, slots=True)
class _Refusal:
    error: PaimonError


def ship(make: Callable[[], Iterable[Any]]) -> Iterator[pa.RecordBatch]:
    """Yield the results of ``make`` as rows of a task. A refusal is a value too, as Spark would retry the task."""
    with forgetting_zip_importers():
        try:
            values = list(make())
        except PaimonError as error:
            if error.retryable:
                raise
            values = [_Refusal(error)]
        pickled = [pickle.dumps(v, pickle.HIGHEST_PROTOCOL) for v in values]
        yield pa.RecordBatch.from_arrays([pa.array(pickled, pa.binary())], schema=_ARROW)


def collect(frame: DataFrame, refused: Callable[[list[Any]], None] | None = None) -> list[Any]:
    """Run the tasks and return their values. ``refused`` takes those of the other tasks when one refuses.

    Raises:
        PaimonError: a task refused.
    """
    values: Sequence[Any] = [pickle.loads(row.value) for row in frame.collect()]
    made = [v for v in values if not isinstance(v, _Refusal)]
    for value in values:
        if isinstance(value, _Refusal):
            if refused is not None:
                refused(made)
            raise value.error
    return made
