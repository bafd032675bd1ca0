"""Which bucket a key's hash gets, without any store."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.hash_index import (
    Hashes,
    distinct,
    extended_hash_index,
    read_hash_index,
    sorting_order,
    write_hash_index,
)
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.dynamic_buckets_plan import (
    Assigner,
    BucketRules,
    ByBucket,
    bucket_rules,
    check_hashes,
    find_buckets,
)
from airflow_paimon.core.table.options import TableOptions
from tests.randomness import chance


def hashes(*values: int) -> Hashes:
    return np.array(values, np.int32)


def sizes_of(index: dict[int, Hashes]) -> dict[int, int]:
    return {bucket: len(held) for bucket, held in index.items()}


def rules(target: int = 5, most: int = 32767, shares: int = 1, *, tasks_share_buckets: bool = False) -> BucketRules:
    return BucketRules(target_rows=target, max_buckets=most, shares=shares, tasks_share_buckets=tasks_share_buckets)


def assigner(given: dict[int, Hashes], use: BucketRules) -> Assigner:
    return Assigner(ByBucket.of(given.items()), sizes_of(given), use)


def test_the_index_file_is_that_of_paimon() -> None:
    """Hashes of INT keys 1 to 4, as Java 2.0.0 has written them; their order in the file means nothing."""
    found = hash_rows([pa.array([1, 2, 3, 4], pa.int32())], [parse_type("INT NOT NULL")])
    stored = bytes.fromhex("5759f99e4fe4bbf0d206e547564770ca")
    assert read_hash_index(stored, 4, name="f").tolist() == found.tolist()
    written = write_hash_index(np.concatenate([found, found]))
    assert sorted(read_hash_index(written, 4, name="f").tolist()) == sorted(found.tolist())


@pytest.mark.parametrize("case", range(6))
def test_new_hashes_are_put_into_the_index_of_a_bucket(case: int) -> None:
    """Whether the file that is there is sorted, as ours are, or not, as another engine's may be."""
    random = np.random.default_rng(chance(case).getrandbits(32))
    held = distinct(random.integers(-(2**31), 2**31, int(random.integers(0, 60))).astype(np.int32))
    given = random.permutation(held) if case % 2 else held
    new = np.concatenate([random.integers(-(2**31), 2**31, int(random.integers(0, 9))).astype(np.int32), held[:3]])
    assert extended_hash_index(given, new) == write_hash_index(np.concatenate([held, new]))


@pytest.mark.parametrize(("size", "count"), [(8, 1), (8, 3), (7, 2), (0, 1), (8, -2), (8, 2**62)])
def test_an_index_file_of_another_length_is_corrupt(size: int, count: int) -> None:
    with pytest.raises(FormatError, match="f: the hash index has"):
        read_hash_index(b"\0" * size, count, name="f")


def test_known_hashes_stay_and_new_ones_fill_the_first_bucket_with_room() -> None:
    """The case of Java's HashBucketAssignerTest: it gives a new bucket to the fourth one as well."""
    one = assigner({0: hashes(2, 5), 3: hashes(4, 7)}, rules())
    assert one.assign(hashes(7, 2, 8, 8, 10, 4)).tolist() == [3, 0, 0, 0, 0, 3]
    assert {b: h.tolist() for b, h in one.added().items()} == {0: [8, 10]}
    assert one.assign(hashes(12, 8)).tolist() == [0, 0]
    assert one.assign(hashes(14)).tolist() == [2], "bucket 0 is full, and 3 is not of this hash's share"


def test_equal_hashes_keep_their_order() -> None:
    given = hashes(7, -1, 7, -(2**31), 2**31 - 1, -1, 0)
    assert sorting_order(given).tolist() == np.argsort(given, kind="stable").tolist()
    assert not len(sorting_order(hashes()))


def test_buckets_fill_up_one_after_the_other() -> None:
    one = assigner({}, rules(3))
    assert one.assign(hashes(*range(8))).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert one.assign(hashes(100, 101)).tolist() == [2, 3]


def test_the_number_of_buckets_is_limited_and_a_hash_never_has_two() -> None:
    one = assigner({}, rules(2, 3))
    first = one.assign(hashes(*range(20)))
    assert set(first.tolist()) == {0, 1, 2}
    assert one.assign(hashes(*range(20))).tolist() == first.tolist()
    again = assigner(dict(one.added()), rules(2, 3))
    assert again.assign(hashes(*range(20))).tolist() == first.tolist() and not again.added()


def test_hashes_of_several_buckets_are_found_on_both_sides_of_zero() -> None:
    known = ByBucket.of([(4, hashes(-1, -(2**31), 7)), (1, hashes(0, -2, 2**31 - 1)), (9, hashes())])
    assert find_buckets(known, hashes(-(2**31), -2, -1, 0, 5, 7, 2**31 - 1)).tolist() == [4, 1, 4, 1, -1, 4, 1]


def test_a_hash_in_two_buckets_is_corrupt() -> None:
    with pytest.raises(FormatError, match=r"1 key hashes .* the first of them in 1 and 4"):
        check_hashes(ByBucket.of([(1, hashes(-7, 9)), (4, hashes(8, -7))]))


@pytest.mark.parametrize("case", range(8))
def test_hashes_are_found_whatever_their_order_in_an_index(case: int) -> None:
    random = np.random.default_rng(chance(case).getrandbits(32))
    parts = np.array_split(distinct(random.integers(-(2**31), 2**31, 200).astype(np.int32)), int(random.integers(1, 9)))
    index = [(at, random.permutation(part) if at % 2 else part) for at, part in enumerate([*parts, hashes()])]
    known, model = ByBucket.of(index), {number: at for at, part in index for number in part.tolist()}
    check_hashes(known)
    asked = np.sort(np.concatenate([*parts, random.integers(-(2**31), 2**31, 50).astype(np.int32)]))
    assert find_buckets(known, asked).tolist() == [model.get(number, -1) for number in asked.tolist()]
    index.append((77, hashes(random.choice(np.concatenate(parts)))))
    with pytest.raises(FormatError, match="1 key hashes are in the index of two buckets"):
        check_hashes(ByBucket.of(index))
    with pytest.raises(FormatError, match="the first of them in 3 and 20"):
        check_hashes(ByBucket.of([*((at, hashes(at)) for at in range(17)), (20, hashes(3))]))


@pytest.mark.parametrize("number", [-(2**31), 2**31 - 1, 0, -1, 2**25, 2**25 - 1, 2**26])
def test_a_hash_in_two_buckets_is_found_at_the_ends_of_what_is_compared_at_once(number: int) -> None:
    others = np.arange(-50, 50, dtype=np.int32) * 40_000_000 + 3
    index = [(4, hashes(number)), (9, distinct(np.append(others, np.int32(number))))]
    with pytest.raises(FormatError, match="the first of them in 4 and 9"):
        check_hashes(ByBucket.of(index))


@pytest.mark.parametrize("case", range(8))
def test_tasks_that_know_nothing_of_each_other_give_a_hash_one_bucket(case: int) -> None:
    """Rows of a share come to one task, each of which has its own assigner: no bucket and no hash is in two of them.

    A task that gets the known buckets with the rows, and knows no hash, does the same as one that looks them up.
    """
    random = np.random.default_rng(chance(case).getrandbits(32))
    draw = random.integers(-(2**31), 2**31, 400).astype(np.int32)
    use = rules(int(random.integers(5, 60)), int(random.integers(1, 9)), int(random.integers(1, 4)))
    use = BucketRules(target_rows=use.target_rows, max_buckets=use.max_buckets, shares=min(use.shares, use.max_buckets))
    index: dict[int, Hashes] = {}
    model: dict[int, int] = {}
    for _ in range(4):
        rows = random.choice(draw, 300)
        one_task = assigner(index, use)
        known = one_task.find(rows)
        share = one_task.share_of(rows, known)
        owner: dict[int, int] = {}
        later, counts = dict(index), sizes_of(index)
        for number in np.unique(share).tolist():
            task, told = assigner(index, use), Assigner(ByBucket(), counts, use)
            for at in np.array_split(np.flatnonzero(share == number), 3):
                part, found = rows[at], task.assign(rows[at])
                assert told.assign(part, known[at]).tolist() == found.tolist()
                for one, bucket in zip(part.tolist(), found.tolist(), strict=True):
                    assert model.setdefault(one, bucket) == bucket
                    assert owner.setdefault(bucket, number) == number
            for bucket, new in task.added().items():
                later[bucket] = np.concatenate([later.get(bucket, hashes()), new])
                assert told.added()[bucket].tolist() == new.tolist()
        index = later
        assert sorted(np.concatenate(list(index.values())).tolist()) == sorted(model)
        assert assigner(index, use).find(hashes(*model)).tolist() == list(model.values())
        assert max(index) < use.max_buckets
        full = [len(h) for h in index.values() if len(h) > use.target_rows]
        assert not full or len(index) == use.max_buckets or use.max_buckets < 9


def test_rows_of_a_share_in_several_tasks_get_the_same_bucket() -> None:
    given = {0: hashes(*range(100, 105)), 1: hashes(200)}
    tasks = [assigner(given, rules(tasks_share_buckets=True)) for _ in range(2)]
    assert tasks[0].assign(hashes(1, 2, 3, 4, 5, 6)).tolist() == [1, 2, 1, 2, 1, 2], "0 is full: share 0 begins another"
    assert tasks[1].assign(hashes(6, 9)).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("options", "tasks", "shares"),
    [
        ({}, 1, 1),
        ({}, 4, 4),
        ({}, 400, 8),
        ({"dynamic-bucket.initial-buckets": "2"}, 4, 2),
        ({"dynamic-bucket.assigner-parallelism": "20"}, 4, 20),
        ({"dynamic-bucket.max-buckets": "3"}, 4, 3),
    ],
)
def test_how_many_tasks_begin_a_partition(options: dict[str, str], tasks: int, shares: int) -> None:
    assert bucket_rules(TableOptions(options), tasks=tasks, tasks_share_buckets=False).shares == shares
