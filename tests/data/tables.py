"""Tables of all types and rows for them, for the tests of the data plane."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType, parse_type
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, arrow_type
from airflow_paimon.data.merge.engine import merge_slices
from airflow_paimon.data.merge.rules import replacing_rules
from airflow_paimon.data.merge.sort_keys import sort_keys
from airflow_paimon.data.merge.sorted_runs import not_ignored

UTC = dt.UTC
NESTED = {
    "type": "ARRAY",
    "element": {
        "type": "ROW",
        "fields": [
            {
                "id": 0,
                "name": "x",
                "type": {"type": "MAP", "key": "STRING NOT NULL", "value": {"type": "ARRAY", "element": "INT"}},
            },
            {"id": 1, "name": "y", "type": "DECIMAL(5, 2)"},
        ],
    },
}
ALL_TYPES: dict[str, Any] = {
    "k": "INT NOT NULL",
    "flag": "BOOLEAN",
    "i8": "TINYINT",
    "i16": "SMALLINT",
    "i64": "BIGINT",
    "f32": "FLOAT",
    "f64": "DOUBLE",
    "d8": "DECIMAL(8, 2)",
    "d18": "DECIMAL(18, 4)",
    "d38": "DECIMAL(38, 10)",
    "text": "STRING",
    "fixed": "CHAR(5)",
    "short": "VARCHAR(20)",
    "three": "BINARY(3)",
    "bytes": "BYTES",
    "day": "DATE",
    "clock": "TIME(3)",
    "t0": "TIMESTAMP(0)",
    "t3": "TIMESTAMP(3)",
    "t6": "TIMESTAMP(6)",
    "l3": "TIMESTAMP(3) WITH LOCAL TIME ZONE",
    "l6": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    "list": {"type": "ARRAY", "element": "INT"},
    "pairs": {"type": "MAP", "key": "STRING NOT NULL", "value": "BIGINT"},
    "row": {
        "type": "ROW",
        "fields": [{"id": 0, "name": "a", "type": "INT NOT NULL"}, {"id": 1, "name": "b", "type": "STRING"}],
    },
    "nested": NESTED,
}
FINE_TYPES = {**ALL_TYPES, "t9": "TIMESTAMP(9)", "l9": "TIMESTAMP(9) WITH LOCAL TIME ZONE"}


def make_table(
    folder: Path,
    columns: Mapping[str, Any],
    *,
    name: str = "d.t",
    primary_keys: Sequence[str] = (),
    partition_keys: Sequence[str] = (),
    **options: str,
) -> Table:
    """Options are written with underscores for dots or dashes: see ``option``."""
    typed: list[tuple[str, str | DataType]] = [(n, parse_type(t)) for n, t in columns.items()]
    return create_table(
        str(folder),
        name,
        typed,
        primary_keys=primary_keys,
        partition_keys=partition_keys,
        options={option(k): v for k, v in options.items()},
    )


def option(name: str) -> str:
    """``bucket_key`` is bucket-key, ``file__format`` is file.format."""
    return name.replace("__", ".").replace("_", "-")


def without_ids(spec: Any) -> Any:
    """The types as Java takes them for a new table: it gives the ids of nested fields itself."""
    if isinstance(spec, dict):
        return {k: without_ids(v) for k, v in spec.items() if not (k == "id" and "name" in spec)}
    return [without_ids(v) for v in spec] if isinstance(spec, list) else spec


def arrow_schema_of(columns: Mapping[str, Any]) -> pa.Schema:
    return pa.schema([(n, arrow_type(parse_type(t))) for n, t in columns.items()])


def rows_of(columns: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table of the given columns; what a row does not name is null."""
    return pa.Table.from_pylist([dict(r) for r in rows], schema=arrow_schema_of(columns))


def any_row(i: int) -> dict[str, Any]:
    """A row with a value of every type, the same for the same ``i``; every seventh has nulls only."""
    if i % 7 == 3:
        return {"k": i}
    chance = random.Random(i)
    epoch = dt.datetime(1900, 1, 1)
    edges = (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1960, 1, 1, 1, 1, 1, 7))
    milli = dt.timedelta(milliseconds=chance.randint(0, 10**13))
    return {
        "k": i,
        "flag": bool(i % 2),
        "i8": chance.choice([-128, 127, i % 100]),
        "i16": chance.randint(-32768, 32767),
        "i64": chance.choice([-(2**63), 2**63 - 1, i]),
        "f32": i / 2 if i % 5 else float("nan"),
        "f64": chance.uniform(-1e300, 1e300) if i % 4 else -0.0,
        "d8": Decimal(chance.randint(-99999999, 99999999)).scaleb(-2),
        "d18": Decimal(chance.randint(-(10**18) + 1, 10**18 - 1)).scaleb(-4),
        "d38": Decimal(chance.randint(-(10**17), 10**17)) + Decimal("0.125"),
        "text": "héé€𝄞"[: i % 6] * 3 + "x" * (i % 40),
        "fixed": f"c{i % 100:4d}",
        "short": f"v{i}",
        "three": bytes([i % 256, 0, 1]),
        "bytes": chance.randbytes(i % 20),
        "day": dt.date(1900, 1, 1) + dt.timedelta(days=chance.randint(0, 100_000)),
        "clock": dt.time(i % 24, i % 60, 59, chance.randint(0, 999) * 1000),
        "t0": epoch + dt.timedelta(seconds=chance.randint(0, 10**9)),
        "t3": epoch + milli,
        "t6": edges[i % 3],
        "l3": (epoch + milli).replace(tzinfo=UTC),
        "l6": edges[2].replace(microsecond=chance.randint(0, 999999), tzinfo=UTC),
        "list": [i, None, 2][: i % 4],
        "pairs": [("k", i), ("n", None)][: i % 3],
        "row": {"a": i, "b": None if i % 2 else "x"} if i % 3 else None,
        "nested": [{"x": [("m", [i, None])], "y": Decimal("1.25")}, None][: i % 3],
    }


def sorted_changes(rows: pa.RecordBatch, schema: TableSchema) -> list[pa.RecordBatch]:
    """The newest row of each key, in key order, as tasks give them to ``rewrite_bucket``."""
    rows = rows.take(pa.array(not_ignored(rows, schema)))
    rows = rows.append_column(SEQUENCE_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    rules = replace(replacing_rules(schema), keep_deletes=True)
    keys = sort_keys([[rows.column(name) for name in rules.keys]])[0]
    order = np.argsort(keys, kind="stable")
    return [merge_slices([rows.take(pa.array(order))], [keys[order]], rules).drop_columns([SEQUENCE_NUMBER])]
