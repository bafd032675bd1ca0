"""What a replay reads and writes, found and checked before Spark starts: tables, start, statements, checkpoints."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.plan import Plan
from airflow_paimon.core.publish.approval import refuse_unapproved
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ReplayBranch
from airflow_paimon.core.sql_text.statement import named_tables
from airflow_paimon.core.sql_text.tokens import split_statements
from airflow_paimon.core.streaming.replay_plan import Goal, named_snapshots
from airflow_paimon.core.streaming.replays import (
    ReplayRecord,
    batch_key,
    check_same_request,
    current_generation,
    find_replay,
    record_replay,
    replay_path,
    stream_key,
)
from airflow_paimon.core.streaming.stream import Stream
from airflow_paimon.core.streaming.stream_plan import FROM_TIMESTAMP, Overwrites, Position, Start, StreamRules
from airflow_paimon.core.table.features import check_writable
from airflow_paimon.core.table.options import requested_duration
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_table, parse_timestamp
from airflow_paimon.spark.jobs.correction_sources import read_sql, text_digest

_ANY_RULES = StreamRules(keyed=False, producer="none", overwrites=Overwrites.SKIP)
"""A start is found by snapshots alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A checked request. ``record``: with the starts, as the first run of this replay found them.

    ``statements`` empty: a function. ``key`` names the record and the folder of checkpoints.
    """

    sources: Mapping[str, Table]
    targets: Mapping[str, Table]
    statements: tuple[str, ...]
    goal: Goal
    timeout_s: float
    streams: bool
    has_start: bool
    key: str
    record: ReplayRecord
    resumed: bool

    def heads(self) -> dict[str, tuple[int, int | None]]:
        """Return the newest snapshot id and the watermark of each source."""
        found = {name: table.latest_snapshot() for name, table in self.sources.items()}
        return {n: (0, None) if s is None else (s.id, s.known_watermark) for n, s in found.items()}


def plan_replay(context: Context, request: ReplayBranch) -> Replay:
    """Check a request and find out where it starts; nothing is written.

    Raises:
        InvalidInputError: the arguments contradict each other, a target is main, or this was replayed in another way.
        NotFoundError: no such table, branch, tag or snapshot. UnsafeOperationError: the branch is empty.
    """
    statements = _statements(request)
    streams = _is_stream(request, statements)
    sources = _sources(request)
    targets = _targets(context, request, sources)
    flags = (("--tag", request.tag), ("--snapshot", request.snapshot), ("--timestamp", request.timestamp))
    given = [flag for flag, value in flags if value]
    if len(given) > 1:
        raise InvalidInputError(f"{request.table}: {' and '.join(given)} name two starts: give one of them")
    view = next(iter(targets.values()))
    key = stream_key(view) if streams else batch_key(request.operation_id or uuid.uuid4().hex)
    record, digest = find_replay(view, key), _request_digest(request, statements)
    generation = current_generation(view, record) if streams else 0
    if record is not None and record.generation < generation:
        record = None
    resumed = record is not None
    if record is not None:
        check_same_request(view, record, digest)
    else:
        starts = {name: _start(request, name, table, sources) for name, table in sources.items()}
        empty = [f"{t.label} (source {n})" for n, t in sources.items() if t.latest_snapshot_id() is None]
        if empty and not streams:  # no snapshot of it could be the same one in each try
            raise InvalidInputError(f"{empty[0]} has no snapshot yet; replay it when it has rows")
        record = ReplayRecord(
            asked=digest,
            starts={n: p.snapshot for n, p in starts.items()},
            identities={n: p.identity for n, p in starts.items()},
            ends={} if streams else {n: t.latest_snapshot_id() or 0 for n, t in sources.items()},
            before={n: t.latest_snapshot_id() or 0 for n, t in targets.items()},
            generation=generation,
        )
    return Replay(
        sources=sources,
        targets=targets,
        statements=statements,
        goal=Goal(
            snapshots=named_snapshots("--until-snapshot", request.until_snapshot, list(sources)),
            watermark=parse_timestamp(request.until_watermark, "until_watermark (--until-watermark)")
            if request.until_watermark
            else None,
        ),
        timeout_s=requested_duration(request.timeout, "timeout").total_seconds(),
        streams=streams,
        has_start=bool(given),
        key=key,
        record=record,
        resumed=resumed,
    )


def keep_record(request: ReplayBranch, replay: Replay) -> None:
    """Record where the replay starts, so that a re-run starts there as well; of streams also how far the branch is."""
    view = next(iter(replay.targets.values()))
    if replay.streams:
        head = view.latest_snapshot_id() or 0
        record_replay(view, replay.key, dataclasses.replace(replay.record, head=head))
    elif request.operation_id and not replay.resumed:
        record_replay(view, replay.key, replay.record, is_new=True)


def checkpoint_folder(request: ReplayBranch, replay: Replay, target: str) -> str:
    """Return the checkpoint location of a target's stream.

    Raises:
        InvalidInputError: the table is on an object store, and no folder was given.
    """
    folder = f"{replay.key}/{replay.record.generation}/{target}"
    if request.checkpoint:
        return f"{request.checkpoint.rstrip('/')}/{folder}"
    store = next(iter(replay.targets.values())).store
    if not store.uri.startswith("file:"):
        raise InvalidInputError(
            f"{request.table} is not on a local disk: name a folder that Spark can reach in checkpoint (--checkpoint), "
            "e.g. s3a://bucket/checkpoints"
        )
    return f"{store.uri}/{replay_path(folder)}"


def _statements(request: ReplayBranch) -> tuple[str, ...]:
    sql = read_sql(request)
    return () if sql is None else tuple(split_statements(sql))


def _is_stream(request: ReplayBranch, statements: tuple[str, ...]) -> bool:
    until = bool(request.until_snapshot or request.until_watermark)
    if request.available_now and until:
        raise InvalidInputError(
            f"{request.table}: give one of available_now (--available-now), which ends when nothing is new, "
            "until_snapshot (--until-snapshot) and until_watermark (--until-watermark)"
        )
    if statements and (request.available_now or until):
        raise InvalidInputError(
            f"{request.table}: statements run as a batch: leave out available_now (--available-now), until_snapshot "
            "and until_watermark; a stream needs function (--function)"
        )
    return request.available_now or until


def _sources(request: ReplayBranch) -> dict[str, Table]:
    if not request.source:
        raise InvalidInputError(f"{request.table}: name the upstream tables in source (--source), as name=db.table")
    named = named_tables("--source", request.source)
    return {n: open_table(request.warehouse, t, storage_options=request.storage_options).require()
            for n, t in named.items()}  # fmt: skip


def _targets(context: Context, request: ReplayBranch, sources: Mapping[str, Table]) -> dict[str, Table]:
    own = context.table.name.partition(".")[2]
    further = named_tables("--target", request.target, {own, *sources})
    found = {own: context.table.branch(request.branch)}
    for name, text in further.items():
        found[name] = open_table(request.warehouse, text, storage_options=request.storage_options)
    for view in found.values():
        _check_target(view)
        if not request.dry_run:
            refuse_unapproved(view)
    places = [(view.name, view.branch_name) for view in found.values()]
    if len(set(places)) < len(places):
        raise InvalidInputError(f"{request.table}: two targets are the same branch of the same table")
    read = {(source.name, source.branch_name) for source in sources.values()}
    both = next((view for view in found.values() if (view.name, view.branch_name) in read), None)
    if both is not None:
        raise InvalidInputError(f"{both.label} is a source and a target: replay into another branch")
    return found


def _check_target(view: Table) -> None:
    if view.branch_name == MAIN:
        raise InvalidInputError(
            f"{view.name}: replay_branch writes a branch, which is published when it is right, not main; create one "
            "first (create_branch), and name it in branch (--branch), or in target (--target) as db.table$branch_b"
        )
    view.require()
    require_committable(view)
    check_writable(view.schema(), table=view.label, branch=view.branch_name)
    if view.latest_snapshot_id() is None:
        raise UnsafeOperationError(
            f"{view.label} is empty: create it from the tag or snapshot that the replay starts from"
        )


def _start(request: ReplayBranch, name: str, table: Table, sources: Mapping[str, Table]) -> Position:
    """Return the position behind what the targets contain."""
    if request.tag:
        tag = table.find_tag(request.tag) or table.branch(MAIN).tag(request.tag)
        return _behind(table, tag.snapshot.id, tag.snapshot.identity)
    if request.snapshot:
        found = named_snapshots("--snapshot", request.snapshot, list(sources))
        if name not in found:
            raise InvalidInputError(f"snapshot (--snapshot) lacks the start of the source {name!r}: add {name}=ID")
        return _behind(table, found[name], "")
    if request.timestamp:
        parse_timestamp(request.timestamp, "timestamp (--timestamp)")
        stream = Stream(table=table, schema=table.schema(), rules=_ANY_RULES)
        return stream.origin(Start(mode=FROM_TIMESTAMP, timestamp=request.timestamp))
    return Position()


def _behind(table: Table, snapshot_id: int, identity: str) -> Position:
    found = table.snapshot(snapshot_id)
    if identity and found.identity != identity:
        raise UnsafeOperationError(
            f"{table.label}: its snapshot {snapshot_id} is another one than the tag's: the branch was not made from it"
        )
    return Position(snapshot=found.id, identity=found.identity)


def _request_digest(request: ReplayBranch, statements: tuple[str, ...]) -> str:
    """Identify what must be the same when a replay goes on; how long it runs may differ."""
    fixed = dataclasses.replace(
        request,
        sql=text_digest("\n;\n".join(statements)) if statements else None,
        available_now=False,
        until_snapshot=(),
        until_watermark=None,
        timeout="",
    )
    ours = {"warehouse", "storage_options", "operation_id", "now", "dry_run", "restricted_sql"}
    return digest_of({f.name: getattr(fixed, f.name) for f in dataclasses.fields(fixed) if f.name not in ours})


def replay_result(
    context: Context,
    request: ReplayBranch,
    replay: Replay,
    written: Mapping[str, Mapping[str, int]],
    caught_up: Mapping[str, int] | None = None,
) -> OperationResult:
    """Return the result. ``written``: batches and rows of each target; ``caught_up``: how far streams have read."""
    heads = replay.heads()
    read = (caught_up or {}) if replay.streams else replay.record.ends
    targets: dict[str, dict[str, Any]] = {}
    for name, view in replay.targets.items():
        before, after = replay.record.before[name], view.latest_snapshot_id()
        figures = written.get(name, {"batches": 0, "rows": 0})
        targets[name] = {"table": view.name, "branch": view.branch_name, **figures, "snapshot_before": before,
                         "snapshot_after": after}  # fmt: skip
    sources = {
        name: {"table": table.name, "branch": table.branch_name, "start": replay.record.starts[name],
               "caught_up_to": read.get(name), "head": heads[name][0]}
        for name, table in replay.sources.items()
    }  # fmt: skip
    first = next(iter(targets.values()))
    details = {"mode": "stream" if replay.streams else "batch", "resumed": replay.resumed, "sources": sources,
               "targets": targets}  # fmt: skip
    plan = Plan(operation=request.operation, table=context.table.name, summary=details)
    return context.result(
        plan,
        branch=request.branch,
        changed=any(t["snapshot_before"] != t["snapshot_after"] for t in targets.values()),
        before=first["snapshot_before"],
        after=first["snapshot_after"],
        details=details,
    )
