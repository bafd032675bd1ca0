"""Files that Paimon's compaction has only moved to another level, when a publish or a rollback goes back over that.

Paimon's readers leave out a file of which a manifest still holds a DELETE on the same level, whatever was added later.
Had we deleted a file on the level that Java moved it to, Java's next compaction would move it there again, and no
reader of Paimon's would find its rows any more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_paimon.core.publish.undoable_publishes import verify_rollback
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World

pytestmark = pytest.mark.oracle

OPTIONS = {"write-only": "true", "manifest.merge-min-count": "100"}


@pytest.fixture
def world(java_oracle: JavaOracle, tmp_path: Path) -> World:
    """Main's only file was moved to the highest level after tag ``t`` and branch ``fix`` were made."""
    world = World(tmp_path, java_oracle)
    world.create(**OPTIONS)
    world.write("a1=x a2=x")
    world.run("create_tag", tag="t")
    world.run("create_branch", branch="fix", tag="t")
    world.do("compact", full=True)
    return world


def undone(world: World) -> None:
    target = world.main.tag("t").snapshot
    committed = world.run("rollback_to", tag="t").snapshot_after
    assert committed is not None
    verify_rollback(world.main, snapshot_id=committed, target=target, keep_later=False)


def published(world: World) -> None:
    world.write("a7=y", branch="fix")
    world.run("merge_branch", branch="fix", writers_stopped=True)


def taken_and_given_back(world: World) -> None:
    """The file is deleted on the highest level, and comes back on the lowest."""
    world.write("a1=z a2=z", mode="overwrite", partition={"p": "a"})
    world.run("rollback_to", tag="t")


@pytest.mark.parametrize("change", [undone, published, taken_and_given_back])
def test_java_finds_the_rows_after_its_next_compaction(world: World, change: Callable[[World], None]) -> None:
    change(world)
    now = world.both()
    assert now.startswith("a1=x a2=x")
    world.do("compact", full=True)
    assert world.both() == now
    world.write("b1=v")
    assert world.both() == f"{now} b1=v"
    assert world.is_sound()
