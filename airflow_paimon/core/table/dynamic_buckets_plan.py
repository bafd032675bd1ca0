"""Which bucket a key of a table with dynamic buckets belongs to (pure).

A bucket is chosen by the hash of the trimmed primary key: two keys with one hash share a bucket, as Paimon's index
holds hashes only. A known hash keeps its bucket for ever. A new one goes to the first bucket with fewer hashes than
``dynamic-bucket.target-row-num``, else to a new bucket, as long as ``dynamic-bucket.max-buckets`` allows one.

A partition's hashes are divided into *shares*: each bucket belongs to one share (by its number), and so does each new
hash, which only ever gets a bucket of its share. So several tasks assign buckets without knowing of each other, if each
of them gets all rows of its shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.hash_index import Hashes, distinct, is_rising, sorting_order
from airflow_paimon.core.table.options import TableOptions

Packed = npt.NDArray[np.int64]
"""Sorted numbers: the hash, shifted left by 16 bits, and its bucket."""

_RANGES = 64
"""Of the hashes of all buckets, when it is checked that each is in one of them."""

MOST_BUCKETS = 32767
"""Bucket numbers are 16 bits wide in Paimon's own assigner."""

MOST_SHARES = 8
"""Tasks that write one new partition at once, unless an option of the table allows more: each begins a bucket."""

BUCKET_BITS = 16
"""Of a number that holds a bucket beside something else."""
BUCKET_MASK = (1 << BUCKET_BITS) - 1
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRules:
    """``target_rows``: hashes of a full bucket. ``max_buckets``: how many a partition may have. ``shares``: of a
    partition without buckets; others have one for each bucket. ``alone``: there is one share only, as there is one
    task. ``tasks_share_buckets``: rows of a share come to several tasks, so what a new hash gets must not depend on the
    other rows: a share then fills one bucket, over the target if need be.
    """

    target_rows: int
    max_buckets: int
    shares: int
    tasks_share_buckets: bool = False
    alone: bool = False

    def shares_of(self, buckets: int) -> int:
        """Return the number of shares of a partition with so many buckets."""
        return 1 if self.alone else min(buckets, self.max_buckets) or self.shares


def bucket_rules(options: TableOptions, *, tasks: int, tasks_share_buckets: bool) -> BucketRules:
    """Return the rules of a table for a write by so many tasks at once."""
    most = options.number("dynamic-bucket.max-buckets", -1)
    most = MOST_BUCKETS if most < 1 else min(most, MOST_BUCKETS)
    shares = options.number("dynamic-bucket.assigner-parallelism", min(tasks, MOST_SHARES))
    initial = options.number("dynamic-bucket.initial-buckets", 0)
    if initial > 0:
        shares = initial if tasks_share_buckets else min(shares, initial)
    return BucketRules(
        target_rows=max(1, options.number("dynamic-bucket.target-row-num", 2_000_000)),
        max_buckets=most,
        shares=max(1, min(shares, most)),
        tasks_share_buckets=tasks_share_buckets,
        alone=tasks == 1 and not tasks_share_buckets,
    )


@dataclass(frozen=True, slots=True)
class ByBucket:
    """The sorted hashes of the buckets of a partition, in which an ``Assigner`` looks them up: sorting them together
    would take longer. Of a hash that is in two buckets one is found; see ``check_hashes``.
    """

    parts: tuple[tuple[int, Hashes], ...] = ()

    @staticmethod
    def of(indexes: Iterable[tuple[int, Hashes]]) -> ByBucket:
        """Take the hash indexes of a partition, in whatever order their hashes are."""
        return ByBucket(tuple((b, hashes if is_rising(hashes) else distinct(hashes)) for b, hashes in indexes))

    @property
    def nbytes(self) -> int:
        return sum(hashes.nbytes for _, hashes in self.parts)


def check_hashes(known: ByBucket) -> None:
    """Check the index of a partition. This takes five times as long as reading it.

    Raises:
        FormatError: a hash is in two buckets.
    """
    if not _share_a_hash([hashes for _, hashes in known.parts]):
        return
    packed = np.sort(np.concatenate([(hashes.astype(np.int64) << BUCKET_BITS) | b for b, hashes in known.parts]))
    twice = np.flatnonzero((packed[1:] ^ packed[:-1]).view(np.uint64) <= BUCKET_MASK)
    one, other = (int(packed[at]) & BUCKET_MASK for at in (twice[0], twice[0] + 1))
    raise FormatError(
        f"{len(twice)} key hashes are in the index of two buckets, the first of them in {one} and {other}"
    )


def _share_a_hash(buckets: Sequence[Hashes]) -> bool:
    """Whether a hash is in two of these; each is sorted. Range by range, as one fits a core's cache."""
    ends = np.linspace(-(2**31), 2**31, _RANGES + 1)[1:-1].astype(np.int32)
    cuts = [[0, *np.searchsorted(hashes, ends).tolist(), len(hashes)] for hashes in buckets]
    for i in range(_RANGES):
        found = [hashes[cut[i] : cut[i + 1]] for hashes, cut in zip(buckets, cuts, strict=True)]
        together = np.concatenate([np.empty(0, np.int32), *found])
        together.sort()
        if (together[1:] == together[:-1]).any():
            return True
    return False


def find_buckets(known: ByBucket, hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the bucket of each hash, -1 where it is unknown. ``hashes`` are sorted."""
    found = np.full(len(hashes), -1, np.int64)
    left = np.arange(len(hashes))
    for bucket, held in known.parts:
        if len(held) and len(left):  # a hash is in one bucket only
            wanted = hashes[left]
            hits = held[np.minimum(np.searchsorted(held, wanted), len(held) - 1)] == wanted
            found[left[hits]] = bucket
            left = left[~hits]
    return found


def _look_up(packed: Packed, hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the bucket of each hash, -1 where it is unknown. Sorted hashes are found several times as fast."""
    if not len(packed):
        return np.full(len(hashes), -1, np.int64)
    at = np.minimum(np.searchsorted(packed, hashes.astype(np.int64) << BUCKET_BITS), len(packed) - 1)
    found = packed[at]
    return np.where(found >> BUCKET_BITS == hashes, found & BUCKET_MASK, -1)


class Assigner:
    """Assigns the buckets of one partition and remembers the new hashes."""

    def __init__(self, known: ByBucket, sizes: Mapping[int, int], rules: BucketRules) -> None:
        """``sizes``: how many hashes each bucket of the partition has, also those without one in ``known``."""
        self._rules = rules
        self._known = known
        self._runs: list[Packed] = []
        self._sizes = dict(sizes)
        self._shares = rules.shares_of(len(self._sizes))
        self._filled: dict[int, int] = {}
        self._added: dict[int, list[Hashes]] = {}

    def find(self, hashes: Hashes, known: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """Return the bucket of each hash that has one, else -1. ``known``: as in ``assign``."""
        if known is not None:
            return self._where_unknown(hashes, known, known, self.find)
        order = sorting_order(hashes)
        found = np.empty(len(hashes), np.int64)
        found[order] = self._look_up(hashes[order])
        return found

    def share_of(self, hashes: Hashes, found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the share of each hash: that of its bucket, if it has one. ``found``: what ``find`` returns."""
        shares: npt.NDArray[np.int64] = np.where(found < 0, np.abs(hashes.astype(np.int64)), found) % self._shares
        return shares

    def assign(self, hashes: Hashes, known: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """Return the bucket of each hash. ``known``: the buckets of those rows whose key was found, else -1; a key that
        was not found may go where another one with its hash is."""
        if known is not None:
            return self._where_unknown(hashes, known, known, self.assign)
        order = sorting_order(hashes)
        ordered = hashes[order]
        first = np.ones(len(ordered), bool)  # of those that are the same
        first[1:] = ordered[1:] != ordered[:-1]
        each = ordered[first]
        buckets = self._look_up(each)
        unknown = buckets < 0
        if unknown.any():
            new = each[unknown]
            buckets[unknown] = self._place(new)
            self._remember(new, buckets[unknown])
        assigned = np.empty(len(hashes), np.int64)
        assigned[order] = buckets[np.cumsum(first) - 1]
        return assigned

    @staticmethod
    def _where_unknown(
        hashes: Hashes,
        known: npt.NDArray[np.int64],
        values: npt.NDArray[np.int64],
        find: Callable[[Hashes], npt.NDArray[np.int64]],
    ) -> npt.NDArray[np.int64]:
        unknown = known < 0
        if not unknown.any():
            return values
        out = values.copy()
        out[unknown] = find(hashes[unknown])
        return out

    def added(self) -> Mapping[int, Hashes]:
        """Return the hashes that ``assign`` has given a bucket to, by bucket."""
        return {bucket: np.concatenate(parts) for bucket, parts in self._added.items()}

    def _look_up(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        found = find_buckets(self._known, hashes)
        for run in self._runs:
            found = np.maximum(found, _look_up(run, hashes))
        return found

    def _place(self, new: Hashes) -> npt.NDArray[np.int64]:
        out = np.empty(len(new), np.int64)
        shares = np.abs(new.astype(np.int64)) % self._shares
        for share in np.unique(shares).tolist():
            mine = np.flatnonzero(shares == share)
            start = 0
            while start < len(mine):
                bucket, room = self._open_bucket(share)
                taken = mine[start : start + room] if bucket >= 0 else mine[start:]
                if bucket >= 0:
                    out[taken] = bucket
                    self._sizes[bucket] += len(taken)
                else:
                    out[taken] = self._overfull(share, new[taken])
                start += len(taken)
        return out

    def _open_bucket(self, share: int) -> tuple[int, int]:
        """Return a bucket of a share that takes new hashes, and how many; -1: all are full, and no other may begin."""
        if share in self._filled:
            return self._filled[share], _NO_LIMIT
        target = self._rules.target_rows
        bucket = next((b for b in self._own(share) if self._sizes[b] < target), -1)
        if bucket < 0:
            bucket = next(b for b in range(share, MOST_BUCKETS + self._shares, self._shares) if b not in self._sizes)
            bucket = bucket if bucket < self._rules.max_buckets else -1
        if bucket < 0:
            return -1, 0
        self._sizes.setdefault(bucket, 0)
        if self._rules.tasks_share_buckets:
            self._filled[share] = bucket
            return bucket, _NO_LIMIT
        return bucket, target - self._sizes[bucket]

    def _own(self, share: int) -> list[int]:
        return sorted(b for b in self._sizes if b % self._shares == share)

    def _overfull(self, share: int, new: Hashes) -> npt.NDArray[np.int64]:
        """Spread hashes over buckets that are full. Paimon draws lots; here a hash always gets the same one."""
        full = np.array(self._own(share), np.int64)  # at least one: there are no more shares than buckets
        chosen: npt.NDArray[np.int64] = full[np.abs(new.astype(np.int64)) // self._shares % len(full)]
        return chosen

    def _remember(self, new: Hashes, buckets: npt.NDArray[np.int64]) -> None:
        for bucket in np.unique(buckets).tolist():
            self._added.setdefault(bucket, []).append(new[buckets == bucket])
        run = (new.astype(np.int64) << BUCKET_BITS) | buckets
        # Runs of growing size, so that a row is moved a few times only.
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
        self._runs.append(np.sort(run))
