"""Reads of chain tables: worked examples as rows, and the rules of docs/howto/chain-reads.md."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.chain.read_plan import Source
from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DeletionVectorRange, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.scan import ScanPlan, plan_scan, with_planned_files
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_read import read_group
from airflow_paimon.data.chain.branch_states import partition_reads
from airflow_paimon.data.chain.splits import divide_split
from airflow_paimon.data.planner import pin
from airflow_paimon.data.read_groups import GroupPlan
from airflow_paimon.data.read_request import ReadRequest
from tests.core.format.test_deletion_vectors import JAVA_SAMPLE
from tests.data.chain.tables import (
    DAYS,
    EXPECTED,
    GAPPED,
    PARTIAL,
    PARTIAL_DELETES,
    TWO_VALUES,
    Row,
    Writes,
    chain_table,
    day_is,
    on,
    planned_chain,
    seen,
    set_options,
    versions,
    write,
)
from tests.data.tables import make_table
from tests.randomness import chance as chance_of
from tests.randomness import lives
from tests.stores import delete_tree


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return chain_table(tmp_path_factory.mktemp("days"), DAYS)


def test_daily_chain(days: Table) -> None:
    assert seen(days) == sorted((r for rows in EXPECTED.values() for r in rows), key=repr)
    for day, rows in EXPECTED.items():
        assert seen(days, where=day_is(day)) == rows
    two = pc.field("dt").isin(["20250811", "20250812"])
    assert seen(days, where=two & (pc.field("k") == 1)) == [(1, 2, "1-1", "20250811"), (1, 2, "1-1", "20250812")]
    assert seen(days, where=day_is("20250812") & (pc.field("k") == 7)) == []
    assert seen(days, where=day_is("20250811") & (pc.field("k") == 4)) == [(4, 1, "1", "20250811")]
    assert seen(days, where=pc.field("dt") == "20990101") == []


def test_statistics_are_kept_only_for_a_filter(days: Table) -> None:
    for where, is_kept in ((None, False), (pc.field("k") > 0, True)):
        read = planned_chain(days, where=where)
        files = [f for split in read.chains for f in split.files]
        assert files and {f.value_stats != EMPTY_STATS for f in files} == {is_kept}


@pytest.mark.parametrize("number", range(lives(1, 20)))
def test_a_filter_gives_the_rows_of_all_that_it_keeps(number: int, tmp_path: Path) -> None:
    chance = chance_of(f"partitions {number}")
    table = chain_table(tmp_path, chance.choice([DAYS, GAPPED]))
    days = sorted({row[-1] for row in seen(table, gap_policy="carry_forward")})
    for _ in range(5):
        where = pc.field("dt") >= chance.choice(days)
        if chance.random() < 0.7:
            where = where & (pc.field("dt") <= chance.choice(days))
        if chance.random() < 0.5:
            where = where & (pc.field("k") > chance.randint(0, 5))
        asked: dict[str, Any] = {"where": where, "gap_policy": chance.choice(["empty", "carry_forward"]),
                                 "mode": chance.choice(["full", "incremental", "hybrid"])}  # fmt: skip
        found, everything = planned_chain(table, **asked), planned_chain(table, **{**asked, "where": None})
        assert _rows(found) == _rows(everything, where)


def _rows(group: GroupPlan, where: pc.Expression | None = None) -> list[str]:
    rows = pa.Table.from_batches(read_group(group), group.layers[0][0].output_schema)
    return sorted(map(repr, (rows if where is None else rows.filter(where)).to_pylist()))


def test_a_day_reads_the_files_of_its_chain(days: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    def plan(state: ScanPlan, *args: Any, **options: Any) -> ScanPlan:
        found = with_planned_files(state, *args, **options)
        planned.append(sum(len(s.files) for s in found.splits))
        return found

    monkeypatch.setattr("airflow_paimon.data.chain.plan.with_planned_files", plan)
    everything = sum(len(s.files) for b in ("main", "snapshot", "delta") for s in plan_scan(days.branch(b)).splits)
    planned_chain(days, where=day_is("20250811"))
    assert 0 < sum(planned) < everything


def test_columns_come_in_the_order_asked_for(days: Table) -> None:
    assert seen(days, columns=["dt", "v"], where=day_is("20250811") & (pc.field("k") == 1)) == [("20250811", "1-1")]
    assert len(seen(days, columns=["dt"])) == len(seen(days))
    with pytest.raises(InvalidInputError, match="no column 'nope'"):
        seen(days, columns=["nope"])


def test_incremental_and_hybrid_reads(days: Table) -> None:
    changes = on("20250811", (2, 2, "1-1"), (4, 1, "1"))
    eleventh = day_is("20250811")
    assert seen(days, where=eleventh, chain_read="incremental") == changes
    assert seen(days, where=eleventh, chain_read="hybrid") == sorted([*EXPECTED["20250811"], *changes], key=repr)
    assert seen(days, where=eleventh, chain_read="full") == EXPECTED["20250811"]
    # a full partition hides nothing of an incremental read, and main's rows come once in a hybrid one
    stored = on("20250812", (3, 2, "1-1"), (4, 2, "1-1"), (7, 1, "d7"))
    assert seen(days, where=day_is("20250812"), chain_read="incremental") == stored
    both = sorted([*EXPECTED["20250810"], *on("20250810", (1, 2, "1-1"), (3, 1, "1"))], key=repr)
    assert seen(days, where=day_is("20250810"), chain_read="hybrid") == both
    everything = seen(days, chain_read="incremental")
    assert everything == seen(days.branch("delta")) and len(everything) == 13
    assert seen(days, chain_read="hybrid") == sorted([*seen(days), *everything], key=repr)
    by_value = pc.field("v") == "d7"
    assert seen(days, where=by_value, columns=["dt", "k"], chain_read="hybrid") == [("20250812", 7)]
    # the branches are read as they were at main's moment: before main's only commit there was nothing
    moment = days.branch("delta").snapshot(2).time_millis
    assert seen(days, timestamp=moment, chain_read="incremental") == seen(days.branch("delta"), version=2)


def test_chain_read_is_for_chain_tables(days: Table, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="chain_read must be one of full, incremental, hybrid, not 'both'"):
        seen(days, chain_read="both")
    with pytest.raises(InvalidInputError, match=r"'snapshot\.1'.*leave chain_read out"):
        seen(days, version="snapshot.1", chain_read="hybrid")
    plain = make_table(tmp_path, {"k": "INT NOT NULL"}, primary_keys=["k"], bucket="1")
    for view in (days.branch("delta"), plain):
        with pytest.raises(InvalidInputError, match="main view of a chain table"):
            seen(view, chain_read="incremental")
        assert seen(view, chain_read="full") == seen(view)


def test_hourly_composite_keys_and_groups(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "CN/20250809/01", [(3, 1, "a")]),
            ("snapshot", "CN/20250809/02", [(4, 1, "a")]),
            ("delta", "CN/20250810/03", [(5, 1, "a")]),
            ("delta", "CN/20250810/05", [(6, 1, "a")]),
            ("delta", "US/20250810/05", [(7, 1, "a")]),
            ("delta", "US/20250810/06", [(8, 1, "a")]),
        ],
        partitions={"region": "STRING", "dt": "STRING", "hour": "STRING"},
        form=("$dt $hour:00:00", "yyyyMMdd HH:mm:ss"),
        chain_keys="dt,hour",
    )
    five = (pc.field("dt") == "20250810") & (pc.field("hour") == "05")
    assert seen(table, columns=["region", "k"], where=five) == [("CN", 4), ("CN", 5), ("CN", 6), ("US", 7)]
    six = (pc.field("dt") == "20250810") & (pc.field("hour") == "06")
    assert seen(table, columns=["region", "k"], where=six) == [("US", 7), ("US", 8)]


def test_minutes_take_nothing_of_the_future(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20250810/01:01", [(3, 1, "a")]),
            ("snapshot", "20250810/03:30", [(4, 1, "a")]),
            *(("delta", f"20250810/03:{m}", [(k, 1, "a")]) for m, k in ((35, 5), (40, 6), (45, 7))),
        ],
        partitions={"dt": "STRING", "hm": "STRING"},
        form=("$dt $hm:00", "yyyyMMdd HH:mm:ss"),
    )
    assert [r[0] for r in seen(table, where=pc.field("hm") == "03:40")] == [4, 5, 6]


def test_partial_update(tmp_path: Path) -> None:
    table = chain_table(tmp_path, PARTIAL, values=TWO_VALUES, merge_engine="partial-update")
    assert seen(table, where=day_is("20250809")) == on("20250809", (3, 1, "c", "C"), (4, 1, "d", "D"))
    assert seen(table, where=day_is("20250810")) == on("20250810", (1, 1, "a", "A"), (2, 1, "b", "B"))
    merged = on("20250811", (1, 3, "a1", "A1"), (2, 3, "b1", "B1"), (3, 1, "c", "C"), (5, 1, "e", "E"))
    assert seen(table, where=day_is("20250811")) == merged
    assert seen(table, where=day_is("20250812"))[0] == (1, 4, "a1", "A2", "20250812")
    # one column is merged as it is among all of them
    assert seen(table, columns=["v2"], where=day_is("20250811") & (pc.field("k") == 1)) == [("A1",)]


def test_partial_update_with_deletes(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        PARTIAL_DELETES,
        values=TWO_VALUES,
        merge_engine="partial-update",
        **{"partial-update__remove-record-on-delete": "true"},
    )
    assert seen(table, where=day_is("20250811")) == on("20250811", (2, 2, "b1", "B"), (5, 1, "e", "E"))
    assert seen(table, where=day_is("20250812")) == on("20250812", (2, 4, "b2", "B"))


def test_partial_updates_do_not_guess_what_a_delete_means(tmp_path: Path) -> None:
    table = chain_table(tmp_path, PARTIAL_DELETES, values=TWO_VALUES, merge_engine="partial-update")
    with pytest.raises(UnsupportedFeatureError, match="remove-record-on-delete"):
        seen(table)
    ignoring = chain_table(
        tmp_path / "2", PARTIAL_DELETES, values=TWO_VALUES, merge_engine="partial-update", **{"ignore-delete": "true"}
    )
    assert seen(ignoring, where=day_is("20250811"))[0] == (1, 2, "a", "A1", "20250811")
    grouped = chain_table(
        tmp_path / "3", PARTIAL, values=TWO_VALUES, merge_engine="partial-update", fields__s__sequence_group="v1"
    )
    with pytest.raises(UnsupportedFeatureError, match=r"fields\.s\.sequence-group"):
        seen(grouped)


def test_an_older_partition_with_a_higher_sequence_wins(tmp_path: Path) -> None:
    """Rows that sequence.field decides are Paimon's rows (testChainTableWithUpdate)."""
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20250820", [(1, 1, "anchor"), (2, 9, "anchor")]),
            ("delta", "20250821", [(1, 4, "day 21", "+U")]),
            ("delta", "20250822", [(1, 3, "day 22", "-U"), (2, 5, "day 22", "-D")]),
        ],
    )
    assert seen(table, where=day_is("20250822")) == on("20250822", (1, 4, "day 21"), (2, 9, "anchor"))


def test_ties_go_to_the_later_partition(tmp_path: Path) -> None:
    """The order is (sequence.field, chain position, internal number). With connector 2.0.0 the anchor wins here."""
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20250810", [(k, 1, "filler") for k in range(10, 40)]),  # raises the internal numbers
            ("snapshot", "20250810", [(1, 1, "anchor"), (2, 1, "anchor"), (3, 1, "anchor")]),
            ("delta", "20250811", [(k, 1, "filler") for k in range(10, 40)]),
            ("delta", "20250811", [(1, 1, "day 11"), (2, 1, "day 11"), (4, None, "day 11")]),
            ("delta", "20250812", [(2, 1, "day 12"), (3, 1, "anchor", "-D"), (4, None, "day 12")]),
        ],
        buckets=1,
    )
    few = pc.field("k") < 10
    eleventh = seen(table, where=day_is("20250811") & few)
    assert eleventh == on("20250811", (1, 1, "day 11"), (2, 1, "day 11"), (3, 1, "anchor"), (4, None, "day 11"))
    twelfth = seen(table, where=day_is("20250812") & few)
    assert twelfth == on("20250812", (1, 1, "day 11"), (2, 1, "day 12"), (4, None, "day 12"))


def test_ties_with_a_descending_order(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20250810", [(1, 1, "anchor"), (2, 1, "anchor")]),
            ("delta", "20250811", [(1, 2, "delta"), (2, 1, "delta")]),
        ],
        sequence__field__sort_order="descending",
    )
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 1, "anchor"), (2, 1, "delta"))


def test_a_value_filter_never_brings_an_older_version_back(tmp_path: Path) -> None:
    """apache/paimon 9979: connector 2.0.0 returns the stale anchor row."""
    table = chain_table(tmp_path, [("snapshot", "20250810", [(1, 1, "old")]), ("delta", "20250811", [(1, 2, "new")])])
    assert seen(table, where=day_is("20250811") & (pc.field("v") == "old")) == []
    assert seen(table, where=pc.field("v") == "old") == [(1, 1, "old", "20250810")]
    assert seen(table, where=pc.field("v") == "new", columns=["k", "dt"]) == [(1, "20250811")]


def test_gap_days(tmp_path: Path) -> None:
    table = chain_table(tmp_path, GAPPED)
    assert seen(table, where=day_is("20250812")) == []
    carried = seen(table, where=day_is("20250812"), gap_policy="carry_forward")
    assert carried == on("20250812", (1, 1, "a"), (2, 1, "a"))
    assert seen(table, where=day_is("20250813")) == on("20250813", (2, 1, "a"))
    assert len(seen(table, gap_policy="carry_forward")) == len(seen(table)) + 2
    assert seen(table, where=day_is("20250814"), gap_policy="carry_forward") == []  # behind the grid's end


def pinned_ids(table: Table) -> dict[str, int | None]:
    return {s.table.branch_name: s.snapshot.id if s.snapshot else None for s in pin(table).states}


def test_a_read_is_pinned_to_one_snapshot_of_each_branch(days: Table, tmp_path: Path) -> None:
    assert pinned_ids(days) == {"main": 1, "snapshot": 3, "delta": 6}
    table = chain_table(tmp_path, GAPPED)
    planned = planned_chain(table, where=day_is("20250811"))
    assert pinned_ids(table) == {"main": None, "snapshot": 1, "delta": 2}
    before = seen(table, where=day_is("20250811"))
    later = table.branch("delta")
    plain = later.schema()
    set_options(later, {"chain-table.enabled": "false"})
    write(later, ["k", "s", "v"], ["dt"], "20250811", [(9, 1, "late")])
    found = pa.Table.from_batches(read_group(planned), planned.inputs.main.output_schema).to_pylist()
    assert sorted((tuple(r.values()) for r in found), key=repr) == before
    set_options(later, dict(plain.options))
    assert len(seen(table, where=day_is("20250811"))) == len(before) + 1


def test_time_travel_goes_by_mains_snapshots(days: Table, tmp_path: Path) -> None:
    assert seen(days, timestamp="2100-01-01T00:00:00+00:00") == seen(days)
    with pytest.raises(NotFoundError, match="as early as"):
        seen(days, timestamp=1)
    moment = days.branch("delta").snapshot(2).time_millis  # the snapshot branch was written later
    assert {r[-1] for r in seen(days, timestamp=moment)} <= {"20250809", "20250810", "20250811"}
    with pytest.raises(NotFoundError, match="no snapshot 7"):
        seen(days, version=7)


def test_an_anchor_is_read_once_for_all_its_targets(tmp_path: Path) -> None:
    deltas: Writes = [("delta", f"202508{d}", [(d, 1, "a")]) for d in range(11, 21)]
    table = chain_table(tmp_path, [("snapshot", "20250810", [(1, 1, "a")]), *deltas], buckets=1)
    planned = planned_chain(table, batch_rows=2)
    (split,) = planned.chains
    assert len(split.part_of) == 11
    assert [t.parts for t in split.targets] == list(range(2, 12))
    reads = partition_reads(gather_chain(table), ReadRequest())
    assert [r.source for r in reads] == [Source.SNAPSHOT] + [Source.CHAIN] * 10
    counts = (
        pa.Table.from_batches(read_group(planned), planned.inputs.main.output_schema)
        .group_by("dt")
        .aggregate([([], "count_all")])
    )
    assert sorted(counts.column("count_all").to_pylist()) == list(range(1, 12))


def test_branches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    table = chain_table(tmp_path, GAPPED)
    delta = table.branch("delta")
    set_options(delta, {"bucket": "3"})
    with pytest.raises(InvalidInputError, match=r"d\.t can't be used .* option bucket is '3' in branch 'delta'"):
        seen(table)
    delete_tree(table.store, "branch/branch-delta")
    with pytest.raises(NotFoundError, match="branch 'delta' does not exist"):
        seen(table)


def test_a_chain_whose_bucket_number_changed_is_refused(tmp_path: Path) -> None:
    table = chain_table(tmp_path, GAPPED)
    for one in (table, table.branch("snapshot"), table.branch("delta")):
        set_options(one, {"bucket": "3", "chain-table.enabled": "false"})
    write(table.branch("delta"), ["k", "s", "v"], ["dt"], "20250814", [(3, 1, "a")])
    for one in (table, table.branch("snapshot"), table.branch("delta")):
        set_options(one, {"chain-table.enabled": "true"})
    assert len(seen(table, where=day_is("20250811"))) == 2
    with pytest.raises(InvalidInputError, match=r"different numbers of buckets .*3 in dt=20250814 of branch delta"):
        seen(table, where=day_is("20250814"))


def test_rows_that_deletion_vectors_mark_go_on_hiding_others(tmp_path: Path) -> None:
    """Positions 2 and 4 are marked: deletes with those rows' sequence, which hide older rows of other files."""
    table = chain_table(tmp_path, [], buckets=1, **{"chain-table__enabled": "false"})
    snapshot, delta = table.branch("snapshot"), table.branch("delta")
    full = versions(range(1, 6), 2, "a")
    write(snapshot, ["k", "s", "v"], ["dt"], "20250810", full, mode="dynamic_overwrite")
    write(delta, ["k", "s", "v"], ["dt"], "20250811", [(3, 1, "late"), (5, 3, "new"), (6, 1, "d")], mode="overwrite")
    (held,) = plan_scan(snapshot).splits
    name, size = "index-1", len(JAVA_SAMPLE)
    snapshot.store.create(f"index/{name}", JAVA_SAMPLE)
    marks = (DeletionVectorRange(held.files[0].file_name, 1, size - 9, 2),)
    entry = IndexEntry(0, held.partition, 0, "DELETION_VECTORS", name, size, 2, marks)
    schema = snapshot.schema()
    commit(snapshot, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=[], index_entries=[entry], schema=schema))
    for branch in (table, snapshot, delta):
        set_options(branch, {"chain-table.enabled": "true", "deletion-vectors.enabled": "true"})
    assert seen(table, where=day_is("20250810")) == on("20250810", *(full[i] for i in (0, 1, 3)))
    rows = (full[0], full[1], full[3], (5, 3, "new"), (6, 1, "d"))
    assert seen(table, where=day_is("20250811")) == on("20250811", *rows)


# -- against a model of rows -------------------------------------------------------------------------------------------


def model(writes: Writes, partial: bool) -> list[Row]:
    """All rows of main by the rules alone: every partition of any branch, by main > snapshot > chain."""
    held: dict[str, dict[str, list[tuple[int, Row]]]] = {"main": {}, "snapshot": {}, "delta": {}}
    for number, (branch, day, rows) in enumerate(writes):
        held[branch].setdefault(day, []).extend((number, row) for row in rows)
    out = []
    for day in {d for days in held.values() for d in days}:
        if day in held["main"] or day in held["snapshot"]:
            parts = [held["main"].get(day) or held["snapshot"][day]]
        else:
            anchor = max((d for d in held["snapshot"] if d < day), default="")
            parts = [held["snapshot"][anchor]] if anchor else []
            parts += [rows for d, rows in sorted(held["delta"].items()) if anchor < d <= day]
        merged: dict[int, list[tuple[Any, ...]]] = {}
        for place, rows in enumerate(parts):
            for number, row in rows:
                order = (row[1] is not None, row[1] or 0, place, number)
                merged.setdefault(row[0], []).append((order, row))
        for found in merged.values():
            ordered = [row for _, row in sorted(found, key=lambda pair: pair[0])]
            out += [(*row, day) for row in (_folded(ordered) if partial else _last(ordered))]
    return sorted(out, key=repr)


def _last(rows: Sequence[Row]) -> list[Row]:
    return [] if rows[-1][-1] in ("-D", "-U") else [rows[-1][:-1]]


def _folded(rows: Sequence[Row]) -> list[Row]:
    state: list[Any] | None = None
    for row in rows:
        if row[-1] == "-D":
            state = None
        elif row[-1] != "-U":
            before = state or [None] * (len(row) - 1)
            state = [new if new is not None else old for new, old in zip(row[:-1], before, strict=True)]
    return [tuple(state)] if state else []


@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(3, 16)))
def test_reads_equal_the_model(tmp_path: Path, seed: int) -> None:
    chance = chance_of(seed)
    partial = seed % 2 == 1
    writes: list[tuple[str, str, list[Row]]] = []
    for _ in range(chance.randint(3, 14)):
        branch = chance.choice(["main", "snapshot", "snapshot", *["delta"] * 6])
        rows: list[Row] = [
            (
                *(k, chance.choice([None, *range(4)])),
                *(chance.choice([None, f"v{chance.randint(0, 99)}"]) for _ in range(2)),
                chance.choice(["+I", "+I", "+I", "+U", "-D", "-U"]),
            )
            for k in chance.sample(range(12), chance.randint(1, 8))
        ]
        writes.append((branch, f"202508{chance.randint(10, 18)}", rows))
    engine = {"merge_engine": "partial-update", "partial-update__remove-record-on-delete": "true"} if partial else {}
    table = chain_table(tmp_path, writes, values=TWO_VALUES, buckets=chance.randint(1, 3), **engine)
    expected = model(writes, partial)
    assert seen(table) == expected
    for batch_rows in (1, 3):
        planned = planned_chain(table, batch_rows=batch_rows)
        rows_found = pa.Table.from_batches(read_group(planned), planned.inputs.main.output_schema).to_pylist()
        assert sorted((tuple(r.values()) for r in rows_found), key=repr) == expected
    cut = [part for split in planned.chains for part in divide_split(split, planned.inputs.main.schema, 1)]
    batches = read_group(replace(planned, chains=tuple(pickle.loads(pickle.dumps(cut)))))
    assert pa.Table.from_batches(batches, planned.inputs.main.output_schema).num_rows == len(expected)
    some = (pc.field("v1") > "v5") & (pc.field("k") < 6)
    assert seen(table, where=some) == [r for r in expected if r[2] is not None and r[2] > "v5" and r[0] < 6]


def test_a_large_bucket_is_cut_by_key(tmp_path: Path) -> None:
    """The anchor's files give the cuts; files that reach over one are read by both sides, each row by one."""
    writes: list[tuple[str, str, list[Row]]] = [
        ("snapshot", "20250810", versions(range(n, n + 10), 1, "a")) for n in range(0, 60, 10)
    ]
    writes.append(("delta", "20250811", [(k, 2, "b") for k in range(-3, 70, 3)]))
    writes.append(("delta", "20250812", [(k, 3, "", "-D") for k in range(0, 60, 7)]))
    table = chain_table(tmp_path, writes, buckets=1)
    planned = planned_chain(table)
    whole = sum(f.file_size for s in planned.chains for f in s.files)
    cut = [part for split in planned.chains for part in divide_split(split, planned.inputs.main.schema, whole // 4)]
    assert len(cut) >= 3 and all(c.low is not None or c.high is not None for c in cut)
    batches = read_group(replace(planned, chains=tuple(cut)))
    rows = pa.Table.from_batches(batches, planned.inputs.main.output_schema).to_pylist()
    assert sorted((tuple(r.values()) for r in rows), key=repr) == seen(table)
