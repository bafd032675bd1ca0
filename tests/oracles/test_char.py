"""CHAR and VARCHAR beside Paimon's Spark connector, which fills CHARs up, and its Java core, which doesn't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.oracles.drivers import SparkConnectorOracle
from tests.oracles.java_driver import JavaOracle

pytestmark = pytest.mark.oracle

KEYED = (("k", "CHAR(3) NOT NULL"), ("v", "VARCHAR(2)"), ("n", "INT"))


def rows(*values: tuple[str, str | None, int]) -> pa.Table:
    schema = pa.schema([("k", pa.string()), ("v", pa.string()), ("n", pa.int32())])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema)


def both(connector: SparkConnectorOracle, warehouse: Path, table: Table, where: str = "true") -> list[Any]:
    """The rows that the connector sees, which must be those that we see."""
    seen = connector.sql(warehouse, f"SELECT * FROM d.t WHERE {where} ORDER BY k, n").to_pylist()
    if where == "true":
        assert sorted(read_arrow(table).to_pylist(), key=lambda r: (r["k"], r["n"])) == seen
    return [tuple(row.values()) for row in seen]


def test_a_key_is_one_whoever_writes_it(connector_oracle: SparkConnectorOracle, tmp_path: Path) -> None:
    options = {"bucket": "2"}
    table = create_table(str(tmp_path), "d.t", KEYED, primary_keys=["k"], options=options)
    connector_oracle.sql(tmp_path, "INSERT INTO d.t VALUES ('ab', 'x', 1), ('abc', 'y ', 2), ('a', NULL, 3)")
    write_arrow(table, rows(("ab", "z  ", 10), ("é𝄞", None, 4), ("a  ", "q", 30)))
    found = [("a  ", "q", 30), ("ab ", "z ", 10), ("abc", "y ", 2), ("é𝄞 ", None, 4)]
    assert both(connector_oracle, tmp_path, table) == found
    connector_oracle.sql(tmp_path, "INSERT INTO d.t VALUES ('é𝄞', 'w', 40)")
    assert both(connector_oracle, tmp_path, table)[3:] == [("é𝄞 ", "w", 40)]
    assert both(connector_oracle, tmp_path, table, "k = 'ab'") == found[1:2]


def test_a_key_that_java_stores_shorter_is_another_one_for_the_connector_too(
    connector_oracle: SparkConnectorOracle, java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """So no writer of ours makes one row of them: docs/limits.md says so."""
    table = create_table(str(tmp_path), "d.t", KEYED, primary_keys=["k"], options={"bucket": "1"})
    java_oracle.write(tmp_path, "d.t", rows(("ab", "x", 1)))
    connector_oracle.sql(tmp_path, "INSERT INTO d.t VALUES ('ab', 'y', 2)")
    assert both(connector_oracle, tmp_path, table) == [("ab ", "x", 1), ("ab ", "y", 2)]
    write_arrow(table, rows(("ab", "z", 3)))
    assert both(connector_oracle, tmp_path, table) == [("ab ", "x", 1), ("ab ", "z", 3)]


def test_what_java_stores_shorter_is_read_as_the_connector_reads_it(
    connector_oracle: SparkConnectorOracle, java_oracle: JavaOracle, tmp_path: Path
) -> None:
    columns = {name: kind.removesuffix(" NOT NULL") for name, kind in KEYED}
    java_oracle.create_table(tmp_path, "d.t", columns)
    java_oracle.write(tmp_path, "d.t", rows(("ab", "x", 1), ("abc", "y", 2), ("abcd", "long", 3)))
    table = open_table(str(tmp_path), "d.t")
    write_arrow(table, rows(("ab", None, 4)))
    assert [n for *_, n in both(connector_oracle, tmp_path, table)] == [1, 4, 2, 3]
    for where, expression in (
        ("k = 'ab'", pc.field("k") == "ab"), ("k = 'ab '", pc.field("k") == "ab "), ("k > 'ab'", pc.field("k") > "ab"),
        ("k IN ('ab', 'q')", pc.field("k").isin(["ab", "q"])), ("k <> 'ab'", pc.field("k") != "ab"),
    ):  # fmt: skip
        seen = both(connector_oracle, tmp_path, table, where)
        assert sorted(r["n"] for r in read_arrow(table, where=expression).to_pylist()) == sorted(n for *_, n in seen)
