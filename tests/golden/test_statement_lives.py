"""The lives of ``row-tracking-fuzz`` again by our statements: rows, row ids and versions after each are Paimon's."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.execution import run_operation
from airflow_paimon.spark import sql
from tests.oracles.golden import golden_index
from tests.randomness import every

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = "row-tracking-fuzz"
LIVES = [e for e in golden_index(ARCHIVE) if "data-evolution.enabled" not in e["options"]]


class Pairs:
    """Which id of ours stands for which of Paimon's: inside one commit new rows may be numbered in another order."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}

    def check(self, theirs: list[list[Any]], ours: list[list[Any]]) -> None:
        """``[..., id, version]``; versions are compared by order, as other engines make other snapshots in between."""
        known = {self._ours[row[-2]]: row[:-2] for row in theirs if row[-2] in self._ours}
        by_id = {row[-2]: row[:-2] for row in ours}
        assert len(by_id) == len(ours)
        assert {i: by_id.get(i) for i in known} == known
        fresh = sorted((row for row in theirs if row[-2] not in self._ours), key=json.dumps)
        added = sorted((row for row in ours if row[-2] not in known), key=json.dumps)
        assert [row[:-2] for row in fresh] == [row[:-2] for row in added]
        assert not {row[-2] for row in added} & set(self._ours.values())
        self._ours |= {a[-2]: b[-2] for a, b in zip(fresh, added, strict=True)}
        paired = {self._ours[row[-2]]: row[-1] for row in theirs}
        versions = sorted({(paired[row[-2]], row[-1]) for row in ours})
        assert len(versions) == len({a for a, _ in versions}) == len({b for _, b in versions})
        assert [b for _, b in versions] == sorted(b for _, b in versions)


@pytest.mark.parametrize(
    "life",
    every(6, LIVES, first=3) or [None],
    ids=lambda life: life["table"] if life else "no-golden-tables",
)
@pytest.mark.every(2)
def test_life(golden: Callable[[str], Path], spark: SparkSession, tmp_path: Path, life: Any) -> None:
    archive = golden(ARCHIVE)
    assert life is not None
    schema = open_table(str(archive / "wh"), life["table"]).schema()
    table = create_table(
        str(tmp_path),
        life["table"],
        [(f.name, str(f.type)) for f in schema.fields],
        partition_keys=schema.partition_keys,
        options=life["options"],
    )
    name, pairs, at, branched = life["table"].removeprefix("d."), Pairs(), 0, False
    # with deletion vectors Paimon's MERGE gives updated rows new ids; ours keeps them
    same_ids = "deletion-vectors.enabled" not in life["options"]
    for text in life["ops"]:
        done = _run(spark, tmp_path, name, text)
        branched = branched or "create_branch" in text
        if not done:
            continue
        views = [table, *([table.branch("b")] if branched else [])]
        wanted = [[json.loads(row) for row in rows] for rows in life["steps"][at]]
        while not _same([_rows(v) for v in views], wanted) and at + 1 < len(life["steps"]):
            at += 1
            wanted = [[json.loads(row) for row in rows] for rows in life["steps"][at]]
        assert _same([_rows(v) for v in views], wanted), text
        if same_ids and not branched:
            pairs.check(wanted[0], _rows(table))
    assert at >= len(life["steps"]) - 2


def _rows(table: Table) -> list[list[Any]]:
    columns = [*table.schema().field_names, "_ROW_ID", "_SEQUENCE_NUMBER"]
    return [list(row.values()) for row in read_arrow(table, columns=columns).to_pylist()]


def _same(ours: list[list[list[Any]]], theirs: list[list[list[Any]]]) -> bool:
    def counted(rows: list[list[Any]]) -> Counter[str]:
        return Counter(json.dumps(row[:-2]) for row in rows)

    return [counted(rows) for rows in ours] == [counted(rows) for rows in theirs]


def _run(spark: SparkSession, warehouse: Path, name: str, text: str) -> bool:
    """Run a statement of the life on our table; whether it changes rows."""
    if text.startswith("create or replace temporary view"):
        view, text = text.split("; ", 1)
        spark.sql(view)
    if found := re.search(r"create_tag\(.*tag=>'(\w+)'\)", text):
        run_on(warehouse, name, "create_tag", tag=found[1])
    elif found := re.search(r"create_branch\(.*branch=>'(\w+)', tag=>'(\w+)'\)", text):
        run_on(warehouse, name, "create_branch", branch=found[1], tag=found[2])
    if text.startswith("call "):
        return False
    text = re.sub(rf"`{name}\$", f"d.`{name}$", re.sub(rf"(?<!`)\b{name}\b", f"d.{name}", text))
    sql(spark, str(warehouse), text, all_rows=True)
    return True


def run_on(warehouse: Path, name: str, operation: str, **more: Any) -> None:
    values = {"warehouse": str(warehouse), "table": f"d.{name}", **more}
    run_operation(build_request(operation, values))
