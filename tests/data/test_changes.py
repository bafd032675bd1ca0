"""What a stream reads: where it starts, the rows and kinds of each snapshot, and errors instead of lost rows."""

from __future__ import annotations

import os
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.stream_batch import ROWS_PROPERTY, begin_batch, check_same_batch
from airflow_paimon.core.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store import Store
from airflow_paimon.core.streaming.consumers import claim_consumer, keep_from, refresh_consumer
from airflow_paimon.core.streaming.stream import Stream
from airflow_paimon.core.streaming.stream_plan import Offset, Position, parse_offset, parse_start, stream_rules
from airflow_paimon.core.table.consumers import find_consumer
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.arrow_write import commit_write
from airflow_paimon.data.changes import plan_changes, rows_of_changes
from airflow_paimon.data.compact import compact
from airflow_paimon.data.write import WriteMode, plan_write, write_rows
from tests.core.tables import run
from tests.randomness import chance, lives
from tests.stores import CountingStore

Row = tuple[Any, ...]


def table_at(folder: Path, *, keyed: bool = False, **options: str) -> Table:
    columns = [("dt", "STRING NOT NULL"), ("k", "BIGINT NOT NULL"), ("v", "STRING")]
    keys = ("dt", "k") if keyed else ()
    more = {"bucket": "2"} if keyed else {}
    return create_table(
        str(folder), "d.t", columns, partition_keys=("dt",), primary_keys=keys, options={**more, **options}
    )


def put(table: Table, *given: Row, kinds: Sequence[str] | None = None, **options: Any) -> None:
    data: dict[str, Any] = dict(zip(("dt", "k", "v"), map(list, zip(*given, strict=True)), strict=True))
    if kinds is not None:
        data["_row_kind"] = kinds
    write_arrow(table, pa.table(data), **options)


class Follower:
    """A stream that is restarted before every batch, with nothing but its last offset."""

    def __init__(self, table: Table, row_kind: bool = False, max_files: int | None = None, **options: str) -> None:
        self.table, self.row_kind, self.max_files = table, row_kind, max_files
        self.start = parse_start({k: v for k, v in options.items() if k.startswith("scan.")})
        self.asked = {k: v for k, v in options.items() if not k.startswith("scan.")}
        self.offset: Mapping[str, Any] = Offset(branch=table.branch_name).to_json()
        self.batches = 0

    @property
    def stream(self) -> Stream:
        schema = self.table.schema()
        rules = stream_rules(schema, self.asked, self.row_kind, self.table.label, self.table.branch_name)
        return Stream(table=self.table, schema=schema, rules=rules, max_files=self.max_files)

    def batch(self) -> list[Row] | None:
        read = parse_offset(self.offset, self.table.branch_name)
        origin = self.stream.origin(self.start) if read.at is None else read.origin
        end = self.stream.next_end(read.at or origin)
        if end is None:
            return None
        self.offset = Offset(branch=read.branch, at=end, origin=origin).to_json()
        self.batches += 1
        return self.rows(read.at or origin, end)

    def rows(self, start: Position, end: Position) -> list[Row]:
        names = self.table.schema().field_names
        groups = pickle.loads(pickle.dumps(plan_changes(self.stream, start, end, names)))
        found = [b for g in groups for r in g for b in rows_of_changes(r, names, self.row_kind)]
        return [tuple(row.values()) for batch in found for row in batch.to_pylist()]

    def all(self) -> list[Row]:
        """Read until nothing is new."""
        out: list[Row] = []
        while (found := self.batch()) is not None:
            out += found
        return out


def contents(table: Table, version: int | None = None) -> list[Row]:
    return sorted(tuple(r.values()) for r in read_arrow(table, version=version).to_pylist())


@pytest.mark.parametrize("engine", ["partial-update", "aggregation", "first-row"])
def test_other_merge_engines_need_a_changelog_producer(tmp_path: Path, engine: str) -> None:
    """As in Paimon: new files alone don't say what becomes of a row."""
    table = table_at(tmp_path, keyed=True, **{"merge-engine": engine})
    with pytest.raises(UnsupportedFeatureError, match=r"changelog-producer=lookup.*\(input returns records as written"):
        _ = Follower(table, row_kind=True).stream
    assert Follower(table, row_kind=True, **{"changelog-producer": "input"}).stream.rules.has_changelog


def test_where_a_stream_starts(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    put(table, ("a", 1, "x"))
    put(table, ("a", 2, "x"))
    run(table, "create_tag", tag="second")
    put(table, ("a", 3, "x"))
    times = {s.id: s.time_millis for s in table.snapshots()}

    def keys(**options: str) -> list[int]:
        return [r[1] for r in Follower(table, **options).all()]

    assert sorted(keys()) == [1, 2, 3]
    assert keys(**{"scan.mode": "latest"}) == []
    assert keys(**{"scan.snapshot-id": "2"}) == [2, 3]
    assert keys(**{"scan.snapshot-id": "4"}) == [], "the next one may be waited for"
    assert keys(**{"scan.mode": "after-snapshot", "scan.snapshot-id": "2"}) == [3]
    assert sorted(keys(**{"scan.tag-name": "second"})) == [1, 2, 3]
    assert keys(**{"scan.mode": "from-snapshot", "scan.tag-name": "second"}) == [2, 3]
    assert keys(**{"scan.mode": "after-snapshot", "scan.tag-name": "second"}) == [3]
    assert keys(**{"scan.timestamp-millis": str(times[1])}) == [1, 2, 3]
    assert keys(**{"scan.timestamp": str(times[3] + 1)}) == []
    for options, message in (
        ({"scan.snapshot-id": "9"}, "no snapshot 9 to start from; its newest is 3"),
        ({"scan.mode": "after-snapshot"}, "needs scan.snapshot-id or scan.tag-name"),
        ({"scan.mode": "latest", "scan.tag-name": "second"}, "takes no scan.tag-name"),
        ({"scan.mode": "odd"}, "is one of latest-full"),
        ({"scan.tag-name": "second", "scan.snapshot-id": "1"}, "contradict each other"),
        ({"scan.tag-name": "nope"}, "no tag 'nope'"),
    ):
        with pytest.raises((InvalidInputError, NotFoundError), match=message):
            keys(**options)


def test_a_stream_from_a_time_skips_no_snapshot_where_clocks_differ(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for number, time in enumerate((10, 50, 20, 60, 70), 1):
        put(table, ("a", number, "x"))
        path = tmp_path / f"d.db/t/snapshot/snapshot-{number}"
        path.write_text(re.sub(r'"timeMillis" ?: ?\d+', f'"timeMillis" : {time}', path.read_text()))
    assert [row[1] for row in Follower(table, **{"scan.timestamp-millis": "40"}).all()] == [2, 3, 4, 5]


def test_a_stream_of_an_empty_table_waits(tmp_path: Path) -> None:
    follower = Follower(table := table_at(tmp_path))
    assert follower.batch() is None
    put(table, ("a", 1, "x"))
    assert follower.batch() == [("a", 1, "x")]
    assert follower.batch() is None


@pytest.mark.parametrize("keyed", [False, True])
def test_a_limit_changes_the_batches_and_not_the_rows(tmp_path: Path, keyed: bool) -> None:
    table = table_at(tmp_path, keyed=keyed)
    for n in range(3):
        put(table, *((dt, k, f"v{n}") for dt in "abc" for k in range(n, n + 3)))
    one, many = (Follower(table, row_kind=keyed, max_files=limit) for limit in (1, None))
    for follower in (one, many):
        follower.found = follower.all()  # type: ignore[attr-defined]
    put(table, ("a", 7, "new"), ("b", 8, "new"))
    later = one.all(), many.all()
    assert sorted(later[0]) == sorted(later[1]) != []
    assert sorted(one.found) == sorted(many.found)  # type: ignore[attr-defined]
    assert (one.batches >= 8, many.batches) == (True, 2)


def test_overwrites(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    put(table, ("a", 1, "x"), ("a", 2, "x"), ("b", 3, "x"))
    at = {"scan.mode": "latest"}
    fails, skips = Follower(table, **at), Follower(table, **at, **{"streaming-read-overwrite": "false"})
    adds = Follower(table, **at, **{"streaming-read-append-overwrite": "true"})
    exact = Follower(table, row_kind=True, **at, **{"streaming-read-overwrite": "true"})
    for follower in (fails, skips, adds, exact):
        origin = follower.stream.origin(follower.start)
        follower.offset = Offset(branch="main", at=origin, origin=origin).to_json()
    put(table, ("a", 1, "x"), ("a", 5, "x"), mode="overwrite", partition={"dt": "a"})
    put(table, ("c", 6, "x"))
    with pytest.raises(UnsafeOperationError, match=r"would miss\. Set streaming-read-overwrite=true"):
        fails.all()
    assert skips.all() == [("c", 6, "x")]
    assert sorted(exact.all()) == [("a", 2, "x", "-D"), ("a", 5, "x", "+I"), ("c", 6, "x", "+I")]
    assert sorted(adds.all()) == [("a", 1, "x"), ("a", 5, "x"), ("c", 6, "x")]


def applied(state: dict[Row, Row], changes: Sequence[Row]) -> dict[Row, Row]:
    for *row, kind in changes:
        if kind in ("+I", "+U"):
            state[tuple(row[:2])] = tuple(row)
        else:
            state.pop(tuple(row[:2]), None)
    return state


@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(1, 4)))
def test_the_changes_of_a_keyed_table_add_up_to_the_table(tmp_path: Path, seed: int) -> None:
    """Random upserts, deletes, overwrites, compactions and publishes; two followers with other limits."""
    draw = chance(seed)
    table = table_at(tmp_path, keyed=True)
    options = {"streaming-read-overwrite": "true"}
    followers = [Follower(table, row_kind=True, max_files=n, **options) for n in (None, 1)]
    states: list[dict[Row, Row]] = [{}, {}]
    for number in range(8):
        change(draw, table, number, keyed=True)
        for follower, state in zip(followers, states, strict=True):
            if draw.random() < 0.6:
                applied(state, follower.all())
                assert sorted(state.values()) == contents(table), (seed, number)
    for follower, state in zip(followers, states, strict=True):
        assert sorted(applied(state, follower.all()).values()) == contents(table)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(1, 4)))
def test_the_changes_of_an_append_table_add_up_to_the_table(tmp_path: Path, seed: int) -> None:
    draw = chance(seed)
    table = table_at(tmp_path)
    follower = Follower(table, row_kind=True, **{"streaming-read-overwrite": "true"})
    state: Counter[Row] = Counter()
    for number in range(8):
        change(draw, table, number, keyed=False)
        for *row, kind in follower.all():
            state[tuple(row)] += 1 if kind == "+I" else -1
        assert sorted(state.elements()) == contents(table), (seed, number)
        assert min(state.values(), default=0) >= 0


def change(draw: random.Random, table: Table, number: int, *, keyed: bool) -> None:
    some = [(draw.choice("ab"), draw.randrange(6), f"v{draw.randrange(3)}") for _ in range(draw.randint(1, 6))]
    match draw.randrange(6):
        case 0:
            put(table, *some, mode="dynamic_overwrite")
        case 1:
            put(table, *((("a"), k, v) for _, k, v in some), mode="overwrite", partition={"dt": "a"})
        case 2 if table.latest_snapshot_id() and not keyed:
            asked = {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": table.name, "min_files": 2}
            request = build_request("compact", asked)
            compact(open_context(request), request)
        case 3 if table.latest_snapshot_id():
            name = f"b{number}"
            run(table, "create_tag", tag=name)
            run(table, "create_branch", branch=name, tag=name)
            put(table.branch(name), *some, mode="dynamic_overwrite")
            run(table, "merge_branch", branch=name, writers_stopped=True)
        case _:
            unique = list({r[:2]: r for r in some}.values())
            kinds = [draw.choice(["+I", "+I", "-D"]) for _ in unique] if keyed else None
            put(table, *unique, kinds=kinds)


def test_a_replaced_history_is_an_error_and_not_lost_rows(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for k in range(3):
        put(table, ("a", k, "x"))
    follower = Follower(table)
    follower.all()
    for name in ("snapshot-3", "LATEST"):  # as a rollback of another engine leaves it
        (tmp_path / "d.db/t/snapshot" / name).unlink()
    with pytest.raises(UnsafeOperationError, match=r"rolled back or fast-forwarded .* at or below snapshot 3"):
        follower.batch()
    put(table, ("a", 7, "x"))
    with pytest.raises(UnsafeOperationError, match="snapshot 3"):
        follower.batch()
    put(table, ("a", 8, "x"))
    with pytest.raises(UnsafeOperationError, match="snapshot 3"):
        follower.batch()


def test_a_key_that_is_written_again_after_its_delete_was_compacted_away(tmp_path: Path) -> None:
    """A full compaction drops the delete, and the bucket counts from lower sequence numbers: both are in one batch."""
    table = table_at(tmp_path, keyed=True, bucket="1")
    put(table, ("a", 1, "old"), ("a", 5, "old"))
    put(table, ("a", 5, "old"), kinds=["-D"])
    request: Any = build_request("compact", {"warehouse": str(tmp_path), "table": "d.t"})
    compact(open_context(request), request)
    put(table, ("a", 5, "new"))
    found = Follower(table, row_kind=True, **{"scan.mode": "from-snapshot", "scan.snapshot-id": "1"}).all()
    assert [r for r in found if r[1] == 5][-1] == ("a", 5, "new", "+I")
    assert sorted(applied({}, found).values()) == contents(table)


def test_an_expired_snapshot_is_an_error(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    follower = Follower(table)
    put(table, ("a", 0, "x"))
    follower.all()
    for k in range(1, 4):
        put(table, ("a", k, "x"))
    for number in (1, 2):
        (tmp_path / f"d.db/t/snapshot/snapshot-{number}").unlink()
    with pytest.raises(NotFoundError, match="snapshot 2, which the stream reads next, has expired"):
        follower.batch()
    with pytest.raises(NotFoundError, match="snapshot 1"):
        Follower(table, **{"scan.snapshot-id": "1"}).batch()
    with pytest.raises(NotFoundError, match="have expired; the earliest that is left is 3"):
        Follower(table, **{"scan.timestamp-millis": "1"}).batch()


def test_what_is_refused(tmp_path: Path) -> None:
    keyed = table_at(tmp_path / "1", keyed=True)
    with pytest.raises(InvalidInputError, match="set the option row-kind=true"):
        Follower(keyed).batch()
    lookup = table_at(tmp_path / "2", keyed=True, **{"changelog-producer": "lookup"})
    with pytest.raises(UnsupportedFeatureError, match="changelog-producer=lookup"):
        Follower(lookup, row_kind=True, **{"streaming-read-overwrite": "true"}).batch()
    with pytest.raises(UnsupportedFeatureError, match=r"query-auth\.enabled"):
        Follower(table_at(tmp_path / "3", **{"query-auth.enabled": "true"})).batch()
    offset = Offset(branch="b", at=Position(snapshot=1)).to_json()
    with pytest.raises(InvalidInputError, match="stream of branch 'b', not of 'main'"):
        parse_offset(offset, "main")
    with pytest.raises(FormatError, match="not of a stream of this source"):
        parse_offset({"snapshotId": 3}, "main")


def test_offsets_keep_their_text() -> None:
    """Checkpoints of earlier releases must go on."""
    at = Position(snapshot=7, identity="manifest-list-1-0", units=2)
    offset = Offset(branch="b", at=at, origin=Position(snapshot=4, identity="m", full=True, units=0))
    assert list(offset.to_json().items()) == [
        ("branch", "b"), ("snapshot", 7), ("identity", "manifest-list-1-0"), ("full", False), ("units", 2),
        ("origin_snapshot", 4), ("origin_identity", "m"), ("origin_full", True),
    ]  # fmt: skip
    assert parse_offset(offset.to_json(), "b") == offset
    assert Offset(branch="b").to_json() == {"branch": "b", "snapshot": -1}


def test_consumers(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    claim_consumer(table, "job", 0, ignore_progress=False)
    claim_consumer(table, "job", 0, ignore_progress=False)
    assert (tmp_path / "d.db/t/consumer/consumer-job").is_file()
    keep_from(table, "job", 5)
    assert (find_consumer(table, "job"), find_consumer(table.branch("b"), "job")) == (5, None)
    with pytest.raises(UnsafeOperationError, match="consumer 'job' already, next at snapshot 5"):
        claim_consumer(table, "job", 1, ignore_progress=False)
    claim_consumer(table, "job", 1, ignore_progress=True)
    with pytest.raises(InvalidInputError, match=r"consumer-id is '../x'"):
        keep_from(table, "../x", 1)


def test_a_batch_finds_its_commit_again(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    put(table, ("a", 0, "x"))
    identity, committed = begin_batch(table, "q-1", 3)
    assert (identity.user, identity.identifier, identity.since.id, committed) == ("q-1", 3, 1, None)
    put(table, ("a", 1, "x"))
    again, committed = begin_batch(table, "q-1", 3)
    assert (again.since.id, committed) == (1, None), "another writer's commit is not the batch's"
    assert begin_batch(table, "q-1", 4)[0].since.id == 2
    with pytest.raises(UnsafeOperationError, match="repeats batch 3, but has begun batch 4"):
        begin_batch(table, "q-1", 3)
    with pytest.raises(UnsafeOperationError, match="has written to branch 'main' before"):
        begin_batch(table.branch("b"), "q-1", 4)
    put(table, ("a", 2, "x"))
    put(table, ("a", 3, "x"))
    (tmp_path / "d.db/t/snapshot/snapshot-3").unlink()
    with pytest.raises(OutcomeUnknownError, match="cannot determine whether batch 4 of stream q-1 was committed"):
        begin_batch(table, "q-1", 4)
    (tmp_path / "d.db/t/snapshot/snapshot-4").unlink()
    (tmp_path / "d.db/t/snapshot/snapshot-2").unlink()
    with pytest.raises(UnsafeOperationError, match="rolled back or fast-forwarded"):
        begin_batch(table, "q-1", 4)


def test_a_repeated_batch_has_the_rows_of_its_commit(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    put(table, ("a", 0, "x"))
    old = table.latest_snapshot()
    assert old is not None
    check_same_batch(table, "q-1", 3, old, 1, "digest")  # its commit has no digest: the number decides
    with pytest.raises(UnsafeOperationError, match="with 2 rows, but its commit, snapshot 1, has 1"):
        check_same_batch(table, "q-1", 3, old, 2, "digest")
    new = replace(old, properties={ROWS_PROPERTY: "digest"})
    check_same_batch(table, "q-1", 3, new, 1, "digest")
    check_same_batch(table, "q-1", 3, new, 1)  # nobody asks for more than the number
    with pytest.raises(UnsafeOperationError, match="batch 3 with other rows than its commit, snapshot 1"):
        check_same_batch(table, "q-1", 3, new, 1, "another")


def test_a_consumer_is_written_again_as_it_is(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    refresh_consumer(table, "job")
    assert find_consumer(table, "job") is None, "nothing is claimed"
    keep_from(table, "job", 5)
    file = tmp_path / "d.db/t/consumer/consumer-job"
    content = file.read_bytes()
    os.utime(file, (1000, 1000))
    refresh_consumer(table, "job")
    assert (file.read_bytes(), file.stat().st_mtime > 1000) == (content, True)


@pytest.mark.parametrize("ignored", ["false", "true"])
def test_a_changelog_is_returned_as_it_is(tmp_path: Path, ignored: str) -> None:
    """With ``ignore-delete`` deletes have no effect, so the changelog has none; its -U belong to updates."""
    options = {"changelog-producer": "lookup", "write-only": "true", "ignore-delete": ignored}
    table = table_at(tmp_path, keyed=True, **options)
    follower = Follower(table, row_kind=True)

    def changes(*given: Row, kinds: Sequence[str] | None = None) -> list[Row]:
        put(table, *given, kinds=kinds)
        request = build_request("compact", {"warehouse": str(tmp_path), "table": table.name})
        compact(open_context(request), request)
        return follower.all()

    assert changes(("a", 1, "x")) == [("a", 1, "x", "+I")]
    assert changes(("a", 1, "y")) == [("a", 1, "x", "-U"), ("a", 1, "y", "+U")]
    assert changes(("a", 1, "y"), kinds=["-D"]) == ([] if ignored == "true" else [("a", 1, "y", "-D")])


def test_deletes_without_effect_are_no_changes(tmp_path: Path) -> None:
    """Without a changelog the new data files are read, which may hold deletes from before ``ignore-delete``."""
    table = table_at(tmp_path, keyed=True)
    put(table, ("a", 1, "x"))
    put(table, ("a", 1, "x"), ("a", 2, "y"), kinds=["-D", "+I"])
    second = {"scan.snapshot-id": "2"}
    assert sorted(Follower(table, row_kind=True, **second).all()) == [("a", 1, "x", "-D"), ("a", 2, "y", "+I")]
    run(table, "alter_table", change=["set ignore-delete=true"])
    assert Follower(table, row_kind=True, **second).all() == [("a", 2, "y", "+I")]


@dataclass
class Stalling:
    """A store whose next replacement waits until something else has happened; the methods that a batch uses."""

    inner: Store
    meanwhile: list[Callable[[], None]]

    def replace(self, path: str, data: bytes) -> None:
        while self.meanwhile:
            self.meanwhile.pop()()
        self.inner.replace(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("expired", [False, True])
def test_a_stalled_process_does_not_hide_a_later_batch(tmp_path: Path, expired: bool) -> None:
    """It stops before it records batch 1, while the restarted query commits 1 and 2; Spark has not logged 2."""
    table = table_at(tmp_path)

    def batch(view: Table, number: int) -> bool:
        """Commit a batch as the sink does; whether it was in already."""
        identity, committed = begin_batch(view, "q", number)
        rows = pa.table({"dt": ["a"], "k": [number], "v": ["x"]})
        write = plan_write(view)
        files = list(write_rows(write, rows.to_batches()))
        options = CommitOptions(identity=identity)
        return committed is not None or commit_write(view, write, files, WriteMode(), options).replayed

    assert not batch(table, 0)
    later = [lambda: assert_new(batch(table, 2)), lambda: assert_new(batch(table, 1))]
    stalled = replace(table, store=cast(Store, Stalling(table.store, later)))
    assert batch(stalled, 1)
    if expired:
        (tmp_path / "d.db/t/snapshot/snapshot-1").unlink()
        (tmp_path / "d.db/t/snapshot/snapshot-2").unlink()
        put(table, ("a", 9, "x"))
        lists = tmp_path / "d.db/t/manifest" / table.snapshot(3).base_manifest_list
        content = lists.read_bytes()
        lists.unlink()
        with pytest.raises(OutcomeUnknownError, match="it expires right now"):
            batch(table, 2)
        lists.write_bytes(content)
    assert batch(table, 2), "the record is that of batch 1 again"
    assert not batch(table, 3)
    assert sorted(r["k"] for r in read_arrow(table).to_pylist()) == [0, 1, 2, 3, *([9] if expired else [])]


def assert_new(found: bool) -> None:
    assert not found


@pytest.mark.parametrize("row_kind", [True, False])
def test_a_batch_that_ends_inside_an_overwrite_keeps_what_the_next_one_needs(tmp_path: Path, row_kind: bool) -> None:
    """The difference to the snapshot before, which an expiry after each batch would otherwise take away."""
    table = table_at(tmp_path)
    put(table, *(("a", k, "old") for k in range(3)))
    put(table, *((dt, 9, "old") for dt in "bcd"))
    asked = {"scan.mode": "from-snapshot", "scan.snapshot-id": "3", "streaming-read-overwrite": "true"}
    put(table, *((dt, 1, "new") for dt in "abcd"), mode="overwrite")
    put(table, ("e", 1, "later"))
    whole = Follower(table, row_kind=row_kind, **asked).all()
    follower, seen = Follower(table, row_kind=row_kind, max_files=1, **asked), list[Row]()
    claim_consumer(table, "c", 2, ignore_progress=False)
    while (batch := follower.batch()) is not None:
        seen += batch
        at = parse_offset(follower.offset, "main").at
        assert at is not None
        keep_from(table, "c", at.needs)
        run(table, "expire_snapshots", older_than="0 s", retain_min=1, grace="0 s", writers_stopped=True)
    assert sorted(seen) == sorted(whole)
    assert table.snapshot_ids() == [4]


def test_a_table_that_is_read_in_many_batches_is_planned_once(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for number in range(12):
        put(table, (f"p{number}", number, "v"))
    counting = CountingStore(table.store)
    view = Table(counting, table.name)
    stream = Stream(
        table=view, schema=view.schema(), rules=stream_rules(view.schema(), {}, False, "t", "main"), max_files=1
    )
    at = stream.origin(parse_start({}))
    batches = 0
    while (end := stream.next_end(at)) is not None:
        batches += len(stream.read(at, end))
        at = end
    assert batches == 12
    lists = [uri for method, uri in counting.tally.log if "manifest-list" in uri]
    assert len(lists) <= 2, "the table was planned more than once"
