"""rescale of tables that O3, Paimon's Java engine, writes: it reads the same rows, finds them where its own rescale
would have put them, goes on writing, and its stream tells every change once.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from tests.core.tables import run as operate
from tests.data.test_rescale import run
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle, PypaimonOracle, RustOracle
from tests.oracles.processes import OracleError
from tests.oracles.test_key_compaction import CASES, KV, Life
from tests.randomness import chance, every

pytestmark = pytest.mark.oracle

FIXED = [name for name, options in CASES.items() if options["bucket"] != "-1"]


@pytest.mark.random
@pytest.mark.parametrize("name", every(4, FIXED, first=1))
def test_random_lives(java_oracle: JavaOracle, tmp_path: Path, name: str) -> None:
    life = Life(java_oracle, tmp_path, CASES[name])
    random = chance(f"rescale-{name}")
    rescaled = 0
    for _ in range(12):
        keys = random.sample(range(40), random.randint(1, 12))
        what = random.choice(["put", "put", "delete", "rescale", "rescale", "theirs"])
        if what == "put":
            life.put(life.some(keys))
        elif what == "delete":
            life.put(life.some(keys), "-D")
        elif what == "rescale":
            if run(life.table, random.randint(1, 7)).changed:  # else rows may wait for a compaction
                life.check()
                rescaled += 1
        else:
            life.theirs(full=random.random() < 0.5)
        life.follow()
    rescaled += run(life.table, 11).changed
    life.theirs(full=True)
    life.follow()
    assert rescaled and life.told == life.rows


def places(table: Table) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """The rows of each partition and bucket."""
    read, splits = plan_read(plan_scan(table))
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for split in splits:
        rows = [tuple(r.values()) for b in read_split(read, split) for r in b.to_pylist()]
        key = (*split.bucket.values, split.bucket.bucket, split.bucket.total_buckets)
        found[key] = sorted([*found.get(key, []), *rows])
    return found


TABLES: dict[str, tuple[dict[str, str], list[str], dict[str, str]]] = {
    "keyed": ({"p": "INT NOT NULL", "k": "STRING NOT NULL", "v": "BIGINT"}, ["p", "k"], {}),
    "two keys": ({"p": "INT NOT NULL", "k": "STRING NOT NULL", "v": "DATE NOT NULL"}, ["p", "k", "v"], {}),
    "append": ({"p": "INT", "k": "BIGINT", "v": "DECIMAL(20, 3)"}, [], {"bucket-key": "k,v"}),
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_lie_where_javas_own_rescale_puts_them(
    java_oracle: JavaOracle,
    pypaimon_oracle: PypaimonOracle,
    rust_oracle: RustOracle,
    tmp_path: Path,
    name: str,
) -> None:
    """Paimon's procedure alters the number and overwrites the table with its own rows."""
    columns, keys, options = TABLES[name]
    java_oracle.create_table(tmp_path, "d.t", columns, partition_keys=["p"], primary_keys=keys,
                             options={"bucket": "3", **options})  # fmt: skip
    table, random = open_table(str(tmp_path), "d.t"), chance(name)
    values: dict[str, Callable[[], Any]] = {
        "STRING": lambda: f"k{random.random()}",
        "BIGINT": lambda: random.randint(-(2**63), 2**63 - 1),
        "DATE": lambda: dt.date(random.randint(1900, 2100), 1, 2),
        "DECIMAL": lambda: Decimal(random.randint(-(9**9), 9**9)) + Decimal("0.5"),
    }
    kinds = {column: kind.split()[0].split("(")[0] for column, kind in columns.items() if column != "p"}
    rows = [{"p": n % 2, **{column: values[kind]() for column, kind in kinds.items()}} for n in range(60)]
    java_oracle.write(tmp_path, "d.t", rows)
    shutil.copytree(tmp_path / "d.db" / "t", tmp_path / "d.db" / "twin")
    twin = open_table(str(tmp_path), "d.twin")
    run(table, 5)
    operate(twin, "alter_table", change=["set bucket=5"])
    java_oracle.write(tmp_path, "d.twin", java_oracle.read(tmp_path, "d.twin"), mode="overwrite")
    assert places(table) == places(twin)
    assert {key[-1] for key in places(table)} == {5}
    for oracle in (java_oracle, pypaimon_oracle, rust_oracle):
        assert_same_rows(oracle.read(tmp_path, "d.t"), read_arrow(table))
    java_oracle.write(tmp_path, "d.t", rows[:3])
    assert_same_rows(java_oracle.read(tmp_path, "d.t"), read_arrow(table))


def test_java_goes_on_after_a_rescale_and_after_its_undo(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """It refuses a partition of another number than the option's; but it looks only at the buckets that it writes."""
    java_oracle.create_table(tmp_path, "d.t", KV, primary_keys=["k"], options={"bucket": "2"})
    table = open_table(str(tmp_path), "d.t")
    some_rows = [{"k": k, "v": "a"} for k in range(20)]
    java_oracle.write(tmp_path, "d.t", some_rows)
    result = run(table, 4)
    java_oracle.write(tmp_path, "d.t", [{"k": k, "v": "b"} for k in range(9)])
    assert_same_rows(java_oracle.read(tmp_path, "d.t"), read_arrow(table))
    operate(table, "rollback_to", snapshot=result.snapshot_before)
    java_oracle.write(tmp_path, "d.t", [{"k": k, "v": "c"} for k in range(3)])
    assert_same_rows(java_oracle.read(tmp_path, "d.t"), read_arrow(table))
    assert len(read_arrow(table)) == 20
    assert operate(table, "check_table").details["ok"]
    operate(table, "alter_table", change=["set bucket=4"])
    with pytest.raises(OracleError, match="new bucket num 4, but the previous bucket num is 2"):
        java_oracle.write(tmp_path, "d.t", some_rows)


@pytest.mark.parametrize("write_only", ["true", "false"])
def test_a_writer_of_java_that_stays_open(java_oracle: JavaOracle, tmp_path: Path, write_only: str) -> None:
    """It is refused, or it leaves what check_table finds and no later write or rescale takes for right."""
    java_oracle.create_table(tmp_path, "d.t", KV, primary_keys=["k"], options={"bucket": "2", "write-only": write_only})
    table = open_table(str(tmp_path), "d.t")
    java_oracle.write(tmp_path, "d.t", [{"k": k, "v": "a"} for k in range(20)])
    with java_oracle.open_stream_writer(tmp_path, "d.t") as writer:
        writer.write([{"k": 1, "v": "b"}])
        writer.commit()
        run(table, 5)
        writer.write([{"k": 2, "v": "c"}])
        try:
            writer.commit()
        except OracleError as error:
            outcome = str(error)
        else:
            outcome = "landed"
    found = [f["id"] for f in operate(table, "check_table").details["findings"]]
    assert (outcome == "landed") == ("bucket-counts:main" in found), (outcome, found)
    if outcome != "landed":
        assert len(read_arrow(table)) == 20
