"""An index of the blocks of a manifest in its Avro header, so that a read of some partitions takes only some blocks.

Docs: docs/contributing/format.md, Manifests. Only manifests of this package have one; other readers don't look at the
key. The index is a hint: where it doesn't fit the file, the whole file is read, with all the checks of one that has
none.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.avro.container import BlockSize, Header, read_blocks
from airflow_paimon.core.format.manifest import ManifestEntry, Stats
from airflow_paimon.core.format.stats import stored_row_stats
from airflow_paimon.core.format.types import DataType
from airflow_paimon.core.format.unpack import Unpacker

KEY: Final = "airflow_paimon.blocks"
_VERSION: Final = 1
_FEWEST: Final = 4
"""Blocks from which on an index pays: decompressing one costs a fraction of a millisecond."""
_LARGEST_PART: Final = 8
"""A longer index than this part of the file is left out, as very many partition columns would give one."""


class ManifestBlock(NamedTuple):
    """Some consecutive entries of a manifest, and the bytes of the file that hold them. All bounds are exact."""

    start: int
    end: int
    entries: int
    partition_stats: Stats
    min_bucket: int
    max_bucket: int
    min_total_buckets: int
    max_total_buckets: int


class Bounded(Protocol):
    """A manifest, or a part of one."""

    @property
    def partition_stats(self) -> Stats: ...


class EntryFilter(Protocol):
    """Which entries of manifests are read."""

    def __call__(self, stored: bytes) -> bool:
        """Whether a stored partition is selected, some buckets of it at least."""

    def may_be_in(self, part: Bounded) -> bool:
        """Whether a manifest, or a part of one, can hold entries of a selected partition. True if unknown."""

    def holds(self, bucket: int, total_buckets: int) -> bool:
        """Whether a bucket of a selected partition is selected, out of ``total_buckets``."""
        return True


def block_index(
    entries: Sequence[ManifestEntry], types: Sequence[DataType], sizes: Sequence[BlockSize]
) -> Mapping[str, bytes]:
    """Return the index of a manifest with these entries in blocks of these sizes, as keys of its header; none where it
    doesn't pay.
    """
    if len(sizes) < _FEWEST:
        return {}
    rows: dict[str, int] = {}
    blocks: list[list[object]] = []
    start = 0
    for number, size in sizes:
        part = entries[start : start + number]
        start += number
        stats = stored_row_stats((e.partition for e in part), types)
        low, high = (
            rows.setdefault(base64.b64encode(row).decode(), len(rows)) for row in (stats.min_values, stats.max_values)
        )
        buckets, totals = [e.bucket for e in part], [e.total_buckets for e in part]
        blocks.append(
            [size, number, low, high, stats.null_counts, min(buckets), max(buckets), min(totals), max(totals)]
        )
    text = json.dumps({"version": _VERSION, "rows": list(rows), "blocks": blocks}, separators=(",", ":")).encode()
    value = b"%08x %b" % (zlib.crc32(text), text)
    return {KEY: value} if len(value) * _LARGEST_PART <= sum(size for _, size in sizes) else {}


def indexed_blocks(header: Header, size: int) -> list[ManifestBlock] | None:
    """Return the blocks of a file of ``size`` bytes; None: it has no index, or none that fits it."""
    value = header.metadata.get(KEY)
    if value is None:
        return None
    try:
        if int(value[:8], 16) != zlib.crc32(value[9:]):
            return None
        found = json.loads(value[9:])
        if found["version"] != _VERSION:
            return None
        rows = [base64.b64decode(row, validate=True) for row in found["rows"]]
        ends = list(accumulate((block[0] for block in found["blocks"]), initial=header.end))
        blocks = [
            ManifestBlock(end - length, end, number, Stats(rows[low], rows[high], tuple(nulls)), *bounds)
            for end, (length, number, low, high, nulls, *bounds) in zip(ends[1:], found["blocks"], strict=True)
        ]
    except (ValueError, LookupError, TypeError):
        return None
    return blocks if ends[-1] == size and all(b.start < b.end for b in blocks) else None


def blocks_of(blocks: Iterable[ManifestBlock], data: bytes, header: Header) -> Iterator[tuple[int, bytes]]:
    """Return some blocks of the file ``data``: (number of entries, decompressed bytes).

    Raises:
        FormatError: they are not what the index says, or corrupt. IndexError means truncated.
    """
    unpacker = Unpacker(header.codec, len(data))
    for block in blocks:
        found = list(read_blocks(data[block.start : block.end], header, 0, unpacker))
        if [number for number, _ in found] != [block.entries]:
            raise FormatError("its index of blocks doesn't fit them")
        yield found[0]
