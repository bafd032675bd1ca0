"""Divides the rescale of a partition into tasks (pure): which old buckets hold the rows of which new ones.

Every bucket function is a remainder of one number of the row. So the rows of old and of new buckets meet only where
the bucket numbers agree in their remainder by a common divisor of both counts: from 4 buckets to 6, the even ones among
each other, and the odd ones. Each such class is read, merged in key order and written by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from airflow_paimon.core.table.live_files import BucketSplit

WRITERS = 8
"""Most new buckets that a task writes at once: it holds rows of each in memory. Further ones read the class again."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one task writes: of the rows of the ``old`` buckets, a whole class, those of the ``new`` ones.

    The class: bucket numbers, old and new, that leave ``rest`` when divided by ``divisor``.
    """

    old: tuple[BucketSplit, ...]
    new: tuple[int, ...]
    rest: int
    divisor: int


def plan_shares(buckets: Sequence[BucketSplit], bucket_num: int, *, hashed_alike: bool = True) -> list[Share]:
    """Return the tasks that write all rows of a partition's buckets into ``bucket_num`` ones.

    ``hashed_alike``: the rows lie where today's types of the bucket key put them; else any row may get anywhere.
    """
    divisor = gcd(*(b.total_buckets for b in buckets), bucket_num) if hashed_alike else 1
    shares = []
    for rest in range(divisor):
        old = tuple(sorted((b for b in buckets if b.bucket % divisor == rest), key=lambda b: b.bucket))
        new = tuple(range(rest, bucket_num, divisor)) if old else ()
        shares += [Share(old, new[at : at + WRITERS], rest, divisor) for at in range(0, len(new), WRITERS)]
    return shares
