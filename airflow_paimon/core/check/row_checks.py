"""What a check asks of the rows. The data layer implements it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_paimon.core.format.hash_index import Hashes
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.table import Table

ReadKeyHashes = Callable[[Table, Snapshot, Collection[bytes] | None], Iterator[tuple[bytes, Mapping[int, Hashes]]]]
"""Reads of each partition (in canonical form; None: all) the hashes of all keys in the files of each bucket, deleted
ones included."""
FindKeysTwice = Callable[[Table, Snapshot], Iterator[tuple[BucketKey, str | None]]]
"""Reads the keys of a snapshot: the buckets (in canonical form) of which batch reads give a key twice, with one such
key; without it where a bucket has too many keys to compare."""
FindKeysInTwoPartitions = Callable[[Table, Snapshot], list[tuple[str, str, str]] | None]
"""Reads the keys of a snapshot: up to 100 keys that two partitions have, and the partitions; None: too many keys to
compare."""
FindDuplicateRowIds = Callable[[Table, Snapshot, Sequence[DataFile]], dict[int, list[str]] | None]
"""Reads the ids of some files: an id on two rows -> the names of their files; None: too many to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChecks:
    """What reads rows for a check; None: that isn't looked at."""

    duplicate_row_ids: FindDuplicateRowIds | None = None
    keys_in_two_partitions: FindKeysInTwoPartitions | None = None
    key_hashes: ReadKeyHashes | None = None
    keys_twice: FindKeysTwice | None = None


NO_ROWS = RowChecks()
TOLD_BY_ROWS = frozenset({"duplicate-row-ids", "keys-in-two-buckets", "key-in-two-partitions", "keys-twice"})
"""Kinds of findings that no expiry can cause, and that it takes a read of all keys to see."""
