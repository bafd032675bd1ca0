"""The merge engine aggregation: each column of a key is folded by its own function.

Only keys with several stored records come here: Paimon returns a lone record as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.merge.aggregates import Aggregate, aggregator
from airflow_paimon.data.merge.aggregates.records import Flags, Indices


def column_functions(schema: TableSchema) -> dict[str, Aggregate]:
    """Return the function of each column of a table with ``merge-engine=aggregation``.

    Raises:
        UnsupportedFeatureError: an unknown function, or one that the column's type does not allow.
        InvalidInputError: an option of a function has a wrong value.
    """
    options = TableOptions(schema.options)
    keys, sequence = schema.primary_keys, options.sequence_fields
    return {f.name: aggregator(options, f, keys=keys, sequence_fields=sequence) for f in schema.fields}


def aggregate_versions(
    columns: Mapping[str, pa.Array],
    starts: Indices,
    functions: Mapping[str, Aggregate],
    *,
    retract: Flags,
    removes: Flags,
) -> tuple[dict[str, pa.Array], Flags]:
    """Return the columns of the merged keys, and which keys are gone.

    ``columns`` hold the records by key and in merge order; ``starts``: the first record of each key. ``retract``: -U
    and -D. ``removes``: -D, if ``aggregation.remove-record-on-delete`` is set: it replaces the row by its values, and
    the key is gone if it is the last record; a later record is aggregated onto these values.

    Raises:
        UnsupportedFeatureError: a function can't take a record back, or its result does not fit the column's type.
    """
    folded = {n: functions[n].fold(c, starts, retract=retract, initial=removes) for n, c in columns.items()}
    return folded, removes[np.append(starts[1:], len(removes)) - 1]
