"""Our expiry of snapshots and tags, with Java writing, tagging, compacting and expiring in between: whatever is left
reads in Java as before, and Java's orphan cleaning finds nothing that we left over."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from airflow_paimon.core.format.snapshot import parse_snapshot
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World
from tests.soundness import assert_sound

pytestmark = pytest.mark.oracle

KINDS = [
    {"changelog-producer": "input"},
    {"deletion-vectors.enabled": "true", "bucket": "2"},
    {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1", "changelog.num-retained.min": "1",
     "changelog.num-retained.max": "9", "changelog-producer": "input", "write-only": "true"},
]  # fmt: skip


def everything(world: World) -> dict[str, str]:
    """What Java reads of each snapshot, tag and branch."""
    read = {}
    for branch in (None, *world.main.branch_names()):
        view = world.branch(branch) if branch else world.main
        read |= {f"{branch}.{i}": world.text(branch, snapshot=i) for i in view.snapshot_ids()}
        if branch is None:  # Java reads main's tag of that name on a branch
            read |= {f"tag {t}": world.text(tag=t) for t in view.tag_names()}
    return read


def expire(world: World, **more: object) -> dict[str, str]:
    """Expire all but the newest snapshots everywhere; return what Java reads of the rest, the same as before."""
    before = everything(world)
    later = str(int(time.time() * 1000) + 5000)
    asked = {
        "older_than": "0 s",
        "retain_min": 1,
        "grace": "0 s",
        "writers_stopped": True,
        "now": later,
        "keep_undo": False,
        **more,
    }
    result = world.run("expire_snapshots", all_branches=True, **asked)
    after = everything(world)
    assert after == {what: before[what] for what in after}
    return {**after, "freed": str(result.details["deleted"]["data_files"])}


def orphans(world: World) -> list[str]:
    later = int(time.time() * 1000) + 60_000
    return list(world.do("remove_orphans", older_than_ms=later, dry_run=True)["paths"])


@pytest.mark.parametrize("options", KINDS, ids=["changelog", "vectors", "long changelogs"])
@pytest.mark.every(2)
def test_java_reads_what_is_left(java_oracle: JavaOracle, tmp_path: Path, options: dict[str, str]) -> None:
    world = World(tmp_path, java_oracle)
    world.create(**options)
    world.write("x1=a x2=b y1=c")
    world.do("create_tag", name="base")
    world.run("create_branch", branch="ours", tag="base")
    world.do("create_branch", name="theirs", tag="base")
    world.write("x1=A")
    world.do("compact", full=True)
    world.do("create_tag", name="middle")
    world.write("y1=C y2=d")
    world.write("x2=B", branch="theirs")
    world.write("x2=O", branch="ours")
    world.do("compact", full=True)
    world.write("x3=e")
    left = expire(world)
    assert left["tag base"] == "x1=a x2=b y1=c"
    assert left["tag middle"] == "x1=A x2=b y1=c"
    assert orphans(world) == []
    assert_sound(world.main)
    world.do("delete_tag", name="middle")
    world.write("y3=f")
    world.do("delete_branch", name="theirs")
    world.do("compact", full=True)
    world.do("compact", branch="ours", full=True)
    expire(world)
    assert world.both("ours") == "x1=a x2=O y1=c"
    assert world.both() == "x1=A x2=b x3=e y1=C y2=d y3=f"
    world.do("expire_snapshots", retain_max=1, retain_min=1)
    assert world.both("ours") == "x1=a x2=O y1=c"


def test_changelogs_that_java_leaves_without_their_lists(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Its expiry keeps, of a commit without changelog files, only the changelog's own file."""
    world = World(tmp_path, java_oracle)
    own = {"write-only": "false", "snapshot.time-retained": "1 ms", "changelog.time-retained": "1 d"}
    world.create(**KINDS[2] | own)
    for number in range(3):
        world.write(f"x{number}=a")
        world.do("compact", full=True)
    main = world.main
    names = [name for name in main.store.names("changelog") if name.startswith("changelog-")]
    left = [parse_snapshot(main.store.read(f"changelog/{name}"), name) for name in names]
    lists = [one.changelog_manifest_list or one.delta_manifest_list for one in left]
    assert {main.store.exists(f"manifest/{name}") for name in lists} == {True, False}
    assert world.run("check_table", verify_files=True).details["ok"]
    later = str(int(time.time() * 1000) + 5000)
    world.run("storage_usage")
    found = world.run("remove_orphan_files", now=str(int(time.time() * 1000) + 10 * 86_400_000), dry_run=True)
    assert not found.changed, found.details
    gone = {"older_than": "0 s", "grace": "0 s", "writers_stopped": True, "now": later}
    world.run("expire_snapshots", **gone, retain_min=1)
    world.run("expire_changelogs", **gone, retain_min=1)
    assert len([name for name in main.store.names("changelog") if name.startswith("changelog-")]) == 1
    assert world.both() == "x0=a x1=a x2=a"
    assert orphans(world) == []


def test_java_goes_on_in_between(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """One table, forty random steps of both sides."""
    chance = random.Random(11)
    world = World(tmp_path, java_oracle)
    world.create(**{"changelog-producer": "input", "tag.time-expire-enabled": "false"})
    world.write("x1=a y1=b")
    world.do("create_tag", name="base")
    world.run("create_branch", branch="fix", tag="base")
    freed = 0
    for number in range(40):
        key = f"{chance.choice('xy')}{chance.randint(1, 4)}={number}"
        step = chance.choice(["write", "write", "branch", "compact", "tag", "java expires", "we expire", "tags"])
        if step == "write":
            world.write(key)
        elif step == "branch":
            world.write(key, branch="fix")
        elif step == "compact":
            world.do("compact", full=True)
        elif step == "tag":
            world.do("create_tag", name=f"t{number}", time_retained_ms=chance.choice([1, 10**9]))
        elif step == "java expires":
            world.do("expire_snapshots", retain_max=chance.randint(1, 4), retain_min=1)
        elif step == "tags":
            before = everything(world)
            world.run("expire_tags", grace="0 s", writers_stopped=True)
            after = everything(world)
            assert after == {what: before[what] for what in after}
        else:
            freed += int(expire(world, retain_min=chance.randint(1, 3))["freed"])
        assert_sound(world.main, leaks=True)
    assert freed > 0
    assert world.both("fix").startswith("x1=")
