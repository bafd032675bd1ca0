"""Random tables with merge engines, written and compacted by Paimon in Java: after each step both read the same."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow
from tests.data.test_compact import run as compact
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle
from tests.oracles.merge_lives import UNORDERED, Life, a_life
from tests.oracles.processes import OracleError
from tests.randomness import chance as chance_of
from tests.randomness import lives

pytestmark = [pytest.mark.oracle, pytest.mark.random]


def rows_in_one_form(table: pa.Table) -> list[Any]:
    """Return sorted rows, with the elements sorted of arrays that have no order."""
    names = table.column_names
    rows = [
        tuple(_sorted(name, value) for name, value in zip(names, row, strict=True)) for row in canonical_rows(table)
    ]
    return sorted(rows, key=repr)


def _sorted(name: str, value: Any) -> Any:
    return (value[0], *sorted(value[1:], key=repr)) if name in UNORDERED and value is not None else value


def read_or_refusal(read: Any) -> list[Any] | str:
    try:
        return rows_in_one_form(read())
    except (OracleError, PaimonError):
        return "refused"


def step(java: JavaOracle, folder: Path, name: str, life: Life, chance: random.Random) -> str:
    """Write or compact; Java's engine refuses some rows already when it writes them."""
    action = chance.choice(["write", "write", "write", "compact", "compact fully"])
    try:
        if action == "write":
            java.write(folder, name, life.rows(chance))
        else:
            java.do("compact", folder, name, full="fully" in action, options={"write-only": "false"})
    except OracleError as error:
        return f"{action} refused: {str(error)[:200]}"
    return action


@pytest.mark.parametrize("engine", ["partial-update", "aggregation", "first-row"])
@pytest.mark.parametrize("number", range(lives(1, 2)))
def test_every_read_of_a_life(java_oracle: JavaOracle, tmp_path: Path, engine: str, number: int) -> None:
    chance = chance_of(f"{engine}/{number}")
    life = a_life(chance, engine)
    name = "d.t"
    java_oracle.create_table(tmp_path, name, life.columns, primary_keys=["k"], options=life.options)
    done: list[str] = []
    for _ in range(life.steps):
        done.append(step(java_oracle, tmp_path, name, life, chance))
        theirs = read_or_refusal(lambda: java_oracle.read(tmp_path, name))
        ours = read_or_refusal(lambda: read_arrow(open_table(str(tmp_path), name)))
        assert ours == theirs, (life.options, done)


def test_a_sum_with_more_digits_than_its_type(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Paimon adds short decimals as long integers: it reads and stores what comes out, and so do we."""
    columns = {"k": "INT NOT NULL", "v": "DECIMAL(5, 2)"}
    options = {"bucket": "1", "write-only": "true", "merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}
    for file_format in ("parquet", "orc", "avro"):
        name = f"d.{file_format}"
        more = {"file.format": file_format}
        java_oracle.create_table(tmp_path, name, columns, primary_keys=["k"], options=options | more)
        for value in ("999.99", "0.01"):
            java_oracle.write(tmp_path, name, [{"k": 1, "v": Decimal(value)}])
        table = open_table(str(tmp_path), name)
        for _ in ("as written", "compacted"):
            rows = java_oracle.request("read", warehouse=str(tmp_path), table=name)["rows"]
            assert rows == [[1, "1000.00"]]
            assert read_arrow(table).column("v").to_pylist() == [Decimal("1000.00")]
            assert read_arrow(table, where=pc.field("v") > Decimal("999.99")).num_rows == 1
            compact(table)
        assert len(plan_scan(table).splits[0].files) == 1
