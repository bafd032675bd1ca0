"""Tables with options that say how rows become files, both ways with O3: what we write is what Java goes on with."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.data.tables import rows_of
from tests.data.test_compact import run as compact
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import COLUMNS, World
from tests.randomness import chance

pytestmark = [pytest.mark.oracle, pytest.mark.random]


@pytest.fixture
def world(java_oracle: JavaOracle, tmp_path: Path) -> World:
    return World(tmp_path, java_oracle)


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return rows_of(COLUMNS, rows)


def test_thin_files(world: World) -> None:
    world.create(**{"data-file.thin-mode": "true", "bucket": "2"})
    given = [{"p": p, "k": k, "v": f"{p}{k}"} for p in "xy" for k in range(6)]
    write_arrow(world.main, arrow(given))
    for path in world.root.glob("**/bucket-*/*.parquet"):
        assert pq.read_schema(path).names == ["_SEQUENCE_NUMBER", "_VALUE_KIND", "k", "v", "p"]
    assert len(world.same()) == 12
    world.write("x1=java y9=java")
    world.run("create_branch", branch="fix", snapshot=2)
    world.correct("fix", "x2=fix y3=fix")
    world.run("merge_branch", branch="fix")
    world.write("x3=last")
    world.do("compact", full=True)
    found = {(p, k): v for p, k, v in world.same()}
    assert found == {(r["p"], r["k"]): r["v"] for r in given} | {
        ("x", 1): "java", ("y", 9): "java", ("x", 2): "fix", ("y", 3): "fix", ("x", 3): "last"}  # fmt: skip
    write_arrow(world.main, arrow([{"p": "x", "k": 3, "v": None}]))
    compact(world.main)
    assert len(world.same()) == 13
    assert world.is_sound()


def test_the_row_kind_is_in_a_column(world: World) -> None:
    """Java and we read it from the column; what is stored afterwards is the kind, and the text as it came."""
    world.create(**{"rowkind.field": "v"})
    write_arrow(world.main, arrow([{"p": "x", "k": k, "v": v} for k, v in enumerate(["+I", "+u", "+I", "+I", "-D"])]))
    assert world.both() == "x0=+I x1=+u x2=+I x3=+I"
    world.write("x0=-D x1=+U x7=+i")
    write_arrow(
        world.main, arrow([{"p": "x", "k": 2, "v": "-d"}, {"p": "x", "k": 1, "v": "-U"}, {"p": "x", "k": 8, "v": "+I"}])
    )
    assert world.both() == "x3=+I x7=+i x8=+I"
    for wrong in ("", None, "I", " +I"):
        with pytest.raises(InvalidInputError, match=r"column 'v' \(rowkind.field\) must be one of"):
            write_arrow(world.main, arrow([{"p": "x", "k": 1, "v": wrong}]))
    write_arrow(world.main, arrow([{"p": "x", "k": 4, "v": "+I"}, {"p": "x", "k": 8, "v": "-D"}]), mode="overwrite")
    assert world.both() == "x4=+I"
    head = world.main.latest_snapshot()
    assert head is not None
    world.run("create_branch", branch="fix", snapshot=head.id)
    world.correct("fix", "x4=+U x5=+I")
    world.run("merge_branch", branch="fix", writers_stopped=True)
    world.write("x4=-D x6=+I")
    assert world.both() == "x5=+I x6=+I"
    assert world.is_sound()


TYPES: dict[str, Any] = {
    "a": "INT NOT NULL", "b": "STRING NOT NULL", "c": "BIGINT NOT NULL", "d": "DECIMAL(10, 3) NOT NULL",
    "e": "DECIMAL(30, 5) NOT NULL", "f": "DOUBLE NOT NULL", "g": "FLOAT NOT NULL", "h": "BOOLEAN NOT NULL",
    "i": "DATE NOT NULL", "j": "SMALLINT NOT NULL", "v": "STRING",
}  # fmt: skip


@pytest.mark.parametrize("function, keys", [("mod", "c"), ("mod", "a"), ("hive", "abcdefghij"), ("hive", "b")])
@pytest.mark.every(2)
def test_bucket_functions(java_oracle: JavaOracle, tmp_path: Path, function: str, keys: str) -> None:
    """A row in another bucket than Java's would be there twice after its next upsert; a filter must find it as well."""
    random = chance(f"bucket function {function} {keys}")
    options = {"bucket": "7", "bucket-key": ",".join(keys), "bucket-function.type": function}
    java_oracle.create_table(tmp_path, "d.t", TYPES, primary_keys=list(keys), options=options)
    table = open_table(str(tmp_path), "d.t")

    def row(i: int, v: str) -> dict[str, Any]:
        own = chance(f"row {i}")
        return {
            "a": own.choice([i, -i, 2**31 - 1 - i]), "b": own.choice(["", "héé€𝄞", "x" * 40, "a"]) + str(i),
            "c": own.choice([i, -i - 1, 2**63 - 1 - i, -(2**63) + i]),
            "d": Decimal(own.randint(-(10**10) + 1, 10**10 - 1)).scaleb(-3),
            "e": Decimal(own.choice([own.randint(-(10**29), 10**29), 100_000 * i, 0])).scaleb(-5),
            "f": own.choice([0.0, -1.5, own.uniform(-1e300, 1e300)]), "g": own.choice([0.0, 0.5, -2.25]),
            "h": own.random() < 0.5, "i": dt.date(1960, 1, 1) + dt.timedelta(days=own.randint(0, 30000)),
            "j": own.randint(-32768, 32767), "v": v,
        }  # fmt: skip

    first = [row(i, "ours") for i in range(60)]
    write_arrow(table, rows_of(TYPES, first))
    assert len({s.bucket for s in plan_scan(table).splits}) > 4
    java_oracle.write(tmp_path, "d.t", [row(i, "java") for i in range(20, 80)])
    found = read_arrow(table)
    assert found.num_rows == 80, "a key is in two buckets"
    assert java_oracle.read(tmp_path, "d.t").num_rows == 80
    write_arrow(table, rows_of(TYPES, [row(i, "again") for i in range(80)]))
    assert set(java_oracle.read(tmp_path, "d.t").column("v").to_pylist()) == {"again"}
    for wanted in random.sample(first, 10):
        where = None
        for key in keys:
            equal = pc.field(key) == pa.scalar(wanted[key], found.schema.field(key).type)
            where = equal if where is None else where & equal
        assert read_arrow(table, where=where).num_rows == 1, wanted
