"""Writes and corrections of partial-update and aggregation tables, both ways with O3, Paimon's Java engine.

Each life has a twin: the same rows, all written by Java. What we write into the first has to give the twin's rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.arrow_types import arrow_schema
from tests.data.tables import rows_of
from tests.data.test_compact import run
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World
from tests.oracles.merge_lives import a_life
from tests.oracles.test_merge_lives import read_or_refusal
from tests.randomness import chance as chance_of
from tests.randomness import lives

pytestmark = [pytest.mark.oracle, pytest.mark.random]


@pytest.mark.parametrize("engine", ["partial-update", "aggregation"])
@pytest.mark.parametrize("number", range(lives(1, 3)))
def test_what_we_write_is_what_java_would_have_written(
    java_oracle: JavaOracle, tmp_path: Path, engine: str, number: int
) -> None:
    chance = chance_of(f"writes/{engine}/{number}")
    life = a_life(chance, engine)
    bucket = "-1" if number == 1 else life.options["bucket"]
    options = {**life.options, "changelog-producer": "none", "write-only": "true", "bucket": bucket}
    options.pop("deletion-vectors.enabled", None)
    for name in ("d.t", "d.twin"):
        java_oracle.create_table(tmp_path, name, life.columns, primary_keys=["k"], options=options)
    table, written = open_table(str(tmp_path), "d.t"), 0
    for step in range(8):
        rows = life.rows(chance)
        if step % 2:
            data = pa.Table.from_pylist(rows, arrow_schema(table.schema().fields))
            data = data.append_column("_row_kind", pa.array([r["_row_kind"] for r in rows]))
            try:
                write_arrow(table, data)
            except InvalidInputError as error:
                assert "have no meaning" in error.message
                rows = [r for r in rows if r["_row_kind"] in ("+I", "+U")]
                if not rows:
                    continue
                write_arrow(table, data.filter(pa.array([k in ("+I", "+U") for k in data["_row_kind"].to_pylist()])))
            written += 1
        else:
            java_oracle.write(tmp_path, "d.t", rows)
        java_oracle.write(tmp_path, "d.twin", rows)
        theirs = read_or_refusal(lambda: java_oracle.read(tmp_path, "d.t"))
        assert theirs == read_or_refusal(lambda: java_oracle.read(tmp_path, "d.twin")), (options, step)
        assert theirs == read_or_refusal(lambda: read_arrow(table)), (options, step)
        if step == 5 and theirs != "refused":  # retractions that a compaction drops have no effect from here on
            run(table)
            java_oracle.do("compact", tmp_path, "d.twin", full=True, options={"write-only": "false"})
    assert written > 1


@pytest.mark.parametrize("bucket", ["1", "-1"])
@pytest.mark.parametrize("engine", ["partial-update", "aggregation"])
def test_java_goes_on_from_a_published_correction(
    java_oracle: JavaOracle, tmp_path: Path, engine: str, bucket: str
) -> None:
    """Its later rows are merged with the corrected row, and so are ours."""
    world, sums = World(tmp_path, java_oracle), engine == "aggregation"
    more = {"fields.a.aggregate-function": "sum"} if sums else {}
    columns = {"k": "INT NOT NULL", "a": "INT", "b": "STRING", "p": "STRING NOT NULL"}
    world.create(columns, **{"merge-engine": engine, "bucket": bucket, **more})

    def same() -> list[Any]:
        assert world.is_sound()
        return world.same(columns=("k", "a", "b"))

    def row(k: int, a: int | None, b: str | None) -> dict[str, Any]:
        return {"p": "x", "k": k, "a": a, "b": b}

    world.write([row(1, 5, "x"), row(2, 2, "y"), row(3, 3, "z")])
    world.write([row(1, 6, None), row(2, None, "w")])
    world.run("create_tag", tag="base")
    world.run("create_branch", branch="fix", tag="base")
    world.correct("fix", [row(1, 100, "set")])
    world.run("merge_branch", branch="fix", writers_stopped=bucket == "-1")
    assert same() == [(1, 100, "set"), (2, 2, "w"), (3, 3, "z")]
    world.write([row(1, 1, None), row(3, None, "java")])
    assert same() == [(1, 101 if sums else 1, "set"), (2, 2, "w"), (3, 3, "java")]
    write_arrow(world.main, rows_of(columns, [row(1, 2, "ours"), row(1, 3, None), row(4, 4, None)]))
    expected = [(1, 106 if sums else 3, "ours"), (2, 2, "w"), (3, 3, "java"), (4, 4, None)]
    assert same() == expected
    world.do("compact", full=True)
    assert same() == expected
    world.write([row(4, 1, "last")])
    assert same() == [*expected[:3], (4, 5 if sums else 1, "last")]
