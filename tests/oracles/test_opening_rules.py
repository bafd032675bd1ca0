"""What Paimon opens, and which values it parses, by O3 itself: each example of our rules on a table of its own."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.table.known_options import known_options
from airflow_paimon.core.table.option_values import value_faults
from tests.core.schema.opening_examples import REFUSED, TAKEN, Example
from tests.oracles.drivers import JavaOracle
from tests.oracles.processes import OracleError

pytestmark = pytest.mark.oracle

VALUES: dict[str, Any] = {
    "STRING": "x", "INT": 1, "BIGINT": 2, "BOOLEAN": True, "VARCHAR(9)": "y", "DECIMAL(9, 2)": Decimal("1.50"),
    "BYTES": b"z", "DATE": dt.date(2026, 11, 18),
}  # fmt: skip
"""Of keys; other columns are null, or the second row's would be merged with bytes that are no bitmap."""


def refusal(java: JavaOracle, warehouse: Path, table: str, example: Example) -> str | None:
    """Create the table in Java, write two rows of one key, and read them; return what it says against that."""
    types = example.types()
    keys = {*example.primary, *example.partition}
    row = {n: VALUES.get(t) if n in keys or t in ("BIGINT", "INT") else None for n, t in types.items()}
    if (kind := example.options.get("rowkind.field")) in types:
        row |= {str(kind): "+I"}
    try:
        java.create_table(
            warehouse, table, types, primary_keys=example.primary, partition_keys=example.partition,
            options=example.options,
        )  # fmt: skip
        java.write(warehouse, table, [row, row], assigners=1)
        if "scan." not in "".join(example.options) and example.options.get("bucket") != "-2":
            java.read(warehouse, table, columns=list(types))
    except OracleError as error:
        return str(error)
    return None


@pytest.mark.parametrize("rule", REFUSED)
def test_java_refuses_what_we_refuse(java_oracle: JavaOracle, tmp_path: Path, rule: str) -> None:
    for number, example in enumerate(REFUSED[rule]):
        assert (refusal(java_oracle, tmp_path, f"d.t{number}", example) is None) == example.new, example


@pytest.mark.parametrize("rule", TAKEN)
def test_java_takes_what_we_take(java_oracle: JavaOracle, tmp_path: Path, rule: str) -> None:
    for number, example in enumerate(TAKEN[rule]):
        assert refusal(java_oracle, tmp_path, f"d.t{number}", example) is None, example


JAVA_TYPES = {
    "Integer": "int", "Long": "long", "Boolean": "boolean", "Double": "double", "Float": "float",
    "Duration": "duration", "MemorySize": "size", "Map": "map", "String": "",
}  # fmt: skip
TRIED = [
    *(("snapshot.expire.limit", text) for text in ("5", "+5", "-5", " 5", "5 ", "", "ten", "1_0", "5.0", "2147483648")),
    *(("scan.snapshot-id", text) for text in ("2147483648", "9223372036854775808", "1L", "0x1")),
    *(("write-only", text) for text in ("true", "TRUE", "False", "true ", "yes", "1", "")),
    *(("snapshot.time-retained", text) for text in ("7 d", "7d", " 7 d ", "7 days", "90 min", "90 mins", "5", "5 ns",
                                                    "5 µs", "1 w", "-1 d", "1.5 h", "", "3 hours", "2 secs")),
    *(("target-file-size", text) for text in ("128 mb", "128mb", " 1 GB ", "5", "5 kibibytes", "1 tb", "1 pb", "-1",
                                              "1.5 gb", "", "99999999 tb")),
    *(("compaction.delete-ratio-threshold", text) for text in ("0.7", " 1 ", "1e-3", ".5", "5.", "0.5f", "NaN", "half",
                                                         "", "0,5", "1d")),
    *(("merge-engine", text) for text in ("partial-update", "Partial-Update", "partial_update", " first-row", "")),
    *(("changelog-producer", text) for text in ("full-compaction", "LOOKUP", "all")),
    *(("file.format.per.level", text) for text in ("0:avro", "0:avro,5:parquet", " 0 : avro , 5 : orc", "avro",
                                                   "0:'a,b'", "0:a:b", "", ",0:avro,", "0:avro,,1:orc", "'0:avro'",
                                                   "'0:avro", "0:", ":", ",")),
    ("tag.period-formatter", "with_dashes"), ("tag.period-formatter", "with-dashes"),
]  # fmt: skip


WRITTEN = [
    *(("metadata.stats-mode", text) for text in ("none", "FULL", "truncate(16)", "truncate(0)", "truncate", " full")),
    *(("fields.v.stats-mode", text) for text in ("counts", "nope")),
    *(("metadata.stats-mode.per.level", text) for text in ("0:none,1:full", "0:nope")),
    *(("file.format.per.level", text) for text in ("0:ORC", "0:nope")),
    *(("spill-compression", text) for text in ("lzo", "ZSTD", "gzip")),
]


@pytest.mark.parametrize(("key", "text"), WRITTEN)
def test_java_writes_with_the_texts_that_we_take(java_oracle: JavaOracle, tmp_path: Path, key: str, text: str) -> None:
    example = Example(primary=("k",), only="k v", options={"bucket": "1", key: text})
    assert (refusal(java_oracle, tmp_path, "d.t", example) is None) == (not value_faults({key: text}))


def test_values_are_parsed_as_java_parses_them(java_oracle: JavaOracle) -> None:
    answer = java_oracle.request("options", tried=[list(pair) for pair in TRIED])
    ours = [not value_faults({key: text}) for key, text in TRIED]
    wrong = [(pair, java) for pair, mine, java in zip(TRIED, ours, answer["parsed"], strict=True) if mine is not java]
    assert wrong == []
    strange, known = {}, known_options()
    for key, (kind, *values) in answer["types"].items():
        declared = known[key].type if key in known else ""
        if JAVA_TYPES.get(kind) != declared and not (values and {*values} <= {*declared.split("|")}):
            strange[key] = (kind, values, declared)
    assert strange == {}
