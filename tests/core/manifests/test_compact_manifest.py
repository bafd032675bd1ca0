"""compact_manifest: the same live files in few sorted manifests, beside writers, kills, tags, branches and expiries."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from airflow_paimon.core.format.manifest import EMPTY_STATS, FileId, ManifestEntry, ManifestFile, Stats
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.manifests.compact_manifest_plan import choose_manifests
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import all_manifests, read_both_manifest_lists
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.execution import perform
from tests.core.format.avro_files import fastavro_records
from tests.core.later_fields import VALUES, plant
from tests.core.tables import append, cut_off, files, forget_results, make_table, message, overwrite, rewrite, run
from tests.environment import REPO_ROOT
from tests.oracles.golden import golden_index
from tests.randomness import chance, lives, moments, thorough
from tests.soundness import assert_sound, files_on_disk, states
from tests.stores import FaultStore, RivalledStore
from tests.together import set_off, wait_until_ready

OPERATION = "compact_manifest"


def manifests(table: Table) -> list[ManifestFile]:
    return all_manifests(table, table.latest_snapshot())


def entries(table: Table) -> dict[FileId, ManifestEntry]:
    """The live files with everything that is said of them."""
    return live_entries(table, table.latest_snapshot())


def used_table(where: str | Path | None = None, **options: str) -> Table:
    """A table of five partitions after appends, overwrites and rewrites: each commit has left a small manifest."""
    table = make_table(where or f"memory://{uuid.uuid4()}/wh", **options)
    for i in range(24):
        dt, act = f"p{i * 7 % 5}", (append, append, overwrite, rewrite)[i % 4]
        act(table, dt, i % 2, seq=i)
    return table


def append_many(table: Table, dt: str, number: int, seq: int = 0) -> None:
    """One commit of many files: a manifest's header alone has 2 kB."""
    many = [message(table, dt, i % 2, seq=seq + i) for i in range(number)]
    commit_append(table, many, planned_on=table.latest_snapshot())


SMALL = {"manifest.target-file-size": "6 kb"}
"""So that a hundred files fill several manifests."""


def compact(table: Table, **values: Any) -> dict[str, Any]:
    """Compact the manifests; the live files stay as they are, and what is left is sound. Returns the details."""
    before = entries(table)
    result = run(table, OPERATION, **values)
    assert entries(table) == before
    assert_sound(table)
    return {**result.details, "changed": result.changed}


def beside(table: Table, store: Any, **values: Any) -> Any:
    """Run the operation on another store of the same table."""
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request(OPERATION, {"warehouse": warehouse, "table": table.name, **values})
    context = open_context(request)
    return perform(dataclasses.replace(context, table=Table(store, table.name)), request)


def test_one_sorted_manifest_without_deletions_and_nothing_to_do_afterwards() -> None:
    table = used_table()
    head = table.latest_snapshot()
    names = {m.file_name for m in manifests(table)}
    dry = run(table, OPERATION, dry_run=True)
    assert (dry.changed, dry.snapshot_after, table.latest_snapshot()) == (True, head.id, head)
    found = compact(table)
    assert found["before"]["manifests"] == found["rewritten"] == len(names) == 24
    assert found["before"]["delete_entries"] > 0
    live = len(entries(table))
    assert found["after"] == dry.details["after"]
    assert (found["after"]["manifests"], found["after"]["entries"], found["after"]["delete_entries"]) == (1, live, 0)
    (part,) = read_entries(table, manifests(table))
    assert [(e.partition, e.bucket) for e in part] == sorted((e.partition, e.bucket) for e in part)
    committed = table.latest_snapshot()
    assert (committed.id, committed.commit_kind, committed.operation) == (head.id + 1, CommitKind.COMPACT, None)
    assert (committed.total_record_count, committed.delta_record_count) == (head.total_record_count, 0)
    assert read_both_manifest_lists(table, committed)[1] == []
    assert "operation" not in json.loads(table.store.read(table.paths.snapshot(committed.id)))
    again = compact(table)
    assert (again["changed"], again["rewritten"], table.latest_snapshot_id()) == (False, 0, committed.id)
    assert not run(table, OPERATION, dry_run=True).changed
    assert run(table, "check_table").details["findings"] == []


def test_a_table_without_a_snapshot_and_one_with_a_single_manifest() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    assert not run(table, OPERATION).changed
    append(table, "a")
    assert not run(table, OPERATION).changed and table.latest_snapshot_id() == 1
    overwrite(table, "a")
    assert compact(table)["after"]["manifests"] == 1, "its deletion goes, and the addition that it is about"


def test_large_manifests_stay_but_for_those_whose_files_are_deleted() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh", **SMALL)
    for dt in "abcdef":
        append_many(table, dt, 40)
    compact(table)
    large = manifests(table)
    assert len(large) > 2
    assert all(m.num_deleted_files == 0 for m in large)
    spans = [sorted({e.partition for e in part}) for part in read_entries(table, large)]
    assert all(left[-1] <= right[0] for left, right in pairwise(spans))
    overwrite(table, "f", seq=99)
    append(table, "g", seq=100)
    found = compact(table)
    kept = {m.file_name for m in large} & {m.file_name for m in manifests(table)}
    assert 0 < len(kept) == len(large) + 2 - found["rewritten"] < len(large)
    assert found["after"]["delete_entries"] == 0


def test_a_file_that_came_back_stays() -> None:
    """Deleted and added again, behind a large manifest that has its first addition."""
    table = make_table(f"memory://{uuid.uuid4()}/wh", **SMALL)
    append_many(table, "a", 60)
    append_many(table, "c", 60)
    run(table, "create_tag", tag="before")
    for i in range(3):
        overwrite(table, "a", seq=50 + i)
    run(table, "rollback_to", tag="before")
    assert len(entries(table)) == 120
    append(table, "b", seq=90)
    assert compact(table)["changed"]


def test_overlapping_large_manifests_are_sorted_where_that_is_asked_for() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh", **SMALL)
    for turn in range(4):
        many = [message(table, f"p{i * 7 % 10}", i % 2, seq=100 * turn + i) for i in range(100)]
        commit_append(table, many, planned_on=table.latest_snapshot())

    def overlaps() -> int:
        spans = [{e.partition for e in part} for part in read_entries(table, manifests(table))]
        return sum(len(a & b) for i, a in enumerate(spans) for b in spans[:i])

    compact(table)
    before = overlaps()
    assert compact(table, manifest_sort_enabled=True)["changed"]
    assert overlaps() < before
    assert overlaps() < len(manifests(table)), "neighbours share at most the partition between them"
    assert not compact(table, manifest_sort_enabled=True)["changed"]


def test_the_choice_by_size_deletions_and_overlap() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for dt in ("a", "b", "a"):
        append(table, dt)
    types = table.schema().partition_types
    stats = {m.partition_stats.min_values: m.partition_stats for m in manifests(table)}
    low, high = sorted(stats)

    def row(name: str, size: int, deleted: int = 0, span: tuple[bytes, bytes] = (low, low)) -> ManifestFile:
        return ManifestFile(name, size, 5, deleted, Stats(*span, (0,)), 0)

    def chosen(*rows: ManifestFile, sort: bool = False) -> str:
        return "".join(m.file_name for m in choose_manifests(rows, 100, types if sort else None))

    assert chosen(row("a", 50), row("b", 49)) == "", "one small manifest has no other to be merged with"
    assert chosen(row("a", 49), row("b", 90), row("c", 10)) == "ac"
    assert chosen(row("a", 90), row("b", 90, 1)) == "b"
    wide, point = (low, high), (high, high)
    assert chosen(row("a", 90, 0, wide), row("b", 90, 0, wide), row("c", 90, 0, point), sort=True) == "ab"
    assert chosen(row("a", 90, 0, wide), row("b", 90, 0, point), sort=True) == "", "they touch"
    assert chosen(row("a", 90)._replace(partition_stats=EMPTY_STATS), row("b", 90, 0, wide), sort=True) == ""


@pytest.mark.parametrize("seed", range(lives(4, 30)))
def test_whatever_came_before_the_live_files_and_all_older_states_stay(seed: int) -> None:
    chance = random.Random(seed)
    sizes = {"manifest.target-file-size": chance.choice(["5 kb", "8 mb"]),
             "manifest.merge-min-count": chance.choice(["3", "7", "100"])}  # fmt: skip
    table = make_table(f"memory://{uuid.uuid4()}/wh", primary=chance.random() < 0.5, **sizes)
    for step in range(40):
        act = chance.choice(["append", "append", "overwrite", "rewrite", "compact", "tag", "expire"])
        dt = f"p{chance.randrange(4)}"
        if act == "append":
            append_many(table, dt, chance.choice([1, 1, 30]), seq=100 * step)
        elif act == "overwrite":
            overwrite(table, dt, seq=step)
        elif act == "rewrite":
            rewrite(table, dt, kind=CommitKind.COMPACT, seq=step)
        elif act == "tag" and table.latest_snapshot_id():
            run(table, "create_tag", tag=f"t{step}")
        elif act == "expire" and table.latest_snapshot_id():
            run(table, "expire_snapshots", older_than="0 s", retain_min=2, grace="0 s", writers_stopped=True)
            assert_sound(table)
        else:
            before = states(table)
            compact(table, manifest_sort_enabled=chance.random() < 0.3)
            assert before.items() <= states(table).items()


def test_tags_branches_and_publishes_beside_it() -> None:
    table = used_table()
    run(table, "create_tag", tag="old")
    run(table, "create_branch", branch="fix", tag="old")
    overwrite(table.branch("fix"), "p1", seq=70)
    wanted = entries(table.branch("fix"))
    assert compact(table)["changed"]
    assert run(table, OPERATION, branch="fix").changed
    assert entries(table.branch("fix")) == wanted
    run(table, "expire_snapshots", all_branches=True, older_than="0 s", retain_min=1, grace="0 s", writers_stopped=True)
    assert_sound(table)
    assert run(table, "fast_forward", branch="fix", writers_stopped=True).changed, (
        "a compaction of main is no change that a publish loses"
    )
    assert entries(table).keys() == wanted.keys()
    assert_sound(table)


def test_a_retry_returns_the_first_result() -> None:
    table = used_table()
    first = run(table, OPERATION, operation_id="night")
    append(table, "z")
    assert run(table, OPERATION, operation_id="night").details == first.details | {"replayed": True}
    forget_results(table)
    again = run(table, OPERATION, operation_id="night")
    assert (again.snapshot_after, again.details) == (first.snapshot_after, first.details)
    with pytest.raises(InvalidInputError, match="another request"):
        run(table, OPERATION, operation_id="night", manifest_sort_enabled=True)


def test_killed_at_any_step_it_leaves_orphans_at_most() -> None:
    for step in moments(40):
        table = used_table(**SMALL)
        append_many(table, "p9", 90)
        before = entries(table)
        died = cut_off(table, step, OPERATION, operation_id="kill")
        assert entries(table) == before
        assert_sound(table, leaks=True)
        run(table, OPERATION, operation_id="kill")
        assert entries(table) == before
        assert len([s for s in table.snapshot_ids() if s > 25]) == 1, "it landed once"
        if not died:
            assert step > 6, "it was never killed"
            return
    raise AssertionError("it has no end")


def test_a_manifest_that_cannot_be_written_leaves_nothing() -> None:
    table = used_table(**SMALL)
    append_many(table, "p9", 90)
    there, head = files_on_disk(table), table.latest_snapshot()
    for number, after in product((1, 2, 3), (False, True)):
        store = FaultStore(table.store, fail_at=number, error=OSError(5, "no"), after=after)
        with pytest.raises(StorageError):
            beside(table, store)
        assert (files_on_disk(table), table.latest_snapshot()) == (there, head)


@pytest.mark.parametrize("merges", ["100", "3"], ids=["appends", "merges the manifests"])
def test_what_others_commit_meanwhile_is_in_it(merges: str) -> None:
    """The rival commits right before the snapshot is put, again and again: the manifests are written once."""
    table = used_table(**{"manifest.merge-min-count": "100"})
    if merges != "100":
        run(table, "alter_table", change=[f"set manifest.merge-min-count={merges}"])

    def rival(turn: int) -> None:
        (append, overwrite, rewrite)[turn % 3](table, f"p{turn % 5}", seq=100 + turn)

    store = RivalledStore(table.store, rival, times=7)
    written = FaultStore(store)
    result = beside(table, written)
    assert (result.changed, store.lost, result.details["commit_retries"]) == (True, 7, 7)
    own = [where for method, where in written.mutations if method == "create" and "/manifest-list" not in where]
    assert sum("/manifest/manifest-" in where and "-base-" not in where for where in own) == 1
    alone = used_table(**{"manifest.merge-min-count": "100"})
    for turn in range(1, 8):
        (append, overwrite, rewrite)[turn % 3](alone, f"p{turn % 5}", seq=100 + turn)
    assert {k: len(v) for k, v in files(table).items()} == {k: len(v) for k, v in files(alone).items()}
    assert_sound(table)


def test_a_branch_that_is_deleted_meanwhile_is_not_found_and_nothing_is_left() -> None:
    table = used_table()
    run(table, "create_branch", branch="fix", snapshot=24)

    def rival(method: str, path: str) -> None:
        if path.startswith("manifest/manifest-list") and "fix" in table.branch_names():
            run(table, "delete_branch", branch="fix")

    store = FaultStore(table.store, on_mutation=rival)
    there = {p for p in files_on_disk(table) if "manifest" in p}
    with pytest.raises((NotFoundError, ConflictError), match="fix"):
        beside(table, store, branch="fix")
    assert {p for p in files_on_disk(table) if "manifest" in p} == there


_WRITER = """
import sys
from airflow_paimon.core.table.table import open_table
from tests.core.format.avro_files import fastavro_records
from tests.core.later_fields import VALUES, plant
from tests.core.tables import append, overwrite, rewrite
table = open_table(path=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for i in range(40):
    (append, overwrite, rewrite, append)[i % 4](table, "p" + str(i % 3), i % 2, seq=i)
"""


def test_beside_a_process_that_never_pauses(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", **{"manifest.merge-min-count": "6"})
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "wh" / "d.db" / "t")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=REPO_ROOT) as writer:
        wait_until_ready([writer])
        set_off([writer])
        committed = 0
        while writer.poll() is None or not committed:  # a slow machine lets it get nothing done before
            committed += run(table, OPERATION, manifest_sort_enabled=committed % 2 == 0).changed
        assert writer.wait() == 0
    own = [s for s in table.snapshots(table.snapshot_ids()) if s.commit_kind == CommitKind.COMPACT]
    assert len(own) == committed and table.latest_snapshot_id() == 40 + committed, "no commit is lost"
    alone = make_table(f"memory://{uuid.uuid4()}/wh")
    for i in range(40):
        (append, overwrite, rewrite, append)[i % 4](alone, f"p{i % 3}", i % 2, seq=i)
    assert {k: len(v) for k, v in files(table).items()} == {k: len(v) for k, v in files(alone).items()}
    assert_sound(table, leaks=True)


def test_fields_of_a_later_release_stay() -> None:
    table = used_table()
    plant(table)
    append(table, "z")
    planted = {e.file.file_name for e in entries(table).values() if e.file.unknown}
    assert compact(table)["changed"]
    (row,) = manifests(table)
    for record in fastavro_records(table.store.read(manifest_path(row.file_name))):
        theirs = record["_FILE"]["_FILE_NAME"] in planted
        for part in (record, record["_FILE"], record["_FILE"]["_KEY_STATS"]):
            assert {name: part.get(name) for name in VALUES if theirs} == (VALUES if theirs else {})
    assert len(planted) == len(entries(table)) - 1


def test_a_lost_manifest_stops_it() -> None:
    table = used_table()
    table.store.delete(manifest_path(manifests(table)[3].file_name))
    there = files_on_disk(table)
    with pytest.raises(FormatError, match="is missing"):
        run(table, OPERATION)
    assert files_on_disk(table) == there


# -- tables that Paimon wrote -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("archive", ["paimon-2.0.0", "paimon-0.9.0", "row-tracking-fuzz", "merge-fuzz"])
def test_golden_tables_say_the_same_afterwards(golden: Callable[[str], Path], tmp_path: Path, archive: str) -> None:
    """Vectors, row ids, changelogs, dynamic buckets, branches: every entry keeps all its fields."""
    shutil.copytree(golden(archive) / "wh", tmp_path / "wh")
    changed = 0
    names = sorted({entry["table"] for entry in golden_index(archive)})
    few = len(names) if thorough() else max(3, len(names) // 16)
    for number, name in enumerate(chance(archive).sample(names, len(names))):
        if number >= few and changed:
            break
        table = open_table(str(tmp_path / "wh"), name)
        for branch in ("main", *table.branch_names()):
            view = table.branch(branch)
            try:
                before = entries(view)
            except FormatError:  # Paimon has broken it
                continue
            head = view.latest_snapshot()
            changed += run(table, OPERATION, branch=branch).changed
            assert entries(view) == before
            now = view.latest_snapshot()
            kept = ("index_manifest", "schema_id", "total_record_count", "watermark", "next_row_id", "statistics")
            for field in kept if head is not None and now.schema_id == head.schema_id else ():
                assert (getattr(now, field) or 0) == (getattr(head, field) or 0), f"{name}: {field}"
    assert changed > 0
