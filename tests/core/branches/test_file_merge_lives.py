"""Random lives of two sides of a table without keys, with deletion vectors: what a merge by file does to their rows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry, ManifestEntry
from airflow_paimon.core.publish.file_merge_plan import Change, Commit, FileSides, Vector, merge_files
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.partitions import InBucket
from tests.core.publish.test_file_merge_plan import BUCKET, entry
from tests.randomness import chance as chance_of

Rows = Mapping[int, int]
"""Id of a row -> its version."""


@dataclass
class Files:
    """What every file holds, and every vector deletes; names are given out once."""

    rows: dict[str, dict[int, int]] = field(default_factory=dict)
    deleted: dict[str, set[int]] = field(default_factory=dict)
    ids: int = 0

    def new(self, rows: Mapping[int, int]) -> str:
        name = f"f{len(self.rows)}"
        self.rows[name] = dict(rows)
        return name

    def vector(self, file: str, ids: set[int]) -> Vector:
        index = f"i{len(self.deleted)}"
        self.deleted[index] = ids
        where = DeletionVectorRange(file, 1, 9)
        return Vector(IndexEntry(0, b"a", 0, "DELETION_VECTORS", index, 9, 1, (where,)), where, frozenset(ids))


@dataclass
class Side:
    files: Files
    live: dict[str, ManifestEntry] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)

    def copy(self) -> Side:
        return Side(self.files, dict(self.live), dict(self.vectors))

    def rows_in(self, name: str) -> dict[int, int]:
        gone = self.vectors[name].content if name in self.vectors else frozenset()
        assert isinstance(gone, frozenset)
        return {i: v for i, v in self.files.rows[name].items() if i not in gone}

    @property
    def rows(self) -> dict[int, int]:
        found = [(i, v) for name in self.live for i, v in self.rows_in(name).items()]
        assert len(dict(found)) == len(found), "a row occurs twice"
        return dict(found)

    def commit(
        self, removed: list[str], rows: Rows | None, *, compacts: bool = False, marked: str | None = None
    ) -> None:
        gone = {n: self.live.pop(n) for n in removed}
        for name in removed:
            self.vectors.pop(name, None)
        added = {}
        if rows:
            name = self.files.new(rows)
            added[name] = self.live[name] = entry(name)
        touched = frozenset([marked] if marked else [])
        self.commits.append(Commit(bucket=BUCKET, added=added, removed=gone, marked=touched, compacts=compacts))

    def step(self, chance: random.Random) -> None:
        kind = chance.choice(["append", "append", "rewrite", "compact", "mark"])
        full = [n for n in sorted(self.live) if self.rows_in(n)]
        if kind == "append" or not full:
            first, self.files.ids = self.files.ids, self.files.ids + 2
            self.commit([], {first: 0, first + 1: 0})
        elif kind == "compact":
            some = chance.sample(full, min(len(full), chance.randint(2, 3)))
            self.commit(some, {i: v for n in some for i, v in self.rows_in(n).items()}, compacts=True)
        elif kind == "rewrite":
            name = chance.choice(full)
            rows = self.rows_in(name)
            one = chance.choice(sorted(rows))
            changed = {**rows, one: 1000 + len(self.files.rows)}
            self.commit([name], {i: v for i, v in changed.items() if i != one} if chance.random() < 0.3 else changed)
        else:
            name = chance.choice(full)
            before = self.vectors[name].content if name in self.vectors else frozenset()
            assert isinstance(before, frozenset)
            self.vectors[name] = self.files.vector(name, {*before, chance.choice(sorted(self.rows_in(name)))})
            self.commit([], None, marked=name)

    def index(self) -> list[IndexEntry]:
        return [v.entry for v in self.vectors.values()]

    def since(self, base: Side) -> Change:
        def group(names: set[str], of: Side) -> dict[BucketKey, dict[object, ManifestEntry]]:
            return {BUCKET: {of.live[n].identifier: of.live[n] for n in sorted(names)}} if names else {}

        added, removed = (
            group(self.live.keys() - base.live.keys(), self),
            group(base.live.keys() - self.live.keys(), base),
        )
        return Change(difference=Difference(added, removed), vectors=dict(self.vectors), commits=list(self.commits))  # type: ignore[arg-type]


def bucket_of(one: InBucket) -> BucketKey:
    return BucketKey(one.partition, one.bucket)


def merged(main: Side, base: Side, fix: Side, published: Change | None, revert_compaction: bool) -> Side:
    """Main after the publish, as its entries and its index say."""
    sides = FileSides(theirs=fix.since(base), ours=main.since(base), vectors=base.vectors, published=published)
    found = merge_files("d.t", sides, main.index(), lambda b: "a", bucket_of, revert_compaction=revert_compaction)
    out = Side(main.files, dict(main.live), {}, list(main.commits))
    gone = {e.file.file_name: e for c in found.changes for e in c.delete}
    come = {e.file.file_name: e for c in found.changes for e in c.add}
    assert gone.keys() <= out.live.keys() and not come.keys() & out.live.keys() - gone.keys()
    out.live = {n: e for n, e in out.live.items() if n not in gone} | come
    known = {**fix.vectors, **base.vectors, **main.vectors}
    by_file = {(v.entry.file_name, v.range.data_file): v for s in (fix, base, main) for v in s.vectors.values()}
    for e in main.index() if found.index is None else found.index:
        for r in e.deletion_vector_ranges or ():
            assert r is not None and r.data_file in out.live and known
            out.vectors[r.data_file] = by_file[e.file_name, r.data_file]
    marked = [n for n in out.live if out.vectors.get(n) != main.vectors.get(n)]
    for name in marked:
        out.commits.append(Commit(bucket=BUCKET, added={}, removed={}, marked=frozenset([name])))
    out.commits.append(Commit(bucket=BUCKET, added=come, removed=gone))
    return out


@pytest.mark.random
def test_every_merge_is_one_by_row_or_refused(request: pytest.FixtureRequest) -> None:
    """A row that the branch changed is as on the branch, every other one as on main; also of second publishes."""
    chance, done = chance_of(request.node.name), 0
    for _ in range(600):
        files = Files()
        base = Side(files)
        for _ in range(chance.randint(1, 5)):
            base.step(chance)
        main, fix, published, expected = base.copy(), base.copy(), None, base.rows
        for _ in range(3):
            for side in (main, fix):
                for _ in range(chance.choice([0, 1, 1, 2, 4])):
                    side.step(chance)
            ours, theirs, revert_compaction = main.rows, fix.rows, chance.random() < 0.5
            try:
                main = merged(main, base, fix, published, revert_compaction)
            except ConflictError as error:
                assert any(c.removed or c.marked for c in main.commits), error.message
                assert any(c.removed or c.marked for c in fix.commits), error.message
                continue
            changed = {i for i in expected.keys() | theirs.keys() if expected.get(i) != theirs.get(i)}
            wanted = {i: v for i, v in ours.items() if i not in changed} | {
                i: theirs[i] for i in changed & theirs.keys()
            }
            assert main.rows == wanted
            published, expected, done = fix.since(base), theirs, done + 1
    assert done > 600
