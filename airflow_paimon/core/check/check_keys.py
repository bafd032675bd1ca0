"""Findings about keys and row ids, of the head of a branch.

Hash indexes of dynamic buckets that are missing, double, damaged, without keys of their bucket, or with a hash in two
buckets; a key twice in a bucket that is read without a merge; a key in two partitions of a table that has one row of a
key in all of them; row ids of a row-tracking table that are missing, on two rows, or not given out yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_paimon.core.check.id_ranges import files_to_check
from airflow_paimon.core.check.live_states import LiveStates
from airflow_paimon.core.commit.conditions import has_dynamic_buckets, has_moving_keys
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.hash_index import INDEX_TYPE, Hashes, read_hash_index
from airflow_paimon.core.format.manifest import DataFile, IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import CompactPartition, RebuildIndexes
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.row_tracking.row_ids_plan import beyond, files_without_ids, overlapping, ranged, torn_groups
from airflow_paimon.core.table.dynamic_buckets_plan import pack
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import has_unique_keys

HASH_INDEX = "hash-index"
KeyHashes = Callable[[Table, Snapshot, Collection[bytes] | None], Iterator[tuple[bytes, Mapping[int, Hashes]]]]
"""Reads of each partition (in canonical form; None: all) the hashes of all keys in the files of each bucket, deleted
ones included. Implemented by the data layer."""


def hash_index_findings(
    view: Table, known: LiveStates, *, verify_files: bool, keys: KeyHashes | None = None
) -> Iterator[Finding]:
    """Check the head of a branch. Without ``verify_files`` the index files are not read, only their list; without
    ``keys`` they are not compared with the rows. ``known``: what was read of the table before.
    """
    schema, head = view.schema(), view.latest_snapshot()
    options = TableOptions(schema.options)
    if head is None or not has_dynamic_buckets(schema) or has_moving_keys(schema) or options.chain_table:
        return
    stored = StoredPartitions(schema)
    buckets: dict[bytes, set[int]] = {}
    for partition, bucket in known.live_buckets(view, head):
        buckets.setdefault(stored.canonical(partition), set()).add(bucket)
    indexes: dict[bytes, list[IndexEntry]] = {p: [] for p in buckets}
    for entry in read_index_entries(view, head):
        if entry.index_type == INDEX_TYPE:
            indexes.setdefault(stored.canonical(entry.partition), []).append(entry)
    wrong = {
        partition: why
        for partition, entries in indexes.items()
        if (why := _fault(view, buckets.get(partition, set()), entries, verify_files)) is not None
    }
    twice: dict[bytes, str] = {}
    for partition, found in keys(view, head, None) if keys is not None else ():
        if (doubled := _doubled(found)) is not None:
            twice[partition] = doubled
        elif partition not in wrong and (lacking := _lacking(view, found, indexes[partition])) is not None:
            wrong[partition] = lacking
    rebuilt = [p for p in sorted(wrong) if p in buckets and p not in twice]
    if wrong:
        yield _wrong_indexes(
            view, {stored.text(p): why for p, why in wrong.items()}, [(p, stored.text(p)) for p in rebuilt]
        )
    if twice:
        name, why = min((stored.text(p), why) for p, why in twice.items())
        yield Finding(
            kind="keys-in-two-buckets",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: keys of {len(twice)} partitions are in two dynamic buckets, e.g. of "
            f"{name or '()'}: {why}",
            at_risk="reads return such a key twice; INSERT OVERWRITE of the partition's rows, each key once, helps",
        )


def bucket_count_findings(view: Table, known: LiveStates) -> Iterator[Finding]:
    """Find partitions of the head with files for different numbers of fixed buckets. ``known``: what was read of the
    table before.
    """
    schema, head = view.schema(), view.latest_snapshot()
    if head is None or TableOptions(schema.options).bucket < 1:
        return
    stored = StoredPartitions(schema)
    found: dict[bytes, set[int]] = {}
    for (partition, _), files in known.live_buckets(view, head).items():
        found.setdefault(stored.canonical(partition), set()).update(total for total in files if total > 0)
    mixed = {partition for partition, totals in found.items() if len(totals) > 1}
    if mixed:
        one = min(mixed, key=stored.text)
        counts = sorted(found[one])
        yield Finding(
            kind="bucket-counts",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: {len(mixed)} partitions have files for different numbers of buckets, e.g. "
            f"{stored.text(one) or '()'} has files for {' and for '.join(map(str, counts))} buckets: a writer of "
            f"another engine stayed open while it was rescaled",
            at_risk="reads return a key twice that is in both, and writers refuse the partition; INSERT OVERWRITE of "
            "the partition's rows, each key once, helps",
        )


def _wrong_indexes(view: Table, wrong: Mapping[str, str], rebuilt: Sequence[tuple[bytes, str]]) -> Finding:
    name, why = min(wrong.items())
    where = f"{view.branch_name}: "
    return Finding(
        kind=HASH_INDEX,
        subject=view.branch_name,
        severity=ERROR,
        message=f"{view.label}: the hash indexes of {len(wrong)} partitions don't fit their dynamic buckets, e.g. "
        f"of {name or '()'}: {why}",
        at_risk="writes here refuse these partitions, those of other engines may put a key into a second bucket",
        repair="stop the table's writers, then rebuild the indexes from the keys of the files" if rebuilt else None,
        actions=tuple(
            RebuildIndexes(
                path=where + text, branch=view.branch_name, partition=partition, reason=f"{text or '()'}: {wrong[text]}"
            )
            for partition, text in rebuilt
        ),
        by_name_only=True,
    )


def _doubled(found: Mapping[int, Hashes]) -> str | None:
    try:
        pack(found.items())
    except FormatError as error:
        return error.message.replace("in the index of two buckets", "in files of two buckets")
    return None


def _lacking(view: Table, found: Mapping[int, Hashes], entries: Sequence[IndexEntry]) -> str | None:
    for entry in entries:
        mine = found.get(entry.bucket)
        if mine is not None:
            known = read_hash_index(_data(view, [entry])[0], entry.row_count, name=entry.file_name)
            lacking = int((~np.isin(mine, known)).sum())
            if lacking:
                return f"that of bucket {entry.bucket} lacks {lacking} of its {len(mine)} key hashes"
    return None


def _data(view: Table, entries: Sequence[IndexEntry]) -> Sequence[bytes]:
    return view.store.read_many([e.external_path or f"{INDEX_DIR}/{e.file_name}" for e in entries])


def _fault(view: Table, buckets: set[int], entries: Sequence[IndexEntry], verify_files: bool) -> str | None:
    indexed = [e.bucket for e in entries]
    if len(set(indexed)) < len(indexed):
        return "a bucket has several"
    lacking = buckets - set(indexed)
    if lacking:
        return f"bucket {min(lacking)} has none"
    if not verify_files:
        return None
    try:
        pack(
            (entry.bucket, read_hash_index(data, entry.row_count, name=entry.file_name))
            for entry, data in zip(entries, _data(view, entries), strict=True)
        )
    except NotFoundError:
        return "an index file is missing"
    except FormatError as error:
        return error.message
    return None


KEYS_TWICE = "keys-twice"
FindKeysTwice = Callable[[Table, Snapshot], Iterator[tuple[BucketKey, str | None]]]
"""Reads the keys of a snapshot: the buckets (in canonical form) of which batch reads give a key twice, with one such
key; without it where a bucket has too many keys to compare. Implemented by the data layer."""


def keys_twice_findings(view: Table, keys_twice: FindKeysTwice | None) -> Iterator[Finding]:
    """Check the head of a branch. ``keys_twice`` None: nothing, as only the rows tell.

    A writer that stays open over a commit which replaces files of its bucket doesn't mark the replaced rows as deleted
    in the new files (measured with Flink 2.0.1 and Paimon 1.4.2).
    """
    schema, head = view.schema(), view.latest_snapshot()
    if head is None or keys_twice is None or not schema.primary_keys or not has_unique_keys((), schema):
        return
    found = dict(keys_twice(view, head))
    twice = {bucket: key for bucket, key in found.items() if key is not None}
    text = StoredPartitions(schema).text
    if len(twice) < len(found):
        large = min(text(b.partition) for b in found.keys() - twice.keys())
        yield Finding(
            kind="keys-not-compared",
            subject=view.branch_name,
            severity=INFO,
            message=(
                f"{view.label}: {len(found) - len(twice)} buckets, e.g. of {large or '()'}, have too many keys to "
                "search for duplicates"
            ),
            at_risk="nothing, if no job had them open when their files were replaced",
        )
    if twice:
        yield _keys_twice(view, schema, twice, {text(b.partition) for b in twice})


def _keys_twice(view: Table, schema: TableSchema, twice: Mapping[BucketKey, str], partitions: set[str]) -> Finding:
    """A compaction keeps the newer one of two whole rows; other merge engines would merge values that were replaced."""
    keeps_newest = TableOptions(schema.options).merge_engine == "deduplicate"
    bucket, key = min(twice.items())
    name = StoredPartitions(schema).text(bucket.partition)
    heals = "" if keeps_newest else "; a compaction would merge both rows: overwrite them, each key once"
    return Finding(
        kind=KEYS_TWICE,
        subject=view.branch_name,
        severity=ERROR,
        message=f"{view.label}: batch reads of {len(twice)} buckets give a key twice, e.g. {key} in "
        f"{name or '()'}, bucket {bucket.bucket}: a job had them open while their files were replaced",
        at_risk=f"reads return such a key twice until the bucket is compacted{heals}",
        repair="compact the partitions; the newer row of each key stays" if keeps_newest else None,
        actions=tuple(
            CompactPartition(
                path=f"{view.branch_name}: {p}", branch=view.branch_name, partition=p, reason="a key occurs twice"
            )
            for p in sorted(partitions)
            if keeps_newest
        ),
        by_name_only=True,
    )


FindDoubleKeys = Callable[[Table, Snapshot], list[tuple[str, str, str]] | None]
"""Reads the keys of a snapshot: up to 100 keys that two partitions have, and the partitions; None: too many keys to
compare. Implemented by the data layer."""


def moving_key_findings(view: Table, double_keys: FindDoubleKeys | None) -> Iterator[Finding]:
    """Check the head of a branch. ``double_keys`` None: nothing, as only the rows tell."""
    schema, head = view.schema(), view.latest_snapshot()
    if head is None or double_keys is None or not has_moving_keys(schema):
        return
    found = double_keys(view, head)
    if found is None:
        yield Finding(
            kind="keys-not-compared",
            subject=view.branch_name,
            severity=INFO,
            message=f"{view.label}: the table has too many keys to search for one that two partitions have",
            at_risk="nothing, if every writer has read the keys of the whole table",
        )
    elif found:
        key, one, other = found[0]
        yield Finding(
            kind="key-in-two-partitions",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: {len(found)} keys are in two partitions, e.g. {key} in {one} and {other}",
            at_risk="reads give both rows, and every engine refuses to write; overwrite one of the partitions without "
            "the row (write_table or write_arrow with mode=overwrite)",
        )


FindDuplicates = Callable[[Table, Snapshot, Sequence[DataFile]], dict[int, list[str]] | None]
"""Reads the ids of some files: an id on two rows -> the names of their files; None: too many to compare.
Implemented by the data layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChecks:
    """What reads rows for a check; None: that isn't looked at. ``duplicates`` compares row ids, ``double_keys`` the
    keys of partitions, ``keys_twice`` those of a bucket, ``keys`` gives the keys of dynamic buckets.
    """

    duplicates: FindDuplicates | None = None
    double_keys: FindDoubleKeys | None = None
    keys: KeyHashes | None = None
    keys_twice: FindKeysTwice | None = None


NO_ROWS = RowChecks()
_LISTED = 3


def row_id_findings(view: Table, duplicates: FindDuplicates | None) -> Iterator[Finding]:
    """Check the head of a branch. ``duplicates`` None: only what the manifests tell."""
    schema, head = view.schema(), view.latest_snapshot()
    options = TableOptions(schema.options)
    if head is None or not options.row_tracking:
        return
    files = files_to_check(view, head)
    next_row_id = head.next_row_id or 0
    known = ranged(files, next_row_id)
    without = files_without_ids(files)
    if without:
        yield _finding(
            view, "missing-row-ids", WARNING,
            f"{len(without)} files have no row ids ({_listed(without)}): written before row tracking, or by an engine "
            f"that ignores it",
            "reads of _ROW_ID fail, and UPDATE, MERGE and compaction of other engines; INSERT OVERWRITE of their rows "
            "gives them ids",
        )  # fmt: skip
    ahead = beyond(known, next_row_id)
    if ahead:
        yield _finding(
            view, "row-ids-ahead", ERROR,
            f"{len(ahead)} files hold row ids from nextRowId ({next_row_id}) on ({_listed(ahead)}): another engine "
            f"lowered it, or copied files",
            "the next INSERT gives these ids to other rows",
        )  # fmt: skip
    if options.flag("data-evolution.enabled"):
        torn = torn_groups(known)
        if torn:
            yield _finding(
                view, "torn-row-ids", ERROR,
                f"{len(torn)} files share only some of their row ids with others ({_listed(torn)})",
                "every reader refuses their rows",
            )  # fmt: skip
    elif duplicates is not None:
        suspects = [r.file for group in overlapping(known) for r in group]
        yield from _duplicates(view, head, suspects, duplicates) if suspects else ()


def _duplicates(
    view: Table, head: Snapshot, suspects: Sequence[DataFile], duplicates: FindDuplicates
) -> Iterator[Finding]:
    found = duplicates(view, head, suspects)
    if found is None:
        rows = sum(f.row_count for f in suspects)
        yield _finding(
            view, "row-ids-not-compared", INFO,
            f"{len(suspects)} files with {rows:,} rows have ranges of row ids that overlap, too many to compare",
            "nothing, if no engine has given one id to two rows",
        )  # fmt: skip
    elif found:
        row_id, names = next(iter(found.items()))
        yield _finding(
            view, "duplicate-row-ids", ERROR,
            f"{len(found)} row ids are on two rows, e.g. {row_id} in {_listed(names)}: a publish, rollback or copy by "
            f"another engine",
            "UPDATE, MERGE and diffs by row id take these rows for one; INSERT OVERWRITE of them gives them new ids",
        )  # fmt: skip


def _finding(view: Table, kind: str, severity: str, message: str, at_risk: str) -> Finding:
    return Finding(
        kind=kind,
        subject=view.branch_name,
        severity=severity,
        message=f"{view.label}: {message}",
        at_risk=at_risk,
    )


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _LISTED else ""
    return f"{', '.join(sorted(names)[:_LISTED])}{more}"
