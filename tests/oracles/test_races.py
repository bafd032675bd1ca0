"""Our commits beside those of Paimon's Java engine (O3), in different processes, to one table on a local disk.

Java looks whether a snapshot is there and then renames: it can land on top of ours. Ours links, so
it never lands on Java's. What was landed upon is reported as outcome-unknown, unless Java's rename comes after our last
look, milliseconds after the commit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.environment import REPO_ROOT
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World
from tests.together import set_off, wait_until_ready

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

_WRITER = """
import json, sys
import pyarrow as pa
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import write_arrow
path, part, commits, mode = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
table = open_table(path=path)
print("ready", flush=True)
sys.stdin.readline()
for at in range(commits):
    rows = pa.table({"p": [part], "k": pa.array([at], pa.int32()), "v": ["ours"]})
    how = {"mode": "overwrite", "partition": {"p": part}} if mode == "overwrite" else {}
    number = None
    try:
        result = write_arrow(table, rows, **how)
        outcome, number = "landed" if result["changed"] else "nothing", result["snapshot_after"]
    except PaimonError as error:
        outcome = error.kind
    print(json.dumps([part, at, outcome, number]), flush=True)
"""


class Writers:
    """Processes of ours, each committing one row after the other into a partition of its own."""

    def __init__(self, root: Path, parts: str, commits: int, mode: str) -> None:
        self.snapshots: dict[tuple[str, int], int | None] = {}
        command, pipe = [sys.executable, "-c", _WRITER, str(root)], subprocess.PIPE
        self._processes = [
            subprocess.Popen([*command, part, str(commits), mode], stdin=pipe, stdout=pipe, text=True, cwd=REPO_ROOT)
            for part in parts
        ]
        wait_until_ready(self._processes)

    def go(self) -> None:
        set_off(self._processes)

    def running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def outcomes(self) -> dict[tuple[str, int], str]:
        """(partition, number of the commit) -> landed, or the kind of the error."""
        told: dict[tuple[str, int], str] = {}
        for process in self._processes:
            out, _ = process.communicate(timeout=500)
            assert process.returncode == 0
            for part, at, outcome, number in map(json.loads, out.splitlines()):
                told[part, at] = outcome
                self.snapshots[part, at] = number
        return told

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def racing(root: Path, parts: str, commits: int, mode: str) -> Iterator[Writers]:
    writers = Writers(root, parts, commits, mode)
    try:
        yield writers
    finally:
        writers.end()


KINDS: dict[str, dict[str, Any]] = {
    "append": {"primary_keys": (), "bucket": "-1"},
    # Java compacts at every fifth file, so its commits come in pairs.
    "primary-key": {"bucket": "1"},
    "overwrite": {"primary_keys": (), "bucket": "-1"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.every(2)
def test_nothing_is_lost_beside_java_and_what_it_lands_on_is_reported(
    java_oracle: JavaOracle, tmp_path: Path, kind: str
) -> None:
    world = World(tmp_path, java_oracle)
    world.create(**KINDS[kind])
    written = []
    with racing(world.root, "ab", 15, "overwrite" if kind == "overwrite" else "append") as ours:
        ours.go()
        while ours.running() and len(written) < 1000:
            world.write([{"p": "j", "k": len(written), "v": "java"}])
            written.append(("j", len(written)))
        told = ours.outcomes()
    rows = {(p, k) for p, k, _ in world.same()}
    # A commit of ours on top of one that Java then replaces takes Java's place in turn: no more than were replaced.
    replaced = {one for one, how in told.items() if how != "conflict"} - rows
    assert len(set(written) - rows) <= len(replaced), "ours landed on a commit of Java's"
    assert set(told.values()) <= {"landed", "outcome-unknown", "conflict"}
    if kind == "overwrite":
        # Each commit replaces the one before; the last that landed is what stands.
        last = {part: [at for (of, at), how in told.items() if of == part and how == "landed"][-1] for part in "ab"}
        unknown = {one for one, how in told.items() if how == "outcome-unknown"}
        assert {(p, k) for p, k in rows if p != "j"} - unknown <= set(last.items())
        assert {p for p, _ in rows} == set("abj")
    else:
        # Java's rename can also land after we looked for the last time: the snapshot of that number is then its own.
        gone = {one for one, how in told.items() if how == "landed"} - rows
        for one in gone:
            number = ours.snapshots[one]
            assert number is not None
            writer = world.main.snapshot(number).writer_version or "Java"
            assert not writer.startswith("airflow-paimon"), f"{one} landed as snapshot {number}, and is not there"
        assert len(gone) <= 2, "a hole of milliseconds"
        assert not rows & {one for one, how in told.items() if how == "conflict"}, "refused, and there"
    assert world.is_sound()
