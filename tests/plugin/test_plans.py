"""Differences of schemas, and the grid of a chain table: what each day is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.plugin.tabs.grid import chain_summary
from airflow_paimon.plugin.tabs.grid_plan import lay_out_grid
from airflow_paimon.plugin.tabs.schema_diff_plan import schema_changes
from tests.core.chain.tables import DAILY, add, build, make_chain, overwrite


def schema(*columns: tuple[int, str, str], **more: object) -> TableSchema:
    fields = tuple(DataField(i, name, parse_type(kind)) for i, name, kind in columns)
    made = TableSchema(id=0, fields=fields, highest_field_id=9)
    return replace(made, **more)  # type: ignore[arg-type]


BEFORE = schema((0, "k", "BIGINT"), (1, "v", "STRING"), options={"bucket": "2", "old": "1"}, primary_keys=("k",))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, []),
        (schema((0, "k", "BIGINT"), (1, "w", "STRING"), options=BEFORE.options, primary_keys=("k",)),
         [("changed", "column v is now w")]),
        (schema((0, "k", "BIGINT"), (2, "v", "STRING"), options=BEFORE.options, primary_keys=("k",)),
         [("added", "column v STRING"), ("removed", "column v STRING")]),
        (schema((1, "v", "STRING"), (0, "k", "BIGINT"), options=BEFORE.options, primary_keys=("k",)),
         [("changed", "order of columns: v, k")]),
        (schema((0, "k", "BIGINT"), (1, "v", "VARCHAR(3)"), options=BEFORE.options, primary_keys=("k",)),
         [("changed", "column v: STRING is now VARCHAR(3)")]),
        (replace(BEFORE, options={"bucket": "4", "new": "1"}, primary_keys=(), comment="c"),
         [("changed", "primary keys: k is now none"), ("changed", "comment: None is now c"),
          ("changed", "option bucket: 2 is now 4"), ("added", "option new = 1"), ("removed", "option old = 1")]),
    ],
)  # fmt: skip
def test_differences_go_by_field_ids(after: TableSchema, expected: list[tuple[str, str]]) -> None:
    assert [(c.kind, c.text) for c in schema_changes(BEFORE, after)] == expected


def test_a_first_version_is_all_new() -> None:
    assert [c.text for c in schema_changes(None, BEFORE)] == ["column k BIGINT", "column v STRING"]


def states(table: Table, *, page: int = 1, width: int = 62) -> dict[str, str]:
    """The days of a chain by group, as letters."""
    check = chain_summary(table)
    assert check.layout is not None
    hidden = {f.subject for f in check.findings if f.kind == "hidden-delta"}
    grid = lay_out_grid(check.layout, check.groups, check.stale, hidden, page=page, width=width)
    return {line.name: "".join(day.sign or "-" for day in line.days) for line in grid.lines}


@pytest.fixture
def chain(tmp_path: Path) -> Table:
    options = {**DAILY, "chain-table.chain-partition-keys": "dt"}
    return make_chain(tmp_path, partitions=("region", "dt"), options=options)


def test_each_day_of_a_group_is_what_its_branches_hold(chain: Table) -> None:
    for day in ("01", "02", "03", "05", "06"):
        add(chain.branch("delta"), f"CN/202501{day}")
    add(chain.branch("delta"), "US/20250103")
    build(chain, "CN/20250103", None, ["CN/20250101", "CN/20250102", "CN/20250103"])
    build(chain, "CN/20250107", "CN/20250103", ["CN/20250105", "CN/20250106"])
    assert states(chain) == {"region=CN": "ddF·ddF", "region=US": "--d----"}
    overwrite(chain.branch("delta"), "CN/20250106")
    assert states(chain)["region=CN"] == "ddF·dd!"


def test_a_page_of_days_begins_with_the_newest(chain: Table) -> None:
    for day in range(1, 8):
        add(chain.branch("delta"), f"CN/202501{day:02}")
    build(chain, "CN/20250101", None, ["CN/20250101"])
    assert states(chain, page=1, width=5) == {"region=CN": "ddddd"}
    assert states(chain, page=2, width=5) == {"region=CN": "Fd"}
    assert states(chain, page=9, width=5) == {"region=CN": "Fd"}


def test_a_delta_that_another_engine_hid_is_marked(golden: Callable[[str], Path]) -> None:
    shown = states(open_table(str(golden("paimon-2.0.0") / "wh"), "d.ch_daily"))
    assert shown["all"].count("h") == 1
