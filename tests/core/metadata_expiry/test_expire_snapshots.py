"""expire_snapshots deletes what only expired snapshots name, and nothing else, whatever happens meanwhile."""

from __future__ import annotations

import contextvars
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append, commit_buckets
from airflow_paimon.core.commit.stream_batch import begin_batch
from airflow_paimon.core.erasure.stored_files import read_stored_files
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
)
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.metadata_expiry import expiry_run
from airflow_paimon.core.metadata_expiry.references import read_references
from airflow_paimon.core.metadata_expiry.roots import RootReader
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.store import Store
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.table.consumers import find_consumer
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import all_manifests, read_delta_lists
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, copied, cut_off, forget_results, make_table, message, overwrite, rewrite, run
from tests.soundness import assert_sound, files_on_disk, states
from tests.stateful import paimon_expiry
from tests.stores import CountingStore, FaultStore, _Wrapper

NOW: Mapping[str, Any] = {"older_than": "0 s", "retain_min": 1, "grace": "0 s", "writers_stopped": True}
"""Everything but the newest snapshot, at once."""


@pytest.fixture
def table() -> Table:
    return make_table(f"memory://{uuid.uuid4()}/wh")


def swap(view: Table, *adds: str, drops: tuple[str, ...] = ()) -> dict[str, str]:
    """Commit one snapshot that adds files, in partitions of their own or in place of others; their names by letter."""
    gone = {e.file.file_name: e for e in live_entries(view, view.latest_snapshot()).values()}
    messages = [message(view, letter) for letter in adds]
    for at, name in enumerate(drops):
        entry = gone[name]
        messages[at] = replace(messages[at], partition=entry.partition, bucket=entry.bucket, replaced=(entry.file,))
        (dt,) = decode_row(entry.partition, view.schema().partition_types)
        file = messages[at].new_files[0].file_name
        view.store.create(f"{bucket_folder(view.schema(), (dt,), entry.bucket)}/{file}", b"placeholder")
        view.store.delete(f"{bucket_folder(view.schema(), (adds[at],), 0)}/{file}")
    commit_buckets(view, messages)
    return {letter: m.new_files[0].file_name for letter, m in zip(adds, messages, strict=True)}


def on_disk(table: Table, names: Mapping[str, str]) -> set[str]:
    """Return the letters of the data files that exist."""
    there = {path.rpartition("/")[2] for path in files_on_disk(table)}
    return {letter for letter, name in names.items() if name in there}


def expire(table: Table, **values: Any) -> OperationResult:
    return run(table, "expire_snapshots", **{**NOW, "now": str(now()), **values})


def now() -> int:
    """Later than every commit so far."""
    return int(time.time() * 1000) + 1000


@pytest.fixture
def worked(table: Table) -> dict[str, str]:
    """Main: s1 +a +b; s2 -a +c; s3 -b +d; s4 -c +e. Tags T1 = s1, T3 = s3; branch x from T1 as Paimon makes it,
    without a tag of its own: x.s2 -b +f.
    """
    names = swap(table, "a", "b")
    run(table, "create_tag", tag="T1")
    names |= swap(table, "c", drops=(names["a"],))
    names |= swap(table, "d", drops=(names["b"],))
    run(table, "create_tag", tag="T3")
    names |= swap(table, "e", drops=(names["c"],))
    for name in ("schema/schema-0", "tag/tag-T1", "snapshot/snapshot-1"):
        table.store.create(f"branch/branch-x/{name}", table.store.read(name))
    return names | swap(table.branch("x"), "f", drops=(names["b"],))


def test_every_tag_and_branch_keeps_its_files(table: Table, worked: dict[str, str]) -> None:
    """Where Paimon asks the nearest tag only, T1's deletion after this would break branch x."""
    before = states(table)
    result = expire(table)
    assert result.details["expired"] == {"main": {"snapshots": 3, "from": 1, "to": 3}}
    assert result.details["deleted"]["data_files"] == 0
    assert on_disk(table, worked) == set("abcdef")
    whole, files = result.details["kept"][:2], result.details["kept"][2:]
    assert [(k["all_of"], k["by"]) for k in whole] == [("snapshot 1", ["tag 'T1'"]), ("snapshot 3", ["tag 'T3'"])]
    assert [(k["files"], k["by"]) for k in files] == [
        (1, ["snapshot 1 of branch 'x'", "tag 'T1' of branch 'x'", "tag 'T1'"])
    ]
    after = states(table)
    assert after == {path: before[path] for path in after}
    assert_sound(table, leaks=True)
    assert not expire(table).changed


def test_a_tag_that_a_branch_relies_on_stays_and_then_frees_its_files(table: Table, worked: dict[str, str]) -> None:
    expire(table)
    asked = {
        "older_than": "0 s",
        "include_unlimited": True,
        "grace": "0 s",
        "writers_stopped": True,
        "now": "2099-01-01T00:00:00+00:00",
    }
    kept = run(table, "expire_tags", prefix="T1", **asked)
    assert not kept.changed
    assert "branch 'x' starts from snapshot 1" in kept.details["needed"]["main"]["T1"]
    run(table, "delete_branch", branch="x")
    assert on_disk(table, worked) == set("abcdef")
    gone = run(table, "expire_tags", prefix="T1", **asked)
    assert gone.details["expired"] == {"main": ["T1"]}
    assert on_disk(table, worked) == set("cdef")
    assert_sound(table, leaks=True)


def test_a_file_that_came_back_is_kept_by_its_keep_tag_alone(table: Table) -> None:
    names = swap(table, "a")
    names |= swap(table, "b", drops=(names["a"],))
    run(table, "rollback_to", snapshot=1, undo_retention="1 s")
    names |= swap(table, "c", drops=(names["a"],))
    expire(table, keep_undo=False)
    assert on_disk(table, names) == {"a", "b", "c"}, "the undo tag holds b, the keep tag a"
    asked = {"grace": "0 s", "writers_stopped": True, "now": "2099-01-01T00:00:00+00:00"}
    undo = next(name for name in table.tag_names() if "-undo-" in name)
    gone = run(table, "expire_tags", **asked, prefix="airflow-paimon-undo-")
    assert gone.details["expired"]["main"] == [undo]
    assert on_disk(table, names) == {"a", "c"}
    assert_sound(table)


def test_a_file_that_compaction_only_moves_is_no_candidate(table: Table) -> None:
    names = swap(table, "a")
    run(table, "create_tag", tag="before")
    (entry,) = live_entries(table, table.latest_snapshot()).values()
    moved = entry.file._replace(level=5)
    whole = CommitMessage(
        partition=entry.partition, bucket=0, total_buckets=2, new_files=(moved,), replaced=(entry.file,)
    )
    commit_buckets(table, [whole])
    assert expire(table).details["deleted"]["data_files"] == 0
    names |= swap(table, "b", drops=(names["a"],))
    assert expire(table).details["expired"]["main"]["snapshots"] == 1
    assert on_disk(table, names) == {"a", "b"}, "the tag reads it on the level where it was"
    table.store.delete("tag/tag-before")
    names |= swap(table, "c", drops=(names["b"],))
    expire(table)
    assert "b" not in on_disk(table, names)
    assert_sound(table, leaks=True)


def test_a_changelog_that_a_branch_begins_with_stays(table: Table) -> None:
    names = swap(table, "a")
    raw = json.loads(table.store.read("snapshot/snapshot-1"))
    raw["changelogManifestList"] = "list-of-changes"
    table.store.create("manifest/list-of-changes", table.store.read(f"manifest/{raw['deltaManifestList']}"))
    table.store.replace("snapshot/snapshot-1", json.dumps(raw).encode())
    run(table, "create_tag", tag="t", snapshot=1)
    run(table, "create_branch", branch="x", tag="t")
    names |= swap(table, "b", drops=(names["a"],))
    expire(table)
    assert table.store.exists("manifest/list-of-changes")
    assert_sound(table)


def test_nothing_is_left_where_nothing_is_tagged(table: Table) -> None:
    names: dict[str, str] = {}
    for letter, previous in zip("abcdef", ["", *"abcde"], strict=True):
        names |= swap(table, letter, drops=(names[previous],) if previous else ())
    result = expire(table)
    assert on_disk(table, names) == {"f"}
    assert table.snapshot_ids() == [6]
    assert table.store.read("snapshot/EARLIEST") == b"6"
    assert result.details["deleted"]["data_files"] == 5
    assert result.details["deleted"]["bytes"] >= 5 * 11
    assert_sound(table)


@pytest.mark.parametrize("elsewhere", ["s3://bucket/x", "file:/b/x"])
def test_files_outside_of_the_folder_stay_and_are_counted(table: Table, elsewhere: str) -> None:
    new = message(table, "a")
    file = new.new_files[0]._replace(external_path=f"{elsewhere}/{new.new_files[0].file_name}")
    commit_buckets(table, [replace(new, new_files=(file,))])
    overwrite(table, "a")
    result = expire(table)
    assert result.details["warnings"] == ["1 data files outside of the table's folder stay; delete them yourself"]
    assert result.details["deleted"]["data_files"] == 0


def let_wait(table: Table, seconds: float) -> None:
    """Let what is in the trash have been there for so long, by the storage's clock."""
    folder = Path(table.store.uri.removeprefix("file://"))
    for path in table.store.walk("_airflow_paimon/trash"):
        put = os.stat(folder / path).st_mtime - seconds
        os.utime(folder / path, (put, put))


@pytest.mark.parametrize("clock_s", [-7200, 7200])
def test_files_stay_for_the_grace_time_by_the_storages_clock(tmp_path: Path, clock_s: int) -> None:
    """The workers' clocks, and what they take for now, neither shorten nor lengthen it."""
    table = make_table(tmp_path)
    names = swap(table, "a")
    names |= swap(table, "b", drops=(names["a"],))
    asked = {"grace": "1 h", "older_than": None, "retain_max": 1}
    first = expire(table, **asked, now=str(now() + clock_s * 1000))
    assert first.details["trash"]["entries"] == 1
    assert (table.snapshot_ids(), on_disk(table, names)) == ([2], {"a", "b"})
    let_wait(table, 3_500)
    second = expire(table, **asked, now=str(now() + 10**8))
    assert not second.changed
    assert second.details["trash"]["entries"] == 1
    let_wait(table, 100)
    third = expire(table, **asked, now=str(now() - 10**8))
    assert (third.changed, third.details["deleted"]["data_files"]) == (True, 1)
    assert on_disk(table, names) == {"b"}
    assert table.store.walk("_airflow_paimon/trash") == []
    assert table.store.walk("_airflow_paimon/clock") == []
    assert_sound(table)


def test_what_is_made_from_the_trash_before_the_grace_time_keeps_its_files(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    names = swap(table, "a")
    raw = table.store.read("snapshot/snapshot-1")
    names |= swap(table, "b", drops=(names["a"],))
    expire(table, grace="1 h")
    table.store.create("tag/tag-late", raw)  # an engine that had read the snapshot before
    let_wait(table, 3_600)
    result = expire(table, grace="1 h")
    assert result.details["kept"] == [{"all_of": "trash of snapshot 1", "by": ["tag 'late'"]}]
    assert on_disk(table, names) == {"a", "b"}
    assert_sound(table)


@pytest.mark.parametrize(
    ("values", "expected", "why"),
    [
        ({"retain_min": 3}, 5, "retain_min"),
        ({"retain_min": 3, "retain_max": 4, "older_than": "9 d"}, 4, "too young"),
        ({"max_deletes": 2}, 2, "max_deletes"),
        ({"older_than": "1 d"}, 0, "too young"),
    ],
)
def test_which_snapshots_stay(table: Table, values: dict[str, Any], expected: int, why: str) -> None:
    for _ in range(8):
        append(table, "a")
    result = expire(table, dry_run=True, **values)
    assert result.details["expired"].get("main", {"snapshots": 0})["snapshots"] == expected
    assert why in result.details["retained_by"]["main"]


def test_options_are_the_defaults(table: Table) -> None:
    options = {"snapshot.num-retained.min": "2", "snapshot.num-retained.max": "5", "snapshot.time-retained": "9 d"}
    table = make_table(f"memory://{uuid.uuid4()}/wh", **options)
    for _ in range(8):
        append(table, "a")
    assert run(table, "expire_snapshots", grace="0 s", writers_stopped=True).details["expired"]["main"]["to"] == 3
    later = str(int(time.time() * 1000) + 10**9)
    assert (
        run(table, "expire_snapshots", grace="0 s", writers_stopped=True, now=later).details["expired"]["main"]["to"]
        == 6
    )
    assert_sound(table)


def test_a_consumer_a_retry_and_an_undo_keep_their_snapshots(table: Table) -> None:
    for _ in range(6):
        append(table, "a")
    table.store.create("consumer/consumer-etl", b'{"nextSnapshot": 5}')
    assert "consumer 'etl' is at snapshot 5" in expire(table, dry_run=True).details["retained_by"]["main"]
    run(table, "create_tag", tag="t", snapshot=3, operation_id="op")
    append(table, "b")
    append(table, "b")
    table.store.delete("consumer/consumer-etl")
    retry = "a retry of operation 'op' searches from snapshot 6 on"
    assert retry not in expire(table, dry_run=True).details["retained_by"]["main"], "it has ended"
    forget_results(table)
    assert retry in expire(table, dry_run=True).details["retained_by"]["main"]
    run(table, "rollback_to", snapshot=2)
    append(table, "a")
    assert "the undo by tag" in expire(table, dry_run=True, retry_window="0 s").details["retained_by"]["main"]
    done = expire(table, retry_window="0 s", keep_undo=False)
    assert done.details["expired"]["main"]["to"] == 9
    assert_sound(table)


def test_consumers_that_nobody_uses_go_if_the_table_says_so(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for _ in range(3):
        overwrite(table, "a")
    for name, position in (("old", 1), ("used", 2)):
        keep_from(table, name, position)
    days_ago = time.time() - 3 * 86_400
    os.utime(tmp_path / "d.db/t/consumer/consumer-old", (days_ago, days_ago))
    assert expire(table).details["consumers"] == {}
    assert table.snapshot_ids() == [1, 2, 3], "without the option a consumer keeps its snapshots for ever"
    run(table, "alter_table", change=["set consumer.expiration-time=4 d"])
    assert not expire(table).changed
    run(table, "alter_table", change=["set consumer.expiration-time=2 d"])
    planned = expire(table, dry_run=True)
    assert planned.changed and planned.details["consumers"] == {"main": ["old"]}
    assert find_consumer(table, "old") == 1
    done = expire(table)
    assert (done.details["consumers"], table.snapshot_ids()) == ({"main": ["old"]}, [2, 3])
    assert (find_consumer(table, "old"), find_consumer(table, "used")) == (None, 2)
    assert_sound(table)


class Meanwhile(CountingStore):
    """Do something once, right before the first manifest is read: the roots have been read by then."""

    def __init__(self, inner: Store, action: Callable[[], None]) -> None:
        super().__init__(inner)
        self.to_do = [action]

    def read(self, path: str) -> bytes:
        while path.startswith("manifest/") and self.to_do:
            self.to_do.pop()()
        return super().read(path)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.read(path) for path in paths]


@pytest.mark.parametrize(("position", "left"), [(1, [1, 2, 3]), (2, [2, 3]), (None, [3])])
def test_a_consumer_that_is_written_while_an_expiry_plans_stays(
    tmp_path: Path, position: int | None, left: list[int]
) -> None:
    """A stream was started again: its consumer stands where it stood, or has gone on. None = another run deleted it."""
    table = make_table(tmp_path)
    for _ in range(3):
        overwrite(table, "a")
    run(table, "alter_table", change=["set consumer.expiration-time=2 d"])
    keep_from(table, "etl", 1)
    path = tmp_path / "d.db/t/consumer/consumer-etl"
    days_ago = time.time() - 3 * 86_400
    os.utime(path, (days_ago, days_ago))
    store = Meanwhile(table.store, lambda: path.unlink() if position is None else keep_from(table, "etl", position))
    request = build_request("expire_snapshots", {"warehouse": "w", "table": table.name, **NOW})
    done = perform(Context(request, Table(store, table.name), now(), 0.0), request)
    assert not store.to_do
    assert (find_consumer(table, "etl"), table.snapshot_ids()) == (position, left)
    assert done.details["consumers"] == ({"main": ["etl"]} if position is None else {})
    assert_sound(table)


def test_an_operation_id_is_for_one_request_and_keeps_no_snapshot(table: Table) -> None:
    """The retry of a try that was killed does what is left to do: it looks for no commit."""
    for _ in range(3):
        overwrite(table, "a")
    asked = {"operation_id": "op", "now": str(now())}
    assert expire(table, **asked, retain_min=2).changed
    with pytest.raises(InvalidInputError, match="'op' was used for another request"):
        expire(table, **asked, retain_min=1)
    assert table.snapshot_ids() == [2, 3]
    assert expire(table, **asked, retain_min=2).details["replayed"]
    forget_results(table)
    assert not expire(table, **asked, retain_min=2).changed
    overwrite(table, "a")
    overwrite(table, "a")
    assert "retain_min" in expire(table).details["retained_by"]["main"]
    assert table.snapshot_ids() == [5]


def test_a_batch_of_a_stream_that_is_tried_again_can_tell_whether_it_landed(table: Table) -> None:
    """The query was killed in its batch 1, and is started again after an expiry."""
    append(table, "a")
    begin_batch(table, "query", 0)
    first = append(table, "a").snapshot
    begin_batch(table, "query", 1)
    for _ in range(3):
        append(table, "a")
    assert first is not None
    pinned = f"a retry of operation 'stream query' searches from snapshot {first.id} on"
    done = expire(table)
    assert pinned in done.details["retained_by"]["main"]
    assert begin_batch(table, "query", 1)[1] is None
    expire(table, retry_window="0 s")
    with pytest.raises(OutcomeUnknownError, match="batch 1 of stream query"):
        begin_batch(table, "query", 1)


def test_a_branch_keeps_the_snapshot_that_it_starts_from(table: Table) -> None:
    append(table, "a")
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", tag="t")
    for _ in range(3):
        overwrite(table.branch("fix"), "a")
        overwrite(table, "b")
    result = expire(table, all_branches=True)
    assert list(result.details["expired"]) == ["main"]
    assert "the branch starts from snapshot 1 of main" in result.details["retained_by"]["fix"]
    assert "a merge of it can no longer distinguish" in result.details["warnings"][0]
    assert run(table, "merge_branch", branch="fix").changed
    assert_sound(table)


def test_a_branch_in_which_an_operation_gathers_its_commits_is_left_alone(table: Table) -> None:
    append(table, "a")
    for name in ("plain", "airflow-paimon-staging-1"):
        run(table, "create_branch", branch=name)
        for _ in range(3):
            append(table.branch(name), "a")
    assert list(expire(table, all_branches=True).details["expired"]) == ["plain"]
    assert_sound(table)


def test_long_lived_changelogs_stay_as_the_options_say() -> None:
    options = {"changelog.num-retained.min": "4", "changelog.num-retained.max": "4", "snapshot.num-retained.min": "1",
               "snapshot.num-retained.max": "2", "snapshot.time-retained": "1 ms"}  # fmt: skip
    table = make_table(f"memory://{uuid.uuid4()}/wh", **options)
    for _ in range(6):
        append(table, "a")
    run(table, "expire_snapshots", grace="0 s", writers_stopped=True, retain_min=2)
    assert table.store.read("changelog/LATEST") == b"4"
    assert sorted(table.store.names("changelog")) == ["LATEST", *(f"changelog-{i}" for i in (1, 2, 3, 4))]
    assert_sound(table)
    append(table, "a")
    run(table, "expire_snapshots", grace="0 s", writers_stopped=True, retain_min=2)
    assert [n for n in sorted(table.store.names("changelog")) if "-" in n] == ["changelog-4", "changelog-5"]
    assert table.store.read("changelog/EARLIEST") == b"4"
    assert_sound(table)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"retain_min": 5, "retain_max": 2}, "at most retain_max"),
        ({"older_than": "2099-01-01T00:00:00+00:00"}, "future"),
        ({"older_than": "2020-01-01T00:00:00"}, "with an offset"),
        ({"older_than": "7 moons"}, "not '7 moons'"),
        ({"grace": "soon"}, "not a duration"),
        ({"grace": "9 min", "writers_stopped": False}, "at least 10 min, got '9 min'.*--writers-stopped"),
        ({"all_branches": True, "branch": "x"}, "not both"),
    ],
)
def test_bad_input_changes_nothing(table: Table, values: dict[str, Any], match: str) -> None:
    append(table, "a")
    before = table.store.walk("")
    with pytest.raises(InvalidInputError, match=match):
        expire(table, **values)
    assert table.store.walk("") == before


def test_a_hint_of_a_snapshot_that_expires_is_set_to_what_stays(table: Table) -> None:
    """Paimon takes the hinted snapshot for the newest one if the next one is not there."""
    for _ in range(6):
        append(table, "a")
    table.store.replace("snapshot/LATEST", b"2")
    expire(table, retain_min=2, retain_max=2)
    assert table.snapshot_ids() == [5, 6]
    assert table.store.read("snapshot/LATEST") == b"5", "with which Paimon looks for the next ones"
    append(table, "a")
    expire(table, retain_min=2, retain_max=2)
    assert table.store.read("snapshot/LATEST") == b"7"
    assert_sound(table)


@pytest.fixture
def busy(table: Table) -> Table:
    for dt in "ab":
        append(table, dt)
    table.store.replace("snapshot/EARLIEST", b"1")
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="fix", tag="t")
    for _ in range(3):
        rewrite(table, "a")
        overwrite(table.branch("fix"), "a")
    return table


@pytest.mark.parametrize("what", ["list", "manifest", "index", "tag"])
def test_anything_unreadable_stops_it_before_the_first_deletion(busy: Table, what: str) -> None:
    head = busy.branch("fix").latest_snapshot()
    assert head is not None
    if what == "list":
        busy.store.delete(f"manifest/{head.delta_manifest_list}")
    elif what == "manifest":
        busy.store.delete(f"manifest/{read_delta_lists(busy, [head])[0].file_name}")
    elif what == "index":
        raw = json.loads(busy.store.read("tag/tag-t")) | {"indexManifest": "gone"}
        busy.store.replace("tag/tag-t", json.dumps(raw).encode())
    else:
        busy.store.create("branch/branch-fix/tag/tag-broken", b"{")
    watching = FaultStore(busy.store)
    request = build_request("expire_snapshots", {"warehouse": "w", "table": busy.name, **NOW})
    context = Context(request, Table(watching, busy.name), now(), 0.0)
    with pytest.raises((FormatError, ConflictError)):
        perform(context, request)
    assert watching.mutations == ()


def test_a_dry_run_writes_nothing_and_has_the_plan_of_the_run(busy: Table) -> None:
    at = str(now())
    before = busy.store.walk("")
    foreseen = expire(busy, now=at, dry_run=True)
    assert busy.store.walk("") == before
    done = expire(busy, now=at)
    assert foreseen.plan_id == done.plan_id
    assert foreseen.details["deleted"] == done.details["deleted"]
    assert foreseen.details["deleted"]["data_files"] > 0


def snapshot_of(table: Table) -> dict[str, bytes]:
    """Everything but the trash."""
    return {p: table.store.read(p) for p in table.store.walk("") if not p.startswith("_airflow_paimon/trash")}


def test_killed_at_every_change_and_run_again(busy: Table) -> None:
    at_first = {p: busy.store.read(p) for p in busy.store.walk("")}
    keep = states(busy)
    expire(busy)
    finished = snapshot_of(busy)
    assert_sound(busy)
    step = 0
    while True:
        step += 1
        for path in busy.store.walk(""):
            busy.store.delete(path)
        for path, data in at_first.items():
            busy.store.create(path, data)
        died = cut_off(busy, step, "expire_snapshots", **NOW, now=str(now()))
        assert_sound(busy, leaks=True)
        left = states(busy)
        assert left == {path: keep[path] for path in left}
        expire(busy)
        assert snapshot_of(busy) == finished, f"killed at change {step}"
        if not died:
            break
    assert step > 15


def _interrupted_at(table: Table, step: int) -> FaultStore:
    """A store on which another expiry runs to its end, once, right before a change."""
    to_do, lock = [step], threading.Lock()

    def other(_method: str, _path: str) -> None:
        with lock:
            if to_do and len(store.mutations) >= to_do[0] - 1:
                to_do.clear()
                expire(table)

    store = FaultStore(table.store, on_mutation=other)
    return store


def test_another_expiry_at_every_change(busy: Table) -> None:
    """Two runs at once end as one."""
    at_first = {p: busy.store.read(p) for p in busy.store.walk("")}
    keep = states(busy)
    expire(busy)
    finished = snapshot_of(busy)
    request = build_request("expire_snapshots", {"warehouse": "w", "table": busy.name, **NOW})
    step, changes = 0, 1
    while step < changes:
        step += 1
        for path in busy.store.walk(""):
            busy.store.delete(path)
        for path, data in at_first.items():
            busy.store.create(path, data)
        store = _interrupted_at(busy, step)
        perform(Context(request, Table(store, busy.name), now(), 0.0), request)
        changes = len(store.mutations)
        left = states(busy)
        assert left == {path: keep[path] for path in left}
        expire(busy)
        assert snapshot_of(busy) == finished, f"beside another one at change {step}"
    assert step > 5


def test_a_file_that_can_not_be_deleted_is_tried_again_by_the_next_run(busy: Table) -> None:
    request = build_request("expire_snapshots", {"warehouse": "w", "table": busy.name, **NOW})

    def refuse(method: str, path: str) -> None:
        if method == "delete" and path.endswith(".parquet"):
            raise StorageError(f"no permission for {path}")

    store = FaultStore(busy.store, on_mutation=refuse)
    context = Context(request, Table(store, busy.name), now(), 0.0)
    with pytest.raises(StorageError, match="waits in the trash: run it again"):
        perform(context, request)
    assert_sound(busy, leaks=True)
    again = expire(busy)
    assert again.details["warnings"] == []
    assert again.details["deleted"]["data_files"] > 0
    assert_sound(busy)


def test_a_snapshot_that_another_engine_replaces_meanwhile_is_not_taken_away(busy: Table) -> None:
    """Paimon's rollback deletes snapshots, and the next commit takes their ids again."""
    other = busy.store.read("snapshot/snapshot-2").replace(b'"commitUser"', b'"commit_User", "commitUser"', 0) + b" "
    done: list[str] = []

    def swap_in(method: str, path: str) -> None:
        if not done:
            done.append(path)
            busy.store.replace("snapshot/snapshot-2", other)

    request = build_request("expire_snapshots", {"warehouse": "w", "table": busy.name, **NOW})
    context = Context(request, Table(FaultStore(busy.store, on_mutation=swap_in), busy.name), now(), 0.0)
    result = perform(context, request)
    assert done
    assert result.details["expired"]["main"]["to"] == 4, "planned again"
    assert_sound(busy)


def test_cost_follows_what_expires() -> None:
    def cost(size: int) -> tuple[int, int]:
        table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "5"})
        many = message(table, "big")
        lots = [many.new_files[0]._replace(file_name=f"data-{uuid.uuid4()}-0.parquet") for _ in range(size)]
        commit_buckets(table, [replace(many, new_files=(*many.new_files, *lots))])
        for _ in range(12):
            overwrite(table, "small")
        counting = CountingStore(table.store)
        request = build_request("expire_snapshots", {"warehouse": "w", "table": table.name, **NOW, "max_deletes": 3})
        perform(Context(request, Table(counting, table.name), now(), 0.0), request)
        assert not any("bucket-" in uri for method, uri in counting.tally.log if method in ("list", "names", "walk"))
        return counting.tally.requests, counting.tally.bytes_read

    small, large = cost(3), cost(5000)
    assert large[0] <= small[0] * 1.1
    assert large[1] <= small[1] * 1.5, "manifests that were merged meanwhile were read"


def test_without_anything_to_do_each_snapshot_is_read_once_and_no_list(table: Table) -> None:
    for _ in range(20):
        append(table, "a")
    counting = CountingStore(table.store)
    request = build_request("expire_snapshots", {"warehouse": "w", "table": table.name, "older_than": "9 d"})
    perform(Context(request, Table(counting, table.name), now(), 0.0), request)
    read = [uri for method, uri in counting.tally.log if method.startswith("read")]
    assert not [uri for uri in read if "manifest" in uri]
    assert counting.tally.requests < 20 + 30


def test_an_error_says_what_had_expired_before_it(busy: Table) -> None:
    """And the record of the operation stays: a retry goes on."""

    def damage(method: str, path: str) -> None:
        if method == "delete" and path == "snapshot/snapshot-3":
            busy.store.create("tag/tag-broken", b"{")

    asked = {"warehouse": "w", "table": busy.name, **NOW, "operation_id": "op"}
    request = build_request("expire_snapshots", asked)
    with pytest.raises(
        FormatError, match=r"tag-broken.*Before that, snapshot 1, snapshot 2, snapshot 3 and 1 more"
    ) as e:
        perform(Context(request, Table(FaultStore(busy.store, on_mutation=damage), busy.name), now(), 0.0), request)
    assert e.value.details["done"]["roots"] == 4
    busy.store.delete("tag/tag-broken")
    assert perform(Context(request, busy, now(), 0.0), request).changed
    assert_sound(busy)
    with pytest.raises(InvalidInputError, match="was used for another request"):
        expire(busy, operation_id="op", retain_min=7)


def test_a_snapshot_that_paimon_expires_while_its_lists_are_read_is_left_out(busy: Table) -> None:
    """Paimon deletes the manifests, then the snapshot: for a moment it is there and can't be read."""
    first = busy.snapshot(1)
    busy.store.delete("tag/tag-t")
    busy.store.delete("tag/tag-airflow-paimon-branch-fix")
    for path in busy.store.walk("branch"):
        busy.store.delete(path)

    class Slow(CountingStore):
        def read_many(self, paths: Sequence[str]) -> list[bytes]:
            if f"manifest/{first.base_manifest_list}" in paths:
                if busy.store.exists(paths[0]):
                    busy.store.delete(f"manifest/{first.base_manifest_list}")
                else:
                    busy.store.delete("snapshot/snapshot-1")
            return super().read_many(paths)

    table = Table(Slow(busy.store), busy.name)
    request = build_request("expire_snapshots", {"warehouse": "w", "table": busy.name, **NOW, "retain_min": 4})
    roots = RootReader(table)
    living = roots.gather().roots
    names = roots.without_vanished(living, lambda some: [n.root.name for n in read_references(table, some)])
    assert "1" not in names and "2" in names
    perform(Context(request, busy, now(), 0.0), request)


class WhenRead(_Wrapper):
    """Lets somebody act right before a file is read for the first time."""

    def __init__(self, inner: Store, path: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.path, self.left = path, [act]

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if method == "read_many" and self.path in path and self.left:
            self.left.pop()()
        return super()._call(method, path, action)


def test_manifests_that_paimons_expiry_takes_while_it_is_planned_are_no_damage() -> None:
    """It has deleted those of snapshot 1, which snapshots 2 and 3 name as well. The lists of these, which it deletes
    next, have been read: who plans again has them.
    """
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "3"})
    for _ in range(8):
        overwrite(table, "a")
    first, second, third, *_ = table.snapshots()
    (shared,), (next_one,) = read_delta_lists(table, [first]), read_delta_lists(table, [second])
    assert {shared, next_one} <= {*all_manifests(table, third)}

    def expire_first() -> None:
        for name in (shared.file_name, first.base_manifest_list, first.delta_manifest_list):
            table.store.delete(f"manifest/{name}")
        table.store.delete("snapshot/snapshot-1")

    store = WhenRead(table.store, f"manifest/{next_one.file_name}", expire_first)
    request = build_request("expire_snapshots", {"warehouse": "w", "table": table.name, **NOW})
    perform(Context(request, Table(store, table.name), now(), 0.0), request)
    assert not store.left
    assert table.snapshot_ids() == [8]
    assert_sound(table, leaks=True)


class Beside(_Wrapper):
    """Lets somebody act right before the n-th request."""

    def __init__(self, inner: Store, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left, self.act = at, act

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0:
            self.act()
        return super()._call(method, path, action)


@pytest.mark.parametrize("names", [{"tag": "x"}, {"branch": "x"}], ids=["create_tag", "create_branch"])
def test_whoever_takes_a_snapshot_beside_an_expiry_has_it_whole_or_not_at_all(names: dict[str, str]) -> None:
    """The expiry runs to its end, without a grace time, at each request of the other operation."""
    outcomes, step, over = set(), 0, False
    while not over:
        step += 1
        table = make_table(f"memory://{uuid.uuid4()}/wh")
        for _ in range(3):
            rewrite(table, "a")
        store = Beside(table.store, step, partial(expire, table, retry_window="0 s"))
        asked = {"warehouse": "w", "table": table.name, "snapshot": 1, **names}
        request = build_request(f"create_{min(names)}", asked)
        try:
            perform(Context(request, Table(store, table.name), now(), 0.0), request)
        except (ConflictError, NotFoundError):
            outcomes.add("refused")
            assert table.tag_names() == table.branch_names() == []
        else:
            outcomes.add("done")
        assert_sound(table, leaks=True)
        over = store.left > 0
    assert outcomes == {"refused", "done"}


def find_errors(table: Table) -> list[str]:
    return [f.message for f in find_all(table, now(), verify_files=True) if f.severity == "error"]


def clean(table: Table) -> None:
    request = build_request("remove_orphan_files", {"warehouse": "w", "table": table.name})
    perform(Context(request, table, now(), 0.0), request)


@pytest.mark.parametrize(
    "read",
    [find_errors, clean, lambda t: read_usage(t, now()), read_stored_files, lambda t: read_health(t, now())],
    ids=["check_table", "remove_orphan_files", "storage_usage", "find_rows", "table_health"],
)
def test_what_paimons_expiry_takes_while_it_is_read_is_no_damage(read: Callable[[Table], list[str] | None]) -> None:
    """Another job commits, and expires all other snapshots, at each request."""
    first = make_table(f"memory://{uuid.uuid4()}/wh", **{"manifest.merge-min-count": "3"})
    for _ in range(4):
        overwrite(first, "a")
    step, over = 0, False
    while not over:
        step += 1
        table = copied(first)

        def commit_and_expire(table: Table = table) -> None:
            overwrite(table, "a")
            paimon_expiry.expire_snapshots(table, 1)

        store = Beside(table.store, step, partial(contextvars.Context().run, commit_and_expire))
        found = read(Table(store, table.name))
        assert not isinstance(found, list) or not found, f"at request {step}"
        over = store.left > 0


def test_a_tag_whose_changelog_paimon_has_expired_stops_nobody(table: Table) -> None:
    append(table, "a")
    raw = json.loads(table.store.read("snapshot/snapshot-1")) | {"changelogManifestList": "list-that-is-gone"}
    table.store.create("tag/tag-t", json.dumps(raw).encode())
    overwrite(table, "a")
    overwrite(table, "a")
    assert expire(table).details["expired"]["main"]["to"] == 2
    assert len(live_entries(table, table.tag("t").snapshot)) == 1


@pytest.mark.parametrize("lost", ["changelog_manifest_list", "delta_manifest_list"])
def test_a_tag_that_gets_another_name_meanwhile_keeps_its_files(
    table: Table, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """One list is gone: that of its changelog, as Paimon deletes it under a tag, or one without which it is damaged."""
    new = message(table, "a")
    commit_append(table, [replace(new, changelog=new.new_files)], planned_on=None)
    run(table, "create_tag", tag="t")
    overwrite(table, "a")
    find, calls = expiry_run.find_unreferenced, []

    def beside_others(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:  # all roots were looked at for what is to be deleted
            table.store.delete(f"manifest/{getattr(table.tag('t').snapshot, lost)}")
            table.store.create(table.paths.tag("u"), table.store.read(table.paths.tag("t")))
            table.store.delete(table.paths.tag("t"))
        if len(calls) in (2, 3):
            raise FormatError("another engine has expired something")
        return find(*args)

    monkeypatch.setattr(expiry_run, "find_unreferenced", beside_others)
    run(table, "expire_snapshots", **NOW)
    assert table.tag_names() == ["u"]
    assert new.new_files[0].file_name in {path.rpartition("/")[2] for path in files_on_disk(table)}
