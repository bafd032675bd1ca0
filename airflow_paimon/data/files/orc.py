"""Reads ORC data files, and corrects timestamps that pyarrow misreads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.types import ArrayType, DataField, DataType, MapType, RowType
from airflow_paimon.data.files.orc_zones import stripe_zones

_DAY_NS = 86_400 * 10**9
_MILLI_NS = 10**6


def read_orc(source: Any, fields: Sequence[DataField], path: str, legacy_ltz: bool) -> Iterator[pa.RecordBatch]:
    """Return each stripe as a batch. ``legacy_ltz``: option ``orc.timestamp-ltz.legacy.type`` of the file's schema.

    Raises:
        UnsupportedFeatureError: timestamps that are ambiguous in the file.
    """
    file = orc.ORCFile(source)
    present = set(file.schema.names)
    wanted = [f for f in fields if f.name in present]
    names = [f.name for f in wanted] or file.schema.names[:1]
    stamped = [f for f in wanted if _roots(f.type) & {"TIMESTAMP", "TIMESTAMP_LTZ"}]
    zones = stripe_zones(source, path) if stamped else []
    for stripe in range(file.nstripes):
        batch = file.read_stripe(stripe, columns=names)
        if stamped and zones[stripe] != "UTC":
            batch = _corrected(batch, stamped, zones[stripe], path, legacy_ltz)
        yield batch


def _corrected(
    batch: pa.RecordBatch, stamped: Sequence[DataField], zone: str, path: str, legacy_ltz: bool
) -> pa.RecordBatch:
    for field in stamped:
        at = batch.schema.get_field_index(field.name)
        where = f"Data file {path}: column {field.name!r}"
        if field.type.root == "TIMESTAMP":
            _check_epoch(batch.column(at), zone, where)
        elif field.type.root == "TIMESTAMP_LTZ" and pa.types.is_timestamp(batch.column(at).type) and legacy_ltz:
            batch = batch.set_column(at, field.name, _as_utc(batch.column(at), zone, where))
        elif not isinstance(field.type, RowType | ArrayType | MapType):
            continue  # an instant, as it should be
        elif legacy_ltz or "TIMESTAMP" in _roots(field.type):
            raise UnsupportedFeatureError(
                f"{where} has timestamps inside it and was written in time zone {zone}, which the embedded engine "
                f"reads from ORC files of UTC writers only; use Paimon's own Spark connector"
            )
    return batch


def _as_utc(column: pa.Array, zone: str, where: str) -> pa.Array:
    """The writer interpreted the UTC date and time in its own zone: reverse that."""
    try:
        local = pc.local_timestamp(column.cast(pa.timestamp("ns", tz=zone)))
    except pa.ArrowInvalid as error:
        raise UnsupportedFeatureError(
            f"{where} was written in time zone {zone}, which is unknown on this machine ({error}); "
            f"install tzdata, or use Paimon's own Spark connector"
        ) from None
    return local.cast(pa.timestamp("ns", tz="UTC"))


def _check_epoch(column: pa.Array, zone: str, where: str) -> None:
    """The second of a time with a fraction is off by one where UTC and the writer's zone disagree on "before 1970"."""
    nanos = column.drop_null().cast(pa.int64()).to_numpy()
    near = (np.abs(nanos) < _DAY_NS) & (nanos % 10**9 >= _MILLI_NS)
    if near.any():
        raise UnsupportedFeatureError(
            f"{where} was written in time zone {zone} and has times with a fraction of a second within a day of "
            f"1970-01-01, which Arrow misreads from ORC files; use Paimon's own Spark connector"
        )


def _roots(data_type: DataType) -> set[str]:
    if isinstance(data_type, RowType):
        return set().union(*(_roots(f.type) for f in data_type.fields))
    if isinstance(data_type, ArrayType):
        return _roots(data_type.element)
    if isinstance(data_type, MapType):
        return _roots(data_type.key) | _roots(data_type.value)
    return {data_type.root}
