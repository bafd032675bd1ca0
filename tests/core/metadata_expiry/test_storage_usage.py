"""storage_usage: what each holder names and alone names, counted in another way, and what really becomes free."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.metadata_expiry.referenced_files_plan import ManifestChanges, ReferencedFiles, RootFiles
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.table.paths import MAIN, BranchPaths, protects
from airflow_paimon.core.table.table import Table
from tests.core.metadata_expiry.test_remove_orphan_files import ORPHANS, UNKNOWN, clean, plant, sound
from tests.core.tables import append, copied, make_table, overwrite, rewrite, run
from tests.soundness import named_files
from tests.stores import CountingStore

Holders = dict[tuple[str, str, str | None], dict[str, Any]]


def usage(table: Table, **values: Any) -> Mapping[str, Any]:
    result = run(table, "storage_usage", **values)
    assert not result.changed
    return result.details


def holders(table: Table) -> Holders:
    return {(h["kind"], h["branch"], h["name"]): h for h in usage(table, limit=0)["references"]}


def on_disk(table: Table) -> dict[str, int]:
    return {info.name: info.size for info in table.store.files("")}


@pytest.fixture
def table() -> Table:
    """Main rewrites a bucket again and again; tags and branches hold what it was."""
    chance = random.Random(7)
    often = {"manifest.merge-min-count": "3"}  # so that most states have manifests that were only merged
    table = make_table(f"memory://{uuid.uuid4()}/wh", **often)
    for dt in "abcd":
        append(table, dt, rows=3)
    for number in range(3):
        run(table, "create_tag", tag=f"t{number}")
        for _ in range(3):
            rewrite(table, chance.choice("abcd"))
        overwrite(table, chance.choice("abcd"), bucket=1)
    run(table, "create_branch", branch="fix", tag="t1")
    run(table, "create_branch", branch="other", snapshot=table.latest_snapshot_id())
    for dt in "abb":
        rewrite(table.branch("fix"), dt)
    run(table.branch(MAIN), "create_tag", tag="inner", branch="fix")
    rewrite(table.branch("fix"), "c")
    rewrite(table, "c")
    run(table, "expire_snapshots", older_than="0 s", retain_min=2, grace="0 s", writers_stopped=True)
    return table


def ends_with(kind: str, branch: str, name: str | None, path: str) -> bool:
    """Whether the root at a path ends with a holder."""
    own = BranchPaths(branch)
    if kind == "branch":
        ours = path.startswith(own.root)
        return ours or (path.startswith("tag/tag-") and protects(path.removeprefix("tag/tag-")) == branch)
    if kind == "tag":
        return path == f"{own.tag_dir}/tag-{name}"
    if kind == "tags":
        return path.startswith(f"{own.tag_dir}/tag-") and not path.rpartition("/tag-")[2].startswith("airflow-paimon-")
    raise AssertionError(kind)


def test_each_holder_counts_what_it_names_and_what_nothing_else_names(table: Table) -> None:
    sizes, named, found = on_disk(table), named_files(table), holders(table)
    assert {key[0] for key in found} == {"branch", "tag", "tags", "snapshots"}
    for (kind, branch, name), holder in found.items():
        if kind == "snapshots":
            continue
        mine = {path for path in named if ends_with(kind, branch, name, path)}
        assert mine and holder["roots"] == len(mine)
        own = {p for p in sizes if p.startswith(BranchPaths(branch).root)} if kind == "branch" else set()
        names = set().union(mine, own, *(named[path] for path in mine))
        alone = names - set().union(*(paths for path, paths in named.items() if path not in mine))
        assert (holder["files"], holder["bytes"]) == (len(names), sum(map(sizes.__getitem__, names))), holder
        assert (holder["frees_files"], holder["frees_bytes"]) == (len(alone), sum(map(sizes.__getitem__, alone)))
    assert sum(h["frees_files"] > 1 for h in found.values()) > 3, "the table is too simple"


@pytest.mark.parametrize(
    ("holder", "operation", "values"),
    [
        (("branch", "fix", "fix"), "delete_branch", {"branch": "fix", "force": True}),
        (("branch", "other", "other"), "delete_branch", {"branch": "other", "force": True}),
        (("tag", "main", "t0"), "delete_tag", {"tag": "t0"}),
        (("tag", "main", "t2"), "delete_tag", {"tag": "t2"}),
        (("tag", "fix", "inner"), "delete_tag", {"tag": "inner", "branch": "fix"}),
    ],
)
def test_what_it_says_becomes_free(
    table: Table, holder: tuple[str, str, str], operation: str, values: dict[str, Any]
) -> None:
    """Also files that a manifest of others still lists as deleted."""
    clean(table)
    before, said = on_disk(table), holders(table)[holder]
    run(table, operation, **values)
    clean(table)
    after = on_disk(table)
    gone = {p for p in before if p not in after and not p.startswith("_airflow_paimon/")}
    assert (len(gone), sum(map(before.__getitem__, gone))) == (said["frees_files"], said["frees_bytes"])
    assert {p for p in after if p not in before and not p.startswith("_airflow_paimon/")} == set()
    sound(table)


def test_old_snapshots_free_what_their_expiry_frees(table: Table) -> None:
    for _ in range(3):
        rewrite(table, "a")
    clean(table)
    before, said = on_disk(table), holders(table)[("snapshots", "main", None)]
    run(table, "expire_snapshots", older_than="0 s", retain_min=1, grace="0 s", retry_window="0 s", keep_undo=False,
        writers_stopped=True)  # fmt: skip
    clean(table)
    gone = {p: size for p, size in before.items() if p not in on_disk(table) and not p.startswith("_airflow_paimon/")}
    assert (len(gone), sum(gone.values())) == (said["frees_files"], said["frees_bytes"])
    assert len(table.snapshot_ids()) == 1 and said["frees_files"] > 3


def test_the_parts_add_up_and_unreferenced_files_are_told_by_age(table: Table) -> None:
    clean(table)
    tidy = usage(table)
    assert tidy["unreferenced"]["files"] == 0
    plant(table, [*ORPHANS, *UNKNOWN])
    found = usage(table)
    sizes = on_disk(table)
    assert found["total"] == {"files": len(sizes), "bytes": sum(sizes.values())}
    assert found["unreferenced"] == found["young"] == {"files": len(ORPHANS), "bytes": 5 * len(ORPHANS)}
    assert found["unknown"] == {"files": len(UNKNOWN), "bytes": 5 * len(UNKNOWN)}
    parts = ("referenced", "unreferenced", "unknown", "records", "others")
    assert {k: sum(found[p][k] for p in parts) for k in ("files", "bytes")} == found["total"]
    in_two_days = str(int(time.time() * 1000) + 2 * 86_400_000)
    assert usage(table, now=in_two_days)["young"]["files"] == 0
    assert [h["frees_bytes"] for h in found["references"]] == sorted(
        (h["frees_bytes"] for h in found["references"]), reverse=True
    )


def test_undo_points_and_the_trash_hold_together_what_none_holds_alone(table: Table) -> None:
    other = copied(table)
    for _ in range(2):
        before = other.latest_snapshot_id()
        rewrite(other, "a")
        run(other, "rollback_to", snapshot=before)
    found = holders(other)
    assert found[("undo", "main", None)]["roots"] == 4
    ways = {h["way"].partition(",")[0] for (kind, _, name), h in found.items() if kind == "tag" and "airflow-" in name}
    assert ways == {"expire_tags"}, "no advice to delete a tag of the package's own"
    run(other, "expire_tags", older_than="0 s", include_unlimited=True, now=str(int(time.time() * 1000) + 60_000))
    found = holders(other)
    assert found[("trash", "main", None)]["roots"] >= 3 and ("tag", "main", "t0") not in found


def test_the_list_ends_at_the_limit(table: Table) -> None:
    everything = usage(table, limit=0)["references"]
    some = usage(table, limit=2)
    assert (some["references"], some["references_left_out"]) == (everything[:2], len(everything) - 2)
    with pytest.raises(InvalidInputError, match="limit"):
        usage(table, limit=-1)


def test_an_empty_table_has_no_holders() -> None:
    found = usage(make_table(f"memory://{uuid.uuid4()}/wh"))
    assert (found["references"], found["live"]["files"], found["others"]["files"]) == ([], 0, 1)


@pytest.mark.damages_metadata
def test_what_cannot_be_read_is_named(table: Table) -> None:
    snapshot = table.latest_snapshot()
    assert snapshot is not None
    table.store.delete(f"manifest/{snapshot.base_manifest_list}")
    with pytest.raises(FormatError, match=snapshot.base_manifest_list):
        usage(table)


@pytest.mark.parametrize(("counts", "named"), [((1, -1), 0), ((1, -1, 1), 1), ((1, -1, -1), 1), ((1, 1, -1), 1)])
def test_only_what_is_added_as_often_as_deleted_is_not_named(counts: tuple[int, ...], named: int) -> None:
    """A state that deletes a file more often than it adds it is broken, and keeps the file."""
    changes = {
        f"m{at}": ManifestChanges(np.array([0], np.int32), np.array([n], np.int32)) for at, n in enumerate(counts)
    }
    root = RootFiles(state=tuple(changes), changelog=(), others=np.zeros(0, np.int32))
    one = {"digests": np.ones(1, np.uint64), "sizes": np.ones(1, np.int64), "external": np.zeros(1, bool)}
    assert ReferencedFiles(changes=changes, named=[root], **one).times().tolist() == [named]


def test_each_file_of_metadata_is_read_once(table: Table) -> None:
    """Roots are looked at twice, and read again only where they changed."""
    store = CountingStore(table.store)
    read_usage(replace(table, store=store), int(time.time() * 1000))
    metadata = [path for path in on_disk(table) if not path.startswith("dt=")]
    assert len(metadata) / 3 < store.tally.requests <= len(metadata) + 60
