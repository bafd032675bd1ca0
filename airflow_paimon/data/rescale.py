"""rescale: the rows of a table with fixed buckets, or of some of its partitions, get into another number of buckets.

One commit for all partitions. Commits to other partitions don't disturb it; a partition that somebody else has changed
meanwhile is written again, the others are not. ``rollback_to`` before it undoes it.

The option ``bucket`` says what new partitions get, and Paimon's own writers go by it: they refuse a partition that has
another number, unless they meet empty buckets only. So after the whole table was rescaled, the option follows, as a
schema version of its own: right after the commit, as the rows take long to write, and a rescale that fails changes
nothing. A retry with the same operation id completes it; a rollback sets it back. Readers go by the count that is
stored with each file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.idempotency import REFUSALS, Attempt, attempt_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.commit.rewrites import commit_rescale
from airflow_paimon.core.errors import (
    ConflictError,
    FormatError,
    InvalidInputError,
    PaimonError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Rescale
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.schema.tables import check_alterable, set_option
from airflow_paimon.core.table.features import check_rescalable
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.properties import DETAILS_PROPERTY, OPERATION_PROPERTY, RESCALE
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compaction_tasks import HERE, Workers, outputs_of
from airflow_paimon.data.memory_plan import fits
from airflow_paimon.data.merge_changelog import changelog_of, producer_of
from airflow_paimon.data.read_splits import ReadSplit, TableRead, fitting_rows, plan_read
from airflow_paimon.data.rescale_plan import plan_shares
from airflow_paimon.data.rescale_tasks import TASK_BYTES, RescaleTask
from airflow_paimon.data.write import TableWrite, discard_files

log = logging.getLogger(__name__)

MAX_ROUNDS = 5
"""How often partitions are written again because other commits changed them."""
MOST_BUCKETS = 100_000
"""In one partition: far more than anybody has, and few enough that the plan of a mistyped number fits into memory."""
_STEP = "rescale"
_LISTED = 100


def rescale(context: Context, request: Rescale, workers: Workers = HERE) -> OperationResult:
    """Rescale the chosen partitions; those that have that number of buckets already stay as they are.

    Raises:
        InvalidInputError: more buckets than anybody has.
        UnsupportedFeatureError: the table has no fixed buckets, or a feature that this engine does not write.
        FormatError: files of one partition name different numbers of buckets, or rows lie in a wrong bucket.
        ConflictError: other commits kept changing the partitions, or the option; ``details["done"]`` is the snapshot
            that was committed, if one was.
    """
    view = context.table.branch(request.branch).require()
    one = _Rescale(context, request, view, workers)
    if request.dry_run:
        return one.dry_run()
    require_committable(view)
    with attempt_of(context, request.branch) as tried:
        return one.finish(tried)


def rescale_fits(context: Context, request: Rescale, memory_bytes: int) -> bool:
    """Check everything that can be checked without reading rows, before a session is started; raises as ``rescale``.

    True = one process does it in so much memory (``data/memory_plan.py``).
    """
    view = context.table.branch(request.branch).require()
    found = _gather(view, request)
    if not request.dry_run:
        require_committable(view)
    return fits((f for s in found.scan.splits for f in s.files), found.scan.schema, memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RescaleInputs:
    """``scan``: the files of the partitions to write again, of all chosen ones. ``before``: their numbers of buckets.
    ``empty``: the chosen partitions have no files at all.
    ``option``: the number that the option is to have afterwards, if it has another, ``option_before``.
    """

    scan: ScanPlan
    chosen: Selection | None
    bucket_num: int
    before: tuple[int, ...]
    option_before: int
    option: int | None
    empty: bool

    @property
    def partitions(self) -> dict[bytes, list[BucketSplit]]:
        form = StoredPartitions(self.scan.schema).canonical
        found: dict[bytes, list[BucketSplit]] = {}
        for split in self.scan.splits:
            found.setdefault(form(split.partition), []).append(split)
        return found

    def names(self) -> list[str]:
        stored = StoredPartitions(self.scan.schema)
        return sorted(stored.text(partition) or "()" for partition in self.partitions)


def _gather(view: Table, request: Rescale) -> _RescaleInputs:
    schema, head = view.schema(), view.latest_snapshot()
    check_rescalable(schema, table=view.label, branch=view.branch_name)
    chosen = choose_partitions(schema, request.partitions, view.label).selection(schema)
    now = TableOptions(schema.options).bucket
    bucket_num = request.bucket_num or now
    if bucket_num > MOST_BUCKETS:
        raise InvalidInputError(
            f"{view.label}: {bucket_num} is too large a number of buckets (bucket_num, by default the option bucket): "
            f"a rescale takes at most {MOST_BUCKETS}"
        )
    option = bucket_num if not request.partitions and bucket_num != now else None
    if option is not None:
        check_alterable(view, [SetOption(key="bucket", value=str(option))])
    splits = _splits(view, schema, head, chosen)
    due = tuple(s for s in splits if s.total_buckets != bucket_num)
    index = tuple(read_index_entries(view, head)) if due else ()
    scan = ScanPlan(view, head, schema, due, index)
    before = tuple(sorted({s.total_buckets for s in due}))
    return _RescaleInputs(scan=scan, chosen=chosen, bucket_num=bucket_num, before=before, option_before=now,
                     option=option, empty=not splits)  # fmt: skip


def _splits(view: Table, schema: TableSchema, head: Snapshot | None, chosen: Selection | None) -> list[BucketSplit]:
    """Return the buckets of the chosen partitions. Of tables without keys, the files of each in the rows' order."""
    stored, entries = StoredPartitions(schema), live_entries(view, head, chosen).values()
    if any(e.bucket < 0 for e in entries):
        raise UnsupportedFeatureError(
            f"{view.label}: partitions hold postponed rows, of the time when the option bucket was -2; let Paimon's "
            f"own compact procedure move them into buckets first"
        )
    mixed = stored.recounted(entries)
    if mixed:
        raise FormatError(
            f"{view.label}: partition {stored.text(min(mixed)) or '()'} has files for different numbers of buckets, so "
            f"a key may be in two of them; run check_table",
            code="mixed-bucket-counts",
        )
    splits = []
    for key, found in stored.by_bucket(entries).items():
        files = [e.file for e in found]
        if not schema.primary_keys:
            files.sort(key=lambda f: (f.min_sequence_number, f.max_sequence_number, f.file_name))
        one = found[0]
        values = stored.values(one.partition)
        splits.append(BucketSplit(key.partition, values, key.bucket, one.total_buckets, tuple(files)))
    return splits


@dataclass(slots=True)
class _WrittenPartitions:
    """A partition's new files, and what they were made from: while that is the same, they need not be made again."""

    source: object
    messages: list[CommitMessage] = field(default_factory=list)
    rows: int = 0


@dataclass(slots=True)
class _Rescale:
    """One try of the operation, and what it has written so far."""

    context: Context
    request: Rescale
    view: Table
    workers: Workers
    written: dict[bytes, _WrittenPartitions] = field(default_factory=dict)
    write: TableWrite | None = None

    def dry_run(self) -> OperationResult:
        found = _gather(self.view, self.request)
        works = _tasks(found, _reads(found))
        details = {
            **_request_details(found),
            "tasks": sum(len(own) for own in works.values()),
            **({} if found.empty else _warnings(found.scan.schema, found.bucket_num, self.request)),
        }
        head = found.scan.snapshot
        shown = Plan(
            operation=self.request.operation,
            table=self.view.name,
            preconditions=() if head is None else (found.scan.precondition,),
            summary=details,
        )
        number = head.id if head else None
        changed = bool(found.scan.splits) or found.option is not None
        return self._result(number, number, changed, details, shown)

    def finish(self, tried: Attempt) -> OperationResult:
        committed, empty = tried.committed(_STEP), False
        if committed is None:
            found, receipt = self._land(tried)
            committed, empty = receipt.snapshot, found.empty
        if committed is None:
            details: dict[str, Any] = _request_details(found)
            before = after = found.scan.snapshot.id if found.scan.snapshot else None
        else:
            details = committed.values(DETAILS_PROPERTY, dict)
            before, after = committed.id - 1 or None, committed.id
        followed = self._follow(details["bucket_num"], committed)
        details |= {} if empty else _warnings(self.view.schema(), details["bucket_num"], self.request)
        changed = committed is not None or followed or tried.retried
        if not changed:
            tried.forget()
        return self._result(before, after, changed, details)

    def _result(
        self, before: int | None, after: int | None, changed: bool, details: Mapping[str, Any], plan: Plan | None = None
    ) -> OperationResult:
        return self.context.result(
            plan, branch=self.request.branch, changed=changed, before=before, after=after, details=details
        )

    def _land(self, tried: Attempt) -> tuple[_RescaleInputs, Receipt]:
        try:
            for _ in range(MAX_ROUNDS):
                found = _gather(self.view, self.request)
                self._write(found)
                try:
                    return found, self._commit(tried, found)
                except ConflictError as error:
                    log.warning("%s; what it changed is rewritten", error.message)
        except REFUSALS:
            self._discard(list(self.written))
            raise
        self._discard(list(self.written))
        raise ConflictError(
            f"{self.view.label}: other commits changed the partitions in each of {MAX_ROUNDS} attempts to rescale "
            "them; nothing was changed. Run it again when no other writer writes to them"
        )

    def _write(self, found: _RescaleInputs) -> None:
        """Write the partitions that this try has not written yet, or from other files."""
        reads = _reads(found)
        sources = _sources(found)
        self._discard([p for p, own in self.written.items() if sources.get(p) != own.source])
        works = {p: own for p, own in _tasks(found, reads).items() if p not in self.written}
        self.write = _table_write(found)
        try:
            outputs = outputs_of(self.write, self.workers.run([w for own in works.values() for w in own]))
        except BaseException:
            self._discard(list(self.written))
            raise
        for partition in works:
            self.written[partition] = _WrittenPartitions(source=sources[partition])
        for output in outputs:
            for message in output.messages:
                own = self.written[message.partition]
                own.messages.append(message)
                own.rows += sum(f.row_count for f in message.new_files)

    def _commit(self, tried: Attempt, found: _RescaleInputs) -> Receipt:
        if not found.scan.splits:
            return Receipt(before=found.scan.snapshot, snapshot=None)
        messages = [m for own in self.written.values() for m in own.messages]
        added = [f for m in messages for f in m.new_files]
        details = {
            **_request_details(found),
            "files_after": len(added),
            "bytes_after": sum(f.file_size for f in added),
            "rows": sum(own.rows for own in self.written.values()),
        }
        properties = {OPERATION_PROPERTY: RESCALE, DETAILS_PROPERTY: json.dumps(details)}
        stopped = self.request.writers_stopped
        options = CommitOptions(identity=tried.identity(_STEP), properties=properties, writers_stopped=stopped)
        receipt = commit_rescale(
            self.view,
            messages,
            options,
            read=found.scan,
            chosen=found.chosen,
            bucket_num=found.bucket_num,
            tells=producer_of(found.scan.schema) is not None,
        )
        if receipt.replayed:  # another try of the operation was faster and wrote its own files
            self._discard(list(self.written))
        return receipt

    def _discard(self, partitions: Iterable[bytes]) -> None:
        for partition in partitions:
            gone = self.written.pop(partition)
            if self.write is not None:
                discard_files(self.write, gone.messages)

    def _follow(self, bucket_num: int, committed: Snapshot | None) -> bool:
        """Let the option follow a rescale of the whole table. False: it has that number already, or is not to."""
        if self.request.partitions:
            return False
        try:
            return set_option(self.context, self.view, "bucket", str(bucket_num))
        except PaimonError as error:
            if committed is not None:
                error.details.setdefault("done", [committed.id])
            raise


def _sources(found: _RescaleInputs) -> dict[bytes, object]:
    """Return what the files of each partition are made from."""
    form = StoredPartitions(found.scan.schema).canonical
    index: dict[bytes, set[tuple[int | None, str]]] = {}
    for entry in found.scan.index_entries:
        index.setdefault(form(entry.partition), set()).add((entry.bucket, entry.file_name))
    sources: dict[bytes, object] = {}
    for partition, splits in found.partitions.items():
        files = frozenset((s.bucket, s.total_buckets, f.file_name, f.level) for s in splits for f in s.files)
        sources[partition] = (found.scan.schema.id, found.bucket_num, files, frozenset(index.get(partition, ())))
    return sources


def _request_details(found: _RescaleInputs) -> dict[str, Any]:
    names, files = found.names(), [f for s in found.scan.splits for f in s.files]
    return {
        "bucket_num": found.bucket_num,
        "bucket_num_before": list(found.before),
        "option_before": found.option_before,
        "option": found.option or found.option_before,
        "partitions": len(names),
        "partition_names": names[:_LISTED],
        "files_before": len(files),
        "bytes_before": sum(f.file_size for f in files),
    }


def _warnings(schema: TableSchema, bucket_num: int, request: Rescale) -> dict[str, Any]:
    option = TableOptions(schema.options).bucket
    if not request.partitions or option == bucket_num:
        return {}
    return {
        "warnings": [
            f"the option bucket is {option}: stop Paimon's own writers of partitions that have {bucket_num} buckets "
            f"until it is {bucket_num}, too (alter_table --change 'set bucket={bucket_num}'); they refuse them, or put "
            f"a key into a second bucket"
        ]
    }


def _table_write(found: _RescaleInputs) -> TableWrite:
    scan = found.scan
    return TableWrite(
        store=scan.table.store,
        label=scan.table.label,
        schema=scan.schema,
        planned_on=scan.snapshot,
        total_buckets=dict.fromkeys(found.partitions, found.bucket_num),
        replaces=True,
    )


def _reads(found: _RescaleInputs) -> tuple[TableRead, dict[BucketKey, ReadSplit]]:
    read, splits = plan_read(found.scan, layered=True, whole_buckets=True)
    return read, {BucketKey(s.bucket.partition, s.bucket.bucket): s for s in splits}


def _tasks(
    found: _RescaleInputs, reads: tuple[TableRead, Mapping[BucketKey, ReadSplit]]
) -> dict[bytes, list[RescaleTask]]:
    """Return the tasks of each partition."""
    read, splits = reads
    write, changelog = _table_write(found), changelog_of(found.scan.schema)
    works: dict[bytes, list[RescaleTask]] = {}
    for partition, buckets in found.partitions.items():
        own = replace(write, total_buckets={partition: found.bucket_num})
        works[partition] = []
        for share in plan_shares(buckets, found.bucket_num, hashed_alike=_hashed_alike(read, buckets)):
            parts = tuple(splits[BucketKey(b.partition, b.bucket)] for b in share.old)
            bare = replace(share, old=tuple(replace(b, files=()) for b in share.old))
            works[partition].append(
                RescaleTask(
                    write=own,
                    read=fitting_rows(read, [f for p in parts for f in p.files], TASK_BYTES),
                    share=bare,
                    splits=tuple(replace(p, bucket=b) for p, b in zip(parts, bare.old, strict=True)),
                    bucket_num=found.bucket_num,
                    changelog=changelog,
                )
            )
    return works


def _hashed_alike(read: TableRead, buckets: Sequence[BucketSplit]) -> bool:
    """Whether all files were distributed by the types that the columns of the bucket key have today."""
    now = {read.schema.field(name).id: read.schema.field(name).type.root for name in read.schema.bucket_keys}
    for schema_id in {f.schema_id for b in buckets for f in b.files}:
        then = {f.id: f.type.root for f in read.schemas[schema_id].fields}
        if any(then.get(number) != root for number, root in now.items()):
            return False
    return True
