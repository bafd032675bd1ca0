"""Whether a branch has caught up: one pure predicate for sensor, trigger and jobs, and the few reads it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.timestamp import utc_text
from airflow_paimon.core.table.options import requested_duration
from airflow_paimon.core.table.partition_text import parse_partition_text, split_partitions
from airflow_paimon.core.table.paths import MAIN

if TYPE_CHECKING:
    # DAG files with a sensor import this module: it must not load the stores.
    from airflow_paimon.core.format.snapshot import Snapshot
    from airflow_paimon.core.table.table import Table

_AT_ONCE = 64
"""Snapshots that are read at once on the way back to the newest that changed rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpCondition:
    """The state that a branch must have reached; all given conditions must hold. Times and lags are milliseconds.

    ``consumer``: this reader of the branch has passed the snapshot ``min_snapshot_id``, or the branch's head.
    ``watermark_lag_ms`` and ``commit_lag_ms``: how far the branch's watermark, or its newest commit's time, may be
    behind main's; with ``reference_time_ms``, behind that time instead.
    ``partitions``: specs (``dt=2025-01-01``, ``dt=2025-01-01/region=eu``, also partial) that must hold files;
    unless ``allow_older_partitions``, with files not older than main's newest in that partition.
    ``marked_partitions``: partitions that are marked as complete (the file ``_SUCCESS``).
    ``wait_for_branch``: a branch that doesn't exist is waited for.
    ``main``: the branch's newest commit is not older than main's, nor is its watermark where both have one.
    The newest commit is the newest that may have changed rows: neither a compaction nor an empty one of a heartbeat.
    """

    min_snapshot_id: int | None = None
    consumer: str | None = None
    watermark_lag_ms: int | None = None
    commit_lag_ms: int | None = None
    reference_time_ms: int | None = None
    partitions: tuple[str, ...] = ()
    allow_older_partitions: bool = False
    wait_for_branch: bool = False
    marked_partitions: tuple[str, ...] = ()
    main: bool = False

    @property
    def needs_commits(self) -> bool:
        """Whether the newest commit that changed rows is looked for."""
        return self.main or self.commit_lag_ms is not None

    @property
    def needs_main(self) -> bool:
        """Whether main has to be read."""
        if self.main:
            return True
        lags = self.watermark_lag_ms is not None or self.commit_lag_ms is not None
        return (lags and self.reference_time_ms is None) or (bool(self.partitions) and not self.allow_older_partitions)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``from_json`` reverses it."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> CatchUpCondition:
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return CatchUpCondition(**plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A branch's newest snapshot. ``watermark_ms`` is None when its writers set none.

    ``commit_time_ms``: of the newest commit that changed rows, if that was looked for.
    """

    snapshot_id: int
    commit_time_ms: int
    watermark_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """The live files of one partition spec on the branch and, if needed, on main."""

    spec: str
    branch_files: frozenset[str]
    branch_newest_ms: int | None
    main_files: frozenset[str] = frozenset()
    main_newest_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpState:
    """The state read: heads are None for a branch without snapshots (or main's if not needed).

    ``exists``: whether there is such a branch; ``unmarked``: which of the ``marked_partitions`` are not;
    ``next_of_consumer``: the snapshot that the consumer reads next, None if the branch has no such consumer.
    """

    table: str
    branch: str
    branch_head: Head | None
    exists: bool = True
    main_head: Head | None = None
    partitions: tuple[PartitionFiles, ...] = ()
    unmarked: tuple[str, ...] = ()
    next_of_consumer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``waiting_for`` describes the conditions not met yet; empty = caught up."""

    state: CatchUpState
    waiting_for: tuple[str, ...] = field(default=())

    @property
    def caught_up(self) -> bool:
        return not self.waiting_for

    def to_json(self) -> dict[str, Any]:
        """Return the result of a sensor, as plain JSON values."""
        branch, main = self.state.branch_head, self.state.main_head
        return {
            "table": self.state.table,
            "branch": self.state.branch,
            "caught_up": self.caught_up,
            "waiting_for": list(self.waiting_for),
            "snapshot_id": branch.snapshot_id if branch else None,
            "watermark": branch.watermark_ms if branch else None,
            "commit_time": branch.commit_time_ms if branch else None,
            "main_snapshot_id": main.snapshot_id if main else None,
        }


def parse_catch_up(
    *,
    min_snapshot_id: int | str | None = None,
    max_watermark_lag: str | timedelta | None = None,
    max_commit_lag: str | timedelta | None = None,
    reference_time: str | int | None = None,
    partitions: Sequence[str] = (),
    allow_older_partitions: bool = False,
    wait_for_branch: bool = False,
    marked_partitions: Sequence[str] = (),
    consumer: str | None = None,
) -> CatchUpCondition:
    """Parse the arguments of a sensor: lags as ``10 min``, times as ISO with an offset or epoch ms.

    With ``wait_for_branch`` no other condition is needed: the branch then has to exist, and to have a snapshot. Without
    any condition it has to have caught up with main.

    Raises:
        InvalidInputError: malformed, or a reference time without a lag.
    """
    from airflow_paimon.core.table.table import parse_timestamp

    condition = CatchUpCondition(
        min_snapshot_id=_number("min_snapshot_id", min_snapshot_id),
        consumer=consumer,
        watermark_lag_ms=_lag("max_watermark_lag", max_watermark_lag),
        commit_lag_ms=_lag("max_commit_lag", max_commit_lag),
        reference_time_ms=None if reference_time is None else parse_timestamp(reference_time, "reference_time"),
        partitions=tuple(partitions),
        allow_older_partitions=allow_older_partitions,
        wait_for_branch=wait_for_branch,
        marked_partitions=tuple(one for text in marked_partitions for one in split_partitions(text) or [text]),
    )
    lags = condition.watermark_lag_ms is not None or condition.commit_lag_ms is not None
    named = (*condition.partitions, *condition.marked_partitions)
    if condition.reference_time_ms is not None and not lags:
        raise InvalidInputError("reference_time needs max_watermark_lag or max_commit_lag ('0 s' for no lag at all)")
    for spec in named:
        parse_partition_text(spec)
    nothing_else = not (lags or named or condition.min_snapshot_id is not None or consumer or wait_for_branch)
    return replace(condition, main=nothing_else)


def judge(condition: CatchUpCondition, state: CatchUpState) -> Verdict:
    """Judge a state by a condition. Pure: the only definition of "caught up"."""
    if not state.exists:
        return Verdict(state=state, waiting_for=(f"branch {state.branch}, which does not exist yet",))
    if state.branch_head is None:
        return Verdict(state=state, waiting_for=(f"branch {state.branch} has no snapshot yet",))
    wanted, head = condition.min_snapshot_id, state.branch_head.snapshot_id
    behind = wanted is not None and head < wanted
    missing = [
        *([f"snapshot {wanted} (the branch is at {head})"] if behind else []),
        *_consumer_behind(condition, state, head if wanted is None else wanted),
        *_lags_behind(condition, state, state.branch_head),
        *(text for files in state.partitions for text in _partition_behind(condition, files)),
        *(f"partition {spec} to be marked as complete" for spec in state.unmarked),
    ]
    return Verdict(state=state, waiting_for=tuple(missing))


def _consumer_behind(condition: CatchUpCondition, state: CatchUpState, wanted: int) -> Iterable[str]:
    following = state.next_of_consumer
    if condition.consumer is None or (following is not None and following > wanted):
        return
    where = "the branch has no such consumer yet" if following is None else f"it reads snapshot {following} next"
    yield f"consumer {condition.consumer} to pass snapshot {wanted} ({where})"


def _lags_behind(condition: CatchUpCondition, state: CatchUpState, head: Head) -> Iterable[str]:
    main = state.main_head
    fixed = condition.reference_time_ms
    if condition.needs_main and fixed is None and main is None:
        return  # main has no snapshot: the branch can't lag
    if condition.main and main is not None:
        if head.watermark_ms is not None and main.watermark_ms is not None:
            yield from _time_behind("watermark", head.watermark_ms, main.watermark_ms, 0)
        yield from _time_behind("newest commit", head.commit_time_ms, main.commit_time_ms, 0)
    if condition.watermark_lag_ms is not None:
        target = fixed if fixed is not None else main.watermark_ms if main else None
        yield from _time_behind("watermark", head.watermark_ms, target, condition.watermark_lag_ms)
    if condition.commit_lag_ms is not None:
        target = fixed if fixed is not None else main.commit_time_ms if main else None
        yield from _time_behind("newest commit", head.commit_time_ms, target, condition.commit_lag_ms)


def _time_behind(what: str, reached: int | None, target: int | None, lag_ms: int) -> Iterable[str]:
    if target is None:
        yield f"a {what} on main: it has none, so the branch can't be compared with it"
    elif reached is None:
        yield f"a {what} on the branch: it has none"
    elif reached < target - lag_ms:
        yield f"{what} {_iso(target - lag_ms)} (the branch's is {_iso(reached)})"


def _partition_behind(condition: CatchUpCondition, files: PartitionFiles) -> Iterable[str]:
    if not files.branch_files:
        yield f"partition {files.spec}"
    elif condition.allow_older_partitions or files.main_files <= files.branch_files:
        return
    elif (files.branch_newest_ms or 0) < (files.main_newest_ms or 0):
        yield (
            f"partition {files.spec} newer than main's: {_iso(files.main_newest_ms or 0)} "
            f"(the branch's newest file is of {_iso(files.branch_newest_ms or 0)})"
        )


def gather(table: Table, condition: CatchUpCondition) -> CatchUpState:
    """Read the state that the condition needs: with correct hints three small reads per branch; manifests for
    partitions only.

    Raises:
        NotFoundError: there is no such table, or no such branch and it is not to be waited for. InvalidInputError: main
            is to catch up with itself.
    """
    if condition.main and table.branch_name == MAIN:
        raise InvalidInputError(
            f"{table.name}: nothing to wait for: main can't lag behind itself. Name a branch, or give min_snapshot_id, "
            f"max_watermark_lag or max_commit_lag with reference_time, partitions or marked_partitions"
        )
    from airflow_paimon.core.table.consumers import find_consumer  # here, as DAG files import this module

    view, branch = table.branch(MAIN), table.hinted_snapshot()
    if branch is None and condition.wait_for_branch and not table.exists():
        view.require()
        return CatchUpState(table=table.name, branch=table.branch_name, branch_head=None, exists=False)
    if branch is None:
        table.require()
    main = branch if table.branch_name == MAIN else view.hinted_snapshot() if condition.needs_main else None
    compared = main if condition.needs_main else None
    return CatchUpState(
        table=table.name,
        branch=table.branch_name,
        branch_head=_head(table, branch, condition),
        main_head=_head(view, main, condition),
        partitions=_partitions(table, branch, compared, condition.partitions) if branch is not None else (),
        unmarked=_unmarked(table, condition.marked_partitions),
        next_of_consumer=None if condition.consumer is None else find_consumer(table, condition.consumer),
    )


def check(table: Table, condition: CatchUpCondition) -> Verdict:
    """Gather and judge."""
    return judge(condition, gather(table, condition))


def _unmarked(table: Table, specs: Sequence[str]) -> tuple[str, ...]:
    if not specs:
        return ()
    from airflow_paimon.core.table.success_files import unmarked  # most pokes need none of these

    return tuple(unmarked(table, specs))


def _head(view: Table, snapshot: Snapshot | None, condition: CatchUpCondition) -> Head | None:
    if snapshot is None:
        return None
    changed = _newest_change(view, snapshot) if condition.needs_commits else snapshot
    return Head(snapshot_id=snapshot.id, commit_time_ms=changed.time_millis, watermark_ms=snapshot.known_watermark)


def _newest_change(view: Table, head: Snapshot) -> Snapshot:
    """Return the newest snapshot that may have changed rows; the earliest that there is, if none of them has."""
    from airflow_paimon.core.table.history import existing_snapshots

    newest, step = head, 1  # mostly it is the one before
    while not _may_change_rows(newest):
        earlier = existing_snapshots(view, list(range(max(newest.id - step, 1), newest.id)))
        if not earlier:
            break
        newest = next(filter(_may_change_rows, reversed(earlier)), earlier[0])
        step = _AT_ONCE
    return newest


def _may_change_rows(snapshot: Snapshot) -> bool:
    """Flink commits snapshots without a row, for a watermark or a heartbeat; an overwrite's counts may cancel out."""
    kind = snapshot.commit_kind.value
    return kind == "OVERWRITE" or (kind == "APPEND" and snapshot.delta_record_count != 0)


def _partitions(
    table: Table, branch: Snapshot, main: Snapshot | None, specs: Sequence[str]
) -> tuple[PartitionFiles, ...]:
    if not specs:
        return ()
    on_branch = _files(table, branch, specs)
    on_main = _files(table.branch(MAIN), main, specs)
    return tuple(
        PartitionFiles(
            spec=spec,
            branch_files=frozenset(on_branch[spec]),
            branch_newest_ms=max(on_branch[spec].values(), default=None),
            main_files=frozenset(on_main[spec]),
            main_newest_ms=max(on_main[spec].values(), default=None),
        )
        for spec in specs
    )


def _files(view: Table, snapshot: Snapshot | None, specs: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the live files of each spec with their creation times."""
    # A poke without partitions needs none of these.
    from airflow_paimon.core.table.live_entries import live_entries
    from airflow_paimon.core.table.partition_values import parse_partition_spec
    from airflow_paimon.core.table.partitions import StoredPartitions

    found: dict[str, dict[str, int]] = {spec: {} for spec in specs}
    if snapshot is None:
        return found
    schema = view.schema(snapshot.schema_id)
    stored = StoredPartitions(schema)
    wanted = {spec: parse_partition_spec(spec, stored.keys, stored.types) for spec in specs}
    selections = {spec: stored.selection([parts]) for spec, parts in wanted.items()}
    for entry in live_entries(view, snapshot, stored.selection(wanted.values())).values():
        for spec, selection in selections.items():
            if selection(entry.partition):
                found[spec][entry.file.file_name] = entry.file.creation_time_ms or 0
    return found


def _number(name: str, value: int | str | None) -> int | None:
    if value is None:
        return None
    text = str(value).strip()
    if not text.isdigit():
        raise InvalidInputError(f"{name} must be a whole number, got {value!r}")
    return int(text)


def _lag(name: str, value: str | timedelta | None) -> int | None:
    if value is None:
        return None
    lag = value if isinstance(value, timedelta) else requested_duration(value, name)
    if lag < timedelta(0):
        raise InvalidInputError(f"{name} must not be negative")
    return lag // timedelta(milliseconds=1)


def _iso(time_ms: int) -> str:
    return utc_text(time_ms, "milliseconds")
