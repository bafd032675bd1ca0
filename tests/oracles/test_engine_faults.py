"""What O1, O2 and O4 can't do or do wrong, so that a version that does it right is noticed here, and what we do in the
same case. The matrix leaves these out: the lists in matrix.py name them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.data import read_arrow, write_arrow
from tests.data.tables import make_table, rows_of
from tests.oracles.canonical import assert_same_rows, canonical_rows
from tests.oracles.drivers import PypaimonOracle, RustOracle, SparkConnectorOracle
from tests.oracles.matrix import CLOCK, NANOS, Columns, Connector, Engine, Pypaimon, Rust
from tests.oracles.matrix_cases import engine, name, ours, same, warehouse, with_values
from tests.oracles.processes import OracleError

__all__ = ["engine", "name", "warehouse"]

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("engine", ["o1", "o2"], indirect=True)
def test_nanoseconds(engine: Engine, name: str) -> None:
    columns: Columns = {"k": "INT", "t6": "TIMESTAMP(6)", **NANOS}
    make_table(engine.warehouse, columns, name=name)
    moment = dt.datetime(1950, 1, 1, 1, 1, 1, 7)
    rows = rows_of(columns, [{"k": 1, "t6": moment, "t9": moment, "l9": moment.replace(tzinfo=dt.UTC)}, {"k": 2}])
    write_arrow(ours(engine, name), rows)
    same(engine, name, rows)
    engine.write(name, rows)
    same(engine, name, pa.concat_tables([rows, rows]))


def test_what_pypaimon_gets_wrong(pypaimon_oracle: PypaimonOracle, warehouse: Path) -> None:
    engine = Pypaimon(pypaimon_oracle, warehouse)
    rows = with_values(engine, "d.o1_filters", lambda part: write_arrow(ours(engine, "d.o1_filters"), part))
    # A predicate of a projected builder looks at other columns' statistics: rows are lost, or it fails.
    given = {"i16": ("SMALLINT", rows[12]["i16"])}
    assert engine.keys_where("d.o1_filters", given, where_of="projection") == {"i16": []}
    with pytest.raises(OracleError, match="not supported between instances of 'bool' and 'str'"):
        engine.keys_where("d.o1_filters", {"text": ("STRING", rows[12]["text"])}, where_of="projection")
    # ORC timestamps out of the range of nanoseconds come wrapped; we refuse them by name.
    columns = {"k": "INT", "t6": "TIMESTAMP(6)"}
    table = make_table(warehouse, columns, name="d.o1_orc", file__format="orc")
    engine.write("d.o1_orc", rows_of(columns, [{"k": 1, "t6": dt.datetime(1, 1, 1)}]))
    assert engine.read("d.o1_orc").column("t6").to_pylist()[0].year == 1754
    with pytest.raises(UnsupportedFeatureError, match="before 1677 or after 2262"):
        read_arrow(table)


@pytest.mark.parametrize("engine", ["o1", "o2"], indirect=True)
def test_far_years_beside_nanoseconds_come_wrapped(engine: Engine, name: str) -> None:
    """A table with a TIMESTAMP finer than microseconds has INT96 in its Parquet files: Arrow writes all timestamps of a
    file so or none. O1 and O2 read those in nanoseconds; Java and we read them right (tests/data/test_java.py)."""
    columns: Columns = {"k": "INT", "t6": "TIMESTAMP(6)", **NANOS}
    make_table(engine.warehouse, columns, name=name)
    rows = rows_of(columns, [{"k": 1, "t6": dt.datetime(9999, 12, 31)}])
    write_arrow(ours(engine, name), rows)
    assert_same_rows(read_arrow(ours(engine, name)), rows)
    assert engine.read(name).column("t6").to_pylist()[0].year == 1816


def test_what_the_rust_engine_can_not_do(rust_oracle: RustOracle, warehouse: Path) -> None:
    engine = Rust(rust_oracle, warehouse)
    make_table(warehouse, {"p": "DOUBLE", "k": "INT"}, name="d.o2_double", partition_keys=["p"])
    write_arrow(ours(engine, "d.o2_double"), pa.table({"p": [1.5], "k": pa.array([1], pa.int32())}))
    with pytest.raises(OracleError, match=r"Double.* type is not supported as partition key"):
        engine.read("d.o2_double")
    with pytest.raises(OracleError, match="Unknown procedure: create_branch"):
        engine.sql("CALL sys.create_branch(table => 'd.o2_double', branch => 'b')")
    with pytest.raises(OracleError, match="Unsupported SQL data type: TIME"):
        engine.create("d.o2_time", CLOCK)
    make_table(warehouse, {"k": "INT NOT NULL", "v": "STRING"}, name="d.o2_pk", primary_keys=["k"], bucket="1")
    for statement in ("UPDATE paimon.d.o2_pk SET v = 'x'", "DELETE FROM paimon.d.o2_pk"):
        with pytest.raises(OracleError, match="primary-key tables"):
            engine.sql(statement)
    refusals = {"zstd": "ORC compression 'zstd'", "none": "ORC writer does not support column 'm'"}
    decimal = pa.table({"m": pa.array([Decimal("1.5")], pa.decimal128(8, 1))})
    for compression, refusal in refusals.items():
        options = {"file__format": "orc", "file__compression": compression}
        make_table(warehouse, {"m": "DECIMAL(8, 1)"}, name=f"d.o2_{compression}", **options)
        with pytest.raises(OracleError, match=refusal):
            engine.write(f"d.o2_{compression}", decimal)


def test_what_the_connector_gets_wrong(connector_oracle: SparkConnectorOracle, warehouse: Path) -> None:
    engine = Connector(connector_oracle, warehouse)
    # 0.9.0 does not know partition.legacy-name and looks into the folders of the other spelling.
    columns = {"p": "DATE", "k": "INT"}
    make_table(warehouse, columns, name="d.o4_legacy", partition_keys=["p"], partition__legacy_name="false")
    write_arrow(ours(engine, "d.o4_legacy"), rows_of(columns, [{"p": dt.date(2025, 8, 14), "k": 1}]))
    with pytest.raises(OracleError, match=r"FileNotFoundException: File .*/p=20314/"):
        engine.read("d.o4_legacy")
    # A filter on a column of one or two bytes fails, in its own files too.
    engine.sql("CREATE TABLE d.o4_small (k INT, i8 TINYINT, i16 SMALLINT)", "INSERT INTO d.o4_small VALUES (1, 1, 1)")
    for column in ("i8", "i16"):
        with pytest.raises(OracleError, match="FilterPredicate"):
            engine.sql(f"SELECT k FROM d.o4_small WHERE {column} = 1")
    # A TIME is a number to it, nanoseconds are cut off.
    make_table(warehouse, {**CLOCK, "t9": "TIMESTAMP(9)"}, name="d.o4_fine")
    fine = pa.table({"clock": pa.array([3_723_000], pa.time32("ms")), "t9": pa.array([1_234_567], pa.timestamp("ns"))})
    write_arrow(ours(engine, "d.o4_fine"), fine)
    assert canonical_rows(engine.read("d.o4_fine")) == [(3_723_000, ("timestamp", 1_234_000))]
