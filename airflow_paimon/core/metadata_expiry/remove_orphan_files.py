"""remove_orphan_files: deletes files that no snapshot, tag, changelog, trash entry or hold of any branch names.

First the files are listed, then the roots are gathered, and before each batch of deletions they are gathered again:
a file that is committed in between was listed before its root, so its root is seen. What is not committed yet is told
by its age, by the storage's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_paimon.core.branches.delete import all_views
from airflow_paimon.core.commit.idempotency import old_records
from airflow_paimon.core.commit.put import delete_files, execute, require_committable
from airflow_paimon.core.commit.stream_batch import branch_of_stream
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, StorageError
from airflow_paimon.core.format.records import is_record
from airflow_paimon.core.format.timestamp import utc_text
from airflow_paimon.core.metadata_expiry.ages import duration_ms, time_before
from airflow_paimon.core.metadata_expiry.listed_files import ListedFiles, list_in_parts
from airflow_paimon.core.metadata_expiry.orphan_plan import (
    KINDS,
    Candidate,
    Prefixes,
    by_folder,
    find_orphans,
)
from airflow_paimon.core.metadata_expiry.referenced_files import StoredReferences, read_referenced_files
from airflow_paimon.core.metadata_expiry.referenced_files_plan import Sums
from airflow_paimon.core.metadata_expiry.references import read_references, referenced_among
from airflow_paimon.core.metadata_expiry.root_values import Root
from airflow_paimon.core.metadata_expiry.roots import RootReader, unfinished_warnings
from airflow_paimon.core.metadata_expiry.storage_clock import storage_now
from airflow_paimon.core.metadata_expiry.storage_usage_plan import Usage, added, group_roots_by_kind, usages
from airflow_paimon.core.plan import Delete, Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import EraseRows, RemoveOrphanFiles
from airflow_paimon.core.store.base import batches, read_existing
from airflow_paimon.core.streaming.replays import find_replay, stream_key
from airflow_paimon.core.table.branch_record import read_branch_record, recorded_branches
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import REPLAYS, STREAMS
from airflow_paimon.core.table.spill import SpillBuffer, cuts_for
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_AT_WORK = "writers may still be at work on younger files"
_LEAST = {
    "older_than": ("1 h", _AT_WORK),
    "orphans_older_than": ("1 h", _AT_WORK),
    "records_older_than": ("7 d", "a retry of such an operation may still come"),
}
_BATCH = 1000
_MB = 1 << 20
_LISTED = 100
_ROW_BYTES = 150
"""Of a file that is listed, or named by a manifest, while both are compared."""
_OLD_RECORD = "an operation record that no retry will need"
_OLD_STREAM = "of a stream or replay into a branch that was deleted, or of an old replay"
_PREFIX_OPTIONS = (("data-file.prefix", "data-"), ("changelog-file.prefix", "changelog-"))


def remove_orphan_files(context: Context, request: RemoveOrphanFiles) -> OperationResult:
    """Delete old files that nothing refers to, old operation records, and those of streams into deleted branches.

    Raises:
        InvalidInputError: an age is too short. FormatError: something that names files is unreadable.
            In each case nothing was deleted.
    """
    table = context.table
    age_ms = age_millis(request, "older_than", context.now_ms)
    records_age_ms = age_millis(request, "records_older_than")
    if not request.dry_run:
        require_committable(table)
    now_ms = context.now_ms if request.dry_run else storage_now(table)
    before_ms = now_ms - age_ms
    memory_bytes = request.memory_mb * _MB
    files = ListedFiles(SpillBuffer(memory_bytes // 4), file_prefixes(table), before_ms=before_ms)
    list_in_parts(table, files.add)
    reader, runs = RootReader(table), SpillBuffer(memory_bytes // 4)
    roots = reader.gather()
    living, index = reader.without_vanished(roots.living, lambda some: (some, read_referenced_files(table, some, runs)))
    found = _judge(files, living, index, memory_bytes // 2)
    records = old_records(table, now_ms - records_age_ms)
    streams = stream_leftovers(table, now_ms - records_age_ms)
    left = read_existing(table.store, streams)
    found.orphans = _delete(table, reader, found.orphans, dry_run=request.dry_run)
    orphans = [Delete(path=c.path, reason=f"no snapshot or tag names this {c.kind} file") for c in found.orphans]
    old = [Delete(path=path, reason=_OLD_RECORD) for path in records]
    old += [Delete(path=path, expected=data, reason=_OLD_STREAM) for path, data in left.items()]
    plan = Plan(operation=request.operation, table=request.table, actions=(*orphans, *old))
    if not request.dry_run:
        execute(table, old)
    details = _details(found, files, before_ms, len(records), age_ms) | {
        "stream_records": len(streams),
        "warnings": unfinished_warnings(roots),
    }
    return context.result(plan, branch=MAIN, changed=bool(found.orphans or records or streams), details=details)


def age_millis(request: RemoveOrphanFiles | EraseRows, name: str, now_ms: int | None = None) -> int:
    """Check an age of the request. ``now_ms``: a time with an offset is taken as well, as its age by then."""
    least, why = _LEAST[name]
    text = getattr(request, name)
    try:
        age_ms = duration_ms(text, name)
    except InvalidInputError:
        time_ms = None if now_ms is None else time_before(text, now_ms, request.table)
        if now_ms is None or time_ms is None:
            raise
        age_ms = now_ms - time_ms
    if age_ms < duration_ms(least, name):
        raise InvalidInputError(f"{request.table}: {name} must be at least {least}, got {text!r}: {why}")
    return age_ms


def file_prefixes(table: Table) -> Prefixes:
    """What data and changelog files were ever named, by all schemas of all branches."""
    found: list[set[str]] = [{default} for _, default in _PREFIX_OPTIONS]
    for view in all_views(table):
        try:
            schemas = view.schemas()
        except NotFoundError:  # deleted meanwhile
            continue
        for known, (key, _) in zip(found, _PREFIX_OPTIONS, strict=True):
            known.update(s.options[key] for s in schemas if s.options.get(key))
    return Prefixes(tuple(sorted(found[0])), tuple(sorted(found[1])))


@dataclass(slots=True)
class _Judged:
    """The files of a table. ``young``: unreferenced ones that are too young; ``of_active_writers``: old ones whose
    writer has put a young file. ``referenced``: those that something refers to, of each of the ``kinds``, with what
    does.
    """

    orphans: list[Candidate] = field(default_factory=list)
    young: Sums = field(default_factory=Sums)
    of_active_writers: Sums = field(default_factory=Sums)
    referenced: Sums = field(default_factory=Sums)
    kinds: dict[str, int] = field(default_factory=dict)
    by: Sequence[Usage] = ()


def _by_json(usage: Usage) -> dict[str, Any]:
    return {
        "branch": usage.group.branch,
        "kind": usage.group.kind,
        **usage.names.to_json(),
        "only_files": usage.frees.files,
        "only_bytes": usage.frees.bytes,
    }


def _judge(files: ListedFiles, living: Sequence[Root], stored: StoredReferences, memory_bytes: int) -> _Judged:
    """Tell orphans from what roots name, one range of names after the other.

    A data file that a state only lists as deleted is not named by it.
    """
    cuts = cuts_for(files.rows + stored.rows, _ROW_BYTES, memory_bytes)
    ranges, found, groups = stored.by_ranges(cuts), _Judged(), group_roots_by_kind(living)
    assert files.before_ms is not None
    for at, (c, places) in enumerate(files.by_ranges(cuts)):
        index = ranges.at(at, c.names, c.sizes)
        times, listed, here = index.times(), np.zeros(len(index), bool), index.numbers(c.names)
        listed[here] = True
        found.by = added(found.by, usages(index, times, groups, listed))
        used = times[here] > 0
        orphans, young, of_active_writers = find_orphans(c, used, files.before_ms, files.active_writers)
        found.orphans += files.values(c, places, orphans)
        found.young += young
        found.of_active_writers += of_active_writers
        found.referenced += c.sums(used)
        for kind, number in enumerate(np.bincount(c.kinds[used], minlength=len(KINDS)).tolist()):
            if number:
                found.kinds[KINDS[kind]] = found.kinds.get(KINDS[kind], 0) + number
    found.orphans.sort(key=lambda c: c.path)
    return found


def _delete(table: Table, reader: RootReader, orphans: Sequence[Candidate], *, dry_run: bool) -> list[Candidate]:
    """Delete the orphans that no root names exactly, after another look before each batch; return what was deleted. A
    dry run returns what would be.
    """
    deleted: list[Candidate] = []
    names = frozenset(c.name for c in orphans)
    named, seen = set[str](), set[tuple[str, bytes]]()

    def look() -> None:
        new = [r for r in reader.gather().living if (r.path, r.data) not in seen]
        named.update(
            reader.without_vanished(new, lambda living: referenced_among(table, names, read_references(table, living)))
        )
        seen.update((r.path, r.data) for r in new)  # what a root names never changes

    if names:
        look()  # reads all manifests: what is committed meanwhile, the next look finds
    if dry_run:
        return [c for c in orphans if c.name not in named]
    for batch in batches(orphans, _BATCH):
        look()
        free = [c for c in batch if c.name not in named]
        failed = delete_files(table, [c.path for c in free])
        if failed:
            raise StorageError(
                f"{table.name}: {len(failed)} of {len(free)} orphan files could not be deleted, e.g. {failed[0]}; run "
                f"it again"
            )
        deleted += free
        log.info("%s: deleted %s of %s orphan files", table.name, len(deleted), len(orphans))
    return deleted


def _details(found: _Judged, files: ListedFiles, before_ms: int, records: int, age_ms: int) -> dict[str, Any]:
    folders = by_folder(found.orphans)
    first = found.young.first_ms
    by = sorted(found.by, key=lambda u: (-u.names.bytes, u.group.branch, u.group.kind))
    return {
        "older_than": utc_text(before_ms),
        "files": len(found.orphans),
        "bytes": sum(c.size for c in found.orphans),
        "folders": folders[:_LISTED],
        "folders_left_out": max(len(folders) - _LISTED, 0),
        "young": found.young.to_json() | {"old_enough_from": None if first is None else utc_text(first + age_ms)},
        "kept_for_writers": found.of_active_writers.to_json(),
        "unknown": files.unknown.to_json() | {"examples": files.examples},
        "operation_records": records,
        "referenced": {**found.referenced.to_json(), "kinds": found.kinds, "by": [_by_json(usage) for usage in by]},
    }


def stream_leftovers(table: Table, before_ms: int) -> list[str]:
    """Return files that were all last written before a time (epoch milliseconds), in the order in which to delete
    them: the checkpoints of a replay go before its record.

    Without effect while the record of a branch is unreadable, as then it isn't known which replays belong to it.

    Raises:
        FormatError: the record of a stream or replay is unreadable.
    """
    recorded = recorded_branches(table)
    branches = {MAIN, *table.branch_names(), *recorded}
    listed = (i for i in table.store.list(STREAMS.folder) if is_record(i.name))
    old = [i.name.removesuffix(".json") for i in listed if i.modified_ms is not None and i.modified_ms < before_ms]
    found = [STREAMS.path(query) for query in old if branch_of_stream(table, query) not in branches]
    if all(read_branch_record(table, name) is not None for name in recorded):
        found += _replays(table, branches, before_ms)
    return found


def _replays(table: Table, branches: set[str], before_ms: int) -> list[str]:
    living = {stream_key(table.branch(name)) for name in branches}
    groups: dict[str, list[str]] = {}
    young: set[str] = set()
    for info in table.store.files(REPLAYS.folder):
        key = info.name.removeprefix(f"{REPLAYS.folder}/").partition("/")[0].removesuffix(".json")
        groups.setdefault(key, []).append(info.name)
        if info.modified_ms is None or info.modified_ms >= before_ms:
            young.add(key)
    found: list[str] = []
    for key in sorted(groups.keys() - living - young):
        record = REPLAYS.path(key)
        if record in groups[key] and find_replay(table, key) is not None:
            found += [*(path for path in groups[key] if path != record), record]
    return found
