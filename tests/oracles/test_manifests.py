"""compact_manifest beside Java's: the same live files in as few manifests, and every engine reads on as before.

expire_changelogs beside Flink's procedure, which the Java core has: the same changelogs go.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.format import manifest_blocks
from airflow_paimon.core.format.avro import encoder
from airflow_paimon.core.format.avro.container import read_header
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table, open_table
from tests.data.test_changes import Follower
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle, PypaimonOracle, RustOracle
from tests.oracles.interop import World
from tests.oracles.test_expire_snapshots import everything, orphans
from tests.oracles.test_streams import streamed
from tests.soundness import assert_sound

pytestmark = pytest.mark.oracle

KINDS = {
    "changelog": {"changelog-producer": "input"},
    "vectors": {"deletion-vectors.enabled": "true", "bucket": "2"},
    "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": "2"},
    "appends": {"bucket": "-1", "row-tracking.enabled": "true"},
}


def used_world(where: Path, java: JavaOracle, kind: str) -> World:
    world = World(where, java)
    world.create(primary_keys=() if kind == "appends" else ("p", "k"), **KINDS[kind])
    world.write("x1=a x2=b y1=c")
    world.do("create_tag", name="base")
    world.do("create_branch", name="theirs", tag="base")
    for number in range(5):
        world.write(f"x{number}=v y{number}=w z1={number}")
        if number % 2 and kind != "appends":  # Java 1.4 loses the row ids of files that it compacts
            world.do("compact", full=True)
    return world


def live(table: Table) -> dict[object, object]:
    return dict(live_entries(table, table.latest_snapshot()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.every(2)
def test_the_same_files_as_javas_and_all_engines_go_on(
    java_oracle: JavaOracle,
    pypaimon_oracle: PypaimonOracle,
    rust_oracle: RustOracle,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new manifest has an index of its blocks, which the other engines don't look at."""
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 1)
    monkeypatch.setattr(manifest_blocks, "_FEWEST", 2)
    monkeypatch.setattr(manifest_blocks, "_LARGEST_PART", 0)
    world = used_world(tmp_path / "ours", java_oracle, kind)
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    theirs = World(tmp_path / "theirs", java_oracle)
    theirs.do("compact_manifest")
    before, ours = everything(world), Follower(world.main, row_kind=True)
    ours.all()
    java_oracle.open_stream_reader(world.warehouse, "d.t", kind)
    streamed(java_oracle, kind, world.main)
    result = world.run("compact_manifest")
    assert live(world.main) == live(theirs.main)
    mine, other = (all_manifests(t, t.latest_snapshot()) for t in (world.main, theirs.main))
    assert len(mine) == len(other) == 1 < result.details["before"]["manifests"]
    assert [m._replace(file_name="", file_size=0) for m in mine] == [
        m._replace(file_name="", file_size=0) for m in other
    ]
    assert before.items() <= everything(world).items(), "every older state, tag and branch"
    text = world.both()
    for oracle in (pypaimon_oracle, rust_oracle):
        read = oracle.read(world.warehouse, "d.t", columns=["p", "k", "v"])
        assert len(canonical_rows(read, ["p", "k", "v"])) == len(text.split())
    assert ours.all() == []
    assert streamed(java_oracle, kind, world.main) == []
    (indexed,) = mine
    assert manifest_blocks.KEY in read_header(world.main.store.read(manifest_path(indexed.file_name))).metadata
    for one in (world, theirs):
        one.write("x1=later w1=new")
    text = world.both()
    world.do("compact_manifest")
    assert world.both() == text
    assert indexed not in all_manifests(world.main, world.main.latest_snapshot())
    java_oracle.request("close_stream_reader", reader=kind)
    for one in (world, theirs):
        one.write("x9=new y1=again")
        one.do("compact", full=True)
    assert len(ours.all()) >= 2
    assert world.both() == theirs.both()
    world.run("expire_snapshots", retain_max=2, retain_min=1, grace="0 s", writers_stopped=True)
    assert orphans(world) == []
    world.both("theirs")
    assert_sound(world.main)


CHANGELOGS = {"changelog-producer": "input", "write-only": "true", "snapshot.num-retained.min": "1",
              "snapshot.num-retained.max": "2", "changelog.num-retained.min": "1",
              "changelog.num-retained.max": "100", "snapshot.time-retained": "1 ms",
              "changelog.time-retained": "9 d"}  # fmt: skip


def changelogs(world: World) -> list[str]:
    return sorted(world.main.store.names("changelog"))


@pytest.mark.parametrize(
    "asked",
    [{"retain_max": 5}, {"retain_max": 4, "retain_min": 2}, {"older_than": 0, "retain_min": 6}, {"delete_all": True},
     {"retain_max": 3, "max_deletes": 2}],
    ids=str,
)  # fmt: skip
@pytest.mark.every(2)
def test_the_same_changelogs_go_as_by_flinks_procedure(
    java_oracle: JavaOracle, tmp_path: Path, asked: dict[str, int]
) -> None:
    world = World(tmp_path / "ours", java_oracle)
    world.create(**CHANGELOGS)
    for number in range(9):
        world.write(f"x1={number} y{number}=w")
        if number == 3:
            world.do("create_tag", name="kept")
    world.run("expire_snapshots", retain_max=2, retain_min=1, grace="0 s", writers_stopped=True)
    assert len(changelogs(world)) > 6
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    theirs = World(tmp_path / "theirs", java_oracle)
    later = int(time.time() * 1000) + 5000
    given = {k: v for k, v in asked.items() if k != "older_than"}
    theirs.do("expire_changelogs", **given, **({"older_than_ms": later} if "older_than" in asked else {}))
    when = {"older_than": "0 s"} if "older_than" in asked else {}
    result = world.run("expire_changelogs", **given, **when, grace="0 s", writers_stopped=True, now=str(later))
    assert changelogs(world) == changelogs(theirs)
    for name in ("EARLIEST", "LATEST"):
        if name in changelogs(theirs):
            assert world.main.store.read(f"changelog/{name}") == theirs.main.store.read(f"changelog/{name}")
    assert result.changed
    assert world.both() == theirs.both()
    assert world.text(tag="kept") == theirs.text(tag="kept")
    assert orphans(world) == []
    assert_sound(open_table(str(world.warehouse), "d.t"))


def test_properties_of_a_publish_that_java_copies_are_no_second_publish(
    java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """Its compaction of manifests gives its snapshot those of the one before."""
    world = World(tmp_path, java_oracle)
    world.create(**{"write-only": "true", "manifest.merge-min-count": "3"})
    for k in range(3):
        world.write(f"a{k}=x")
    world.run("create_branch", branch="fix", snapshot=3)
    world.write("a7=y", branch="fix")
    undo = world.run("merge_branch", branch="fix", writers_stopped=True).details["undo_tag"]
    back = world.run("rollback_to", tag=undo).snapshot_after
    world.do("compact_manifest")
    newest = world.main.latest_snapshot()
    assert newest is not None and newest.id == (back or 0) + 1
    assert newest.properties["airflow-paimon.operation"] == "rollback_to"
    assert [r.snapshot for r in read_audit(world.main)] == [4, 5]
    assert world.is_sound()
