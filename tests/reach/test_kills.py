"""SIGKILL at each change of the storage that an operation makes, on one table that lives on: a reader never meets
anything but the state before or the state after, a retry finishes what was begun, and in the end nothing is lost and
nothing stays.

On a storage each change is tried; through a catalog, which changes the same files, every third from a random one on.
AIRFLOW_PAIMON_KILLS_EVERY=8 tries every eighth everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.metadata_expiry.references import read_references
from airflow_paimon.core.metadata_expiry.roots import RootReader
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.reachability import entry_paths
from airflow_paimon.core.table.record_kinds import HOLDS
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import perform
from tests.core.metadata_expiry.test_remove_orphan_files import Aged
from tests.places import CATALOGS, FILES, PLACES, Place, Servers
from tests.randomness import chance
from tests.reach.local_copies import assert_readable, local_copy
from tests.reach.mortal import COMMITTED, Mortal, mortal
from tests.soundness import files_on_disk, named_files
from tests.stores import delete_tree

COLUMNS = [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "STRING")]
ROUNDS = 60
EVERY = int(os.environ.get("AIRFLOW_PAIMON_KILLS_EVERY", "0"))
EXPIRED: dict[str, Any] = {
    "older_than": "0 s", "retain_min": 1, "retain_max": 2, "grace": "0 s", "retry_window": "0 s",
    "writers_stopped": True,
}  # fmt: skip
Rows = list[tuple[str, int, str]]


@pytest.fixture(scope="module")
def program() -> Iterator[Mortal]:
    with mortal() as running:
        yield running


@dataclass
class Life:
    """A table whose operations die, and the rows that it must have."""

    place: Place
    table: Table
    program: Mortal
    rows: Rows = field(default_factory=list)
    deaths: dict[str, int] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    """What has died with its snapshot just put."""
    immortal: set[str] = field(default_factory=set)
    """What finished although it was to die: it makes fewer changes than that."""

    def write(self, view: Table, *rows: tuple[str, int, str]) -> None:
        dt, k, v = map(list, zip(*rows, strict=True))
        write_arrow(view, pa.table({"dt": dt, "k": pa.array(k, pa.int32()), "v": v}))

    def dies_and_ends(
        self, dies: int | str, operation: str, after: Rows | None = None, **values: Any
    ) -> dict[str, Any]:
        """Let an operation die; look; run it again. ``after``: main's rows then."""
        values = {"operation_id": f"{operation}-{dies}-{values.get('tag')}", **values}
        if dies and operation not in self.immortal:
            brief = {"lock-acquire-timeout": "2 s"} if self.place.catalog else {}
            dying = replace(self.place, catalog={**self.place.catalog, **brief})
            for _ in range(5):  # the lock of the one that died before may not have expired yet
                said = self.program.perform(operation, dying.request("t", **values), dies)
                if "nothing was written" not in said.get("error", ""):
                    break
            if "killed" in said:
                self.deaths[operation] = self.deaths.get(operation, 0) + 1
                self.committed |= {operation} if dies == COMMITTED else set()
            else:
                assert "error" not in said, (operation, dies, said)
                self.immortal |= {operation} if dies != COMMITTED else set()
            assert self.seen() in (self.rows, after or self.rows), f"{operation} died at {dies}: {said}"
        done = self.program.perform(operation, self.place.request("t", **values))
        assert "error" not in done, f"{operation} again, after it had died at {dies}: {done}"
        self.rows = after or self.rows
        assert self.seen() == self.rows, f"{operation} again, after it had died at {dies}"
        return done

    def seen(self, branch: str = "main") -> Rows:
        return sorted((r["dt"], r["k"], r["v"]) for r in read_arrow(self.place.open("t", branch)).to_pylist())


@pytest.mark.parametrize("name", PLACES)
def test_whatever_dies_is_finished_by_a_retry(servers: Servers, name: str, program: Mortal) -> None:
    place = servers.place(name)
    options = {"bucket": "1", "num-sorted-run.compaction-trigger": "2"}
    table = place.create("t", COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"], options=options)
    life = Life(place, table, program)
    life.write(table, ("a", 1, "x"), ("b", 1, "x"))
    life.rows = [("a", 1, "x"), ("b", 1, "x")]
    step = EVERY or (3 if name in CATALOGS else 1)
    for dies in (COMMITTED, *range(1 + chance(name).randrange(step), ROUNDS, step)):
        one_round(life, dies)
        if life.immortal >= life.deaths.keys():
            break
    else:
        pytest.fail(f"{ROUNDS} changes were not enough: {life.deaths}")
    assert step > 1 or all(count > 2 for count in life.deaths.values()), str(life.deaths)
    assert {"merge_branch", "rollback_to", "compact"} <= life.committed
    clean(life)
    print(f"{name}: {life.deaths}")


def one_round(life: Life, dies: int | str) -> None:
    """A branch lives from its creation to its deletion, beside commits, compaction and expiry of main."""
    before = life.rows
    fixed = sorted([("a", 1, f"fixed {dies}"), *(row for row in before if row[:2] != ("a", 1))])
    life.dies_and_ends(dies, "create_branch", branch="fix", snapshot=life.table.latest_snapshot_id())
    life.write(life.table.branch("fix"), ("a", 1, f"fixed {dies}"))
    later = [row for row in fixed if row[:2] != ("b", 1)] + [("b", 1, f"later {dies}")]
    life.write(life.table, ("b", 1, f"later {dies}"))
    life.rows = sorted([row for row in before if row[:2] != ("b", 1)] + [("b", 1, f"later {dies}")])
    back = life.rows
    published = life.dies_and_ends(dies, "merge_branch", after=sorted(later), branch="fix", writers_stopped=True)
    undo = published["details"]["undo_tag"]
    back_by = life.dies_and_ends(dies, "rollback_to", after=back, tag=undo)
    for tag in (undo, back_by["details"]["undo_tag"]):
        life.dies_and_ends(dies, "delete_tag", tag=tag)
    life.dies_and_ends(dies, "compact")
    assert life.seen("fix") == fixed
    if life.place.name in FILES:
        life.dies_and_ends(dies, "expire_snapshots", **EXPIRED)
        assert life.seen("fix") == fixed
    life.dies_and_ends(dies, "delete_branch", branch="fix", force=True)
    assert life.table.branch_names() == [], f"{dies}: {life.table.store.walk('branch')}"
    checked = life.program.perform("check_table", life.place.request("t"))
    assert checked["details"]["errors"] == 0, checked


def clean(life: Life) -> None:
    """What the dead left goes as orphans; the rest is what Paimon reads, and no file of it is missing."""
    assert_readable(life.table)
    if life.place.name not in FILES:
        return
    head = life.table.latest_snapshot_id()
    life.dies_and_ends(0, "create_branch", branch="live", snapshot=head, operation_id="live")
    life.write(life.table.branch("live"), ("a", 2, "only here"))
    living = life.seen("live")
    delete_tree(life.table.store, HOLDS.folder)  # the week of those who died is over
    life.dies_and_ends(0, "expire_snapshots", **EXPIRED, keep_undo=False, operation_id="last")
    request = build_request("remove_orphan_files", life.place.request("t"))
    context = open_context(request)
    aged = replace(context.table, store=Aged(context.table.store))
    assert perform(replace(context, table=aged), request).details["files"] > 0
    assert life.seen() == life.rows
    assert life.seen("live") == living
    assert_readable(life.table)
    with local_copy(life.table) as done:
        assert files_on_disk(done) <= set().union(*named_files(done).values()) | mentioned(done)


def mentioned(table: Table) -> set[str]:
    """Paths that a manifest names at all: what it says is deleted stays until it goes itself."""
    roots = RootReader(table).gather().living
    entries = [
        e for n in read_references(table, roots) for part in read_entries(table, list(n.manifests)) for e in part
    ]
    return set(entry_paths(table.schema(), entries))
