"""Every worked example of Paimon's tests as rows, before and after compaction, and what Paimon's tests do besides."""

from __future__ import annotations

import uuid

import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.files import drop_partitions
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.planner import read_schema
from tests.core.tables import run
from tests.data.chain.compactions import compact, full, outcomes
from tests.data.chain.examples import (
    DAILY,
    EXAMPLES,
    HOURLY,
    VECTORED,
    Example,
    Where,
    as_expression,
    with_deletion_vectors,
)
from tests.data.chain.expiries import made
from tests.data.chain.tables import Row, chain_table, day_is, on, seen, write
from tests.data.chain.test_compact import GROUPED, HOUR_FORM, HOURS


def memory() -> str:
    return f"memory://{uuid.uuid4()}/wh"


def found(table: Table, where: Where) -> list[Row]:
    asked = as_expression(where)
    return seen(table) if asked is None else seen(table, where=asked)


def check(table: Table, example: Example) -> None:
    for where, expected in example.main:
        assert found(table, where) == expected, where
    for where, expected in example.delta:
        assert found(table.branch("delta"), where) == expected, where


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_example(example: Example) -> None:
    check(example.made(memory()), example)


@pytest.mark.every(3)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_compaction_of_everything_changes_no_answer(example: Example) -> None:
    table = example.made(memory())
    compact(table, pending=True, max_chain_length=0)
    check(table, example)


def test_a_hybrid_query_is_the_union_of_both() -> None:
    table = DAILY.made(memory())
    both = read_arrow(table, where=pc.field("dt") == "20250811", chain_read="hybrid")
    names = both.column_names
    assert sorted(r[names[0]] for r in both.to_pylist()) == [1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("example", "overwritten", "stale"),
    [
        (DAILY, {"20250813": (5, 2, "1"), "20250814": (6, 2, "1")}, "20250814"),
        (HOURLY, {"20250811/02": (6, 2, "1")}, "20250811/02"),
    ],
    ids=["daily", "hourly"],
)
def test_an_overwritten_delta_is_seen_once_its_full_partition_is_dropped(
    example: Example, overwritten: dict[str, Row], stale: str
) -> None:
    """Paimon truncates the full partition of the same values. Ours leaves what nobody recorded to whoever loaded it,
    says that it is stale, and reads the new delta once it is dropped."""
    table = example.made(memory())
    delta, snapshot = table.branch("delta"), table.branch("snapshot")
    keys = table.schema().partition_keys
    for partition, row in overwritten.items():
        write(delta, ["k", "s", "v"], keys, partition, [row], mode="dynamic_overwrite")
    spec = dict(zip(keys, stale.split("/"), strict=True))
    assert found(delta, spec) == on(stale, overwritten[stale])
    assert found(table, spec) == {repr(w): r for w, r in example.main}[repr(spec)]
    drop_partitions(snapshot, [spec])
    assert found(snapshot, spec) == []
    assert [r for r in found(table, spec) if r[0] == 6] == on(stale, overwritten[stale])


def test_one_delta_and_nothing_else() -> None:
    """testChainTableCacheInvalidation."""
    table = chain_table(memory(), [("delta", "20250810", [(1, 1, "1")])])
    assert seen(table) == on("20250810", (1, 1, "1"))


def test_rows_of_main_take_no_part_in_chains() -> None:
    """testChainTableWithBranchOption. A delta overwrite of Paimon's makes an empty commit in the snapshot branch; ours
    makes none."""
    table = chain_table(memory(), [("main", "20250810", [(1, 3, "0")])])
    delta = table.branch("delta")
    write(delta, ["k", "s", "v"], ["dt"], "20250810", [(1, 2, "1")], mode="dynamic_overwrite")
    write(delta, ["k", "s", "v"], ["dt"], "20250811", [(2, 2, "1")], mode="dynamic_overwrite")
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 2, "1"), (2, 2, "1"))
    assert seen(table, where=day_is("20250810")) == on("20250810", (1, 3, "0"))
    assert seen(table.branch("snapshot"), where=day_is("20250811")) == []
    assert table.branch("snapshot").snapshot_ids() == []


def test_an_overwrite_without_rows_changes_nothing() -> None:
    table = DAILY.made(memory())
    delta = table.branch("delta")
    empty = read_arrow(delta).slice(0, 0)
    assert not write_arrow(delta, empty, mode="dynamic_overwrite")["changed"]
    check(table, DAILY)


def test_deletion_vectors() -> None:
    """testChainTableWithDeletionVectors: what DELETE marked goes on hiding, and compaction leaves it out."""
    table = with_deletion_vectors(memory())
    last = pc.field("date") == "20260224"
    assert seen(table, where=last) == VECTORED
    assert seen(table.branch("snapshot"), where=pc.field("k") == 3) == []
    compact(table, "date=20260224")
    assert [r for r in full(table) if r[-1] == "20260224"] == VECTORED == seen(table, where=last)


def test_versions_that_were_written_out_of_order() -> None:
    """ChainTableDeletionVectorReadTest: of the versions of a key in a full partition the highest sequence wins."""
    table = chain_table(memory(), [("snapshot", "20250810", [r]) for r in ((4, 5, "x"), (2, 6, "x"), (4, 2, "x"))])
    expected = on("20250810", (2, 6, "x"), (4, 5, "x"))
    assert seen(table) == seen(table.branch("snapshot")) == expected
    write(table.branch("delta"), ["k", "s", "v"], ["dt"], "20250811", [(4, 3, "late")])
    assert [r[:3] for r in seen(table, where=day_is("20250811"))] == [(2, 6, "x"), (4, 5, "x")]


@pytest.mark.parametrize("dynamic", ["true", "false"])
def test_partial_specs_replace_no_other_group(dynamic: str) -> None:
    """t4 of the procedure, whatever dynamic-partition-overwrite says (apache/paimon 8508 lost the other groups)."""
    table = chain_table(
        memory(),
        GROUPED,
        partitions={"region": "STRING", **HOURS},
        form=HOUR_FORM,
        chain_keys="dt,hour",
        dynamic_partition_overwrite=dynamic,
    )
    done = compact(table, "dt=20260210,hour=22", overwrite=True)
    counts = sorted(outcomes(done).values())
    assert counts == ["compacted", "compacted", "compacted", "gap", "nothing-to-do"]
    at_22 = [(r[3], r[0]) for r in full(table) if r[-1] == "22"]
    assert sorted(at_22) == [("CN", 2), ("CN", 4), ("FR", 31), ("UK", 21), ("UK", 22), ("US", 11)]


def test_a_batch_size_does_not_tear_a_segment_apart() -> None:
    """Paimon drops deltas in batches, and fails in the middle where a batch ends within a segment."""
    table = made("0101 0115 0201", "0101 0102 0103 0116", partition__expiration_batch_size="1")
    result = run(table, "expire_partitions", expiration_time="30 d", now="2025-03-31T00:00:00+00:00")
    assert [(c["branch"], c["partitions"]) for c in result.details["commits"]] == [("delta", 4), ("snapshot", 2)]


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update"])
@pytest.mark.parametrize("ignored", ["ignore-delete", "ignore-update-before"])
def test_rows_that_are_ignored_make_no_partition(engine: str, ignored: str) -> None:
    """They are not written at all, as in Paimon: one of main's would hide the chain, one of deltas' end a gap."""
    table = chain_table(memory(), [("delta", "20250810", [(1, 1, "1")])], merge_engine=engine, **{ignored: "true"})
    for branch, day in (("main", "20250810"), ("delta", "20250811")):
        write(table.branch(branch), ["k", "s", "v"], ["dt"], day, [(1, 2, "x", "-U"), (2, 2, "x", "-U")])
        assert table.branch(branch).snapshot_ids() == ([] if branch == "main" else [1])
    assert seen(table) == on("20250810", (1, 1, "1"))


def test_the_schema_of_a_moment_when_main_was_empty() -> None:
    """Main of a chain table often has no snapshot at all."""
    table = chain_table(memory(), [("delta", "20250810", [(1, 1, "1")])])
    moment = table.branch("delta").snapshot(1).time_millis
    assert read_schema(table, timestamp=moment).field_names == tuple(read_arrow(table, timestamp=moment).column_names)
    for read in (read_schema, read_arrow):
        with pytest.raises(NotFoundError, match=r"No branch of d\.t has a snapshot as early as 1"):
            read(table, timestamp=1)
