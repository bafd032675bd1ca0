"""What ``nightly_chain_maintenance`` plans and tells; no function here changes a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.runbooks.form import check_policy, open_main, request_for
from airflow_paimon.runbooks.maintenance_plan import group_small_jobs

if TYPE_CHECKING:
    from airflow_paimon.core.chain.compaction_plan import PartitionCompaction
    from airflow_paimon.core.chain.layout import ChainLayout, Partitions, Values
    from airflow_paimon.core.chain.state import ChainState
    from airflow_paimon.core.table.table import Table

_LISTED = 200


def plan_chain_maintenance(params: Mapping[str, Any], locked: Collection[str] = ()) -> dict[str, Any]:
    """Check the form against the table, and choose the groups that have something to compact.

    Returns ``{"table", "jobs", "expires", "lines", "left_out"}``. Each of ``jobs`` holds arguments of a compaction: of
    one group, or of several where there are more groups than jobs. It plans again when it runs, so an old plan does no
    harm. ``left_out``: the groups that can't be planned, and why; they keep no other group from its night.

    Raises:
        InvalidInputError: the form does not fit the table. NotFoundError: no such table, or a branch of it is missing.
        UnsafeOperationError: the form has an age of its own, which nobody approves here, and four eyes or checks are
            asked for.
    """
    from airflow_paimon.core.chain.state import gather_chain
    from airflow_paimon.core.table.options import TableOptions

    check_policy(params, locked)
    main = open_main(params).require()
    state = gather_chain(main)
    arguments = _arguments(state.layout, params)
    plans, idle, left_out = _plans(main, state, params, arguments)
    jobs = _jobs(state, plans, arguments, params["max_jobs"])
    option = TableOptions(main.schema().options).text("partition.expiration-time")
    if params["expiration_time"] or option:
        _check_expiry(main, params)
    lines = [f"{state.layout.text_of(p.target)}: {p.action}: {p.reason}" for p in plans]
    return {
        "table": main.name,
        "jobs": jobs,
        "expires": bool(params["expiration_time"] or option),
        "lines": _shortened([*left_out, *lines, *([] if lines else _why_nothing(main, state, params, idle))]),
        "left_out": _shortened(left_out),
    }


def _why_nothing(main: Table, state: ChainState, params: Mapping[str, Any], idle: Sequence[str]) -> list[str]:
    """Say why no partition is compacted, where none is."""
    held, longest = state.partitions, params["max_chain_length"]
    if not held.snapshot and not held.delta:
        why = "its branches hold no partition"
    elif params["date"]:
        why = f"no partition at {params['date']} has more than {longest:,} deltas to merge"
    else:
        why = f"no full partition is stale, and no read merges more than {longest:,} deltas (Longest chain)"
    return [f"Nothing to compact in {main.name}: {why}", *idle]


def _check_expiry(main: Table, params: Mapping[str, Any]) -> None:
    from airflow_paimon.core.publish.approval import changes_readers_rows, check_four_eyes
    from airflow_paimon.core.publish.required_checks import refuse_without_checks
    from airflow_paimon.core.requests.requests import ExpirePartitions
    from airflow_paimon.hooks.paimon import PaimonHook

    arguments = {"expiration_time": params["expiration_time"] or None, "dry_run": params["dry_run"]}
    arguments["four_eyes"] = bool(params["expiration_time"]) and PaimonHook(params["paimon_conn_id"]).four_eyes
    request = request_for(params, "expire_partitions", **arguments)
    assert isinstance(request, ExpirePartitions)
    check_four_eyes(request, main, "changed")
    if changes_readers_rows(request, main):
        refuse_without_checks(request, main, "changed")


def _arguments(layout: ChainLayout, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every job is asked: the partition at a date, or whatever has grown too long."""
    from airflow_paimon.core.table.partition_text import quoted_partition
    from airflow_paimon.core.table.partition_values import partition_texts

    if not params["date"]:
        return {"pending": True, "max_chain_length": params["max_chain_length"]}
    try:
        moment = datetime.fromisoformat(params["date"])
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is not None:
        raise InvalidInputError(f"Date {params['date']!r} is not a local date; write 2026-11-20 or 2026-11-20T05:00:00")
    width = layout.group_width
    values = layout.values_at((None,) * width, moment)[width:]
    spec = quoted_partition(partition_texts(values, layout.partition_keys[width:], layout.partition_types[width:]))
    return {"from_": spec, "to": spec}


def _plans(
    main: Table, state: ChainState, params: Mapping[str, Any], arguments: Mapping[str, Any]
) -> tuple[list[PartitionCompaction], list[str], list[str]]:
    """Plan as the jobs will, and keep what writes; of the chains that end at a date, only those that are too long.

    Returns also what is not compacted, and why, and what can't be planned.
    """
    from airflow_paimon.core.chain.compaction_plan import parse_targets, plan_compaction
    from airflow_paimon.core.chain.provenance import read_staleness
    from airflow_paimon.core.requests.requests import CompactChainTable

    request = request_for(params, "compact_chain_table", gap_policy=params["gap_policy"], **arguments)
    assert isinstance(request, CompactChainTable)
    targets = parse_targets(state.layout, request)
    _, known = read_staleness(main, state, targets)
    plans: list[PartitionCompaction] = []
    left_out = []
    for group, partitions in _by_group(state.layout, state.partitions).items():
        try:
            plans += plan_compaction(state.layout, partitions, targets, known)
        except InvalidInputError as error:
            left_out.append(f"{_spec(state.layout, group) or 'all'} is left out: {error.message}")
    longest = params["max_chain_length"]
    found = [p for p in plans if p.action.writes]
    if "pending" not in arguments:
        found = [p for p in found if len(p.deltas) > longest or (longest == 0 and not p.deltas)]
    chosen, text = {p.target for p in found}, state.layout.text_of
    idle = [
        f"{text(p.target)}: {f'{len(p.deltas):,} deltas to merge' if p.action.writes else p.reason}"
        for p in plans
        if p.target not in chosen
    ]
    return found, idle, left_out


def _by_group(layout: ChainLayout, partitions: Partitions) -> dict[Values, Partitions]:
    from airflow_paimon.core.chain.layout import Partitions

    found: dict[Values, tuple[set[Values], set[Values]]] = {}
    for side, held in enumerate((partitions.snapshot, partitions.delta)):
        for values in held:
            found.setdefault(layout.group_of(values), (set(), set()))[side].add(values)
    ordered = sorted(found, key=repr)
    return {g: Partitions(snapshot=frozenset(found[g][0]), delta=frozenset(found[g][1])) for g in ordered}


def _spec(layout: ChainLayout, group: Values) -> str:
    from airflow_paimon.core.table.partition_text import quoted_partition
    from airflow_paimon.core.table.partition_values import partition_texts

    width = layout.group_width
    return quoted_partition(partition_texts(group, layout.partition_keys[:width], layout.partition_types[:width]))


def _jobs(
    state: ChainState, plans: Sequence[PartitionCompaction], arguments: Mapping[str, Any], most: int
) -> list[dict[str, Any]]:
    """Return the arguments of each job: small groups share one, and several share one where there are too many."""
    layout, sizes = state.layout, _sizes(state, plans)
    if not layout.group_width:
        return [dict(arguments)] if sizes else []
    jobs = group_small_jobs(sizes)
    count = min(most, len(jobs))
    return [{"partition": [g for job in jobs[i::count] for g in job], **arguments} for i in range(count)]


def _sizes(state: ChainState, plans: Sequence[PartitionCompaction]) -> dict[str, int]:
    """Return the bytes of the anchors and deltas that are merged, by group."""
    from airflow_paimon.core.chain.state import splits_by_partition

    anchors, deltas = splits_by_partition(state.snapshot), splits_by_partition(state.delta)
    found: dict[str, int] = {}
    for plan in plans:
        splits = [s for d in plan.deltas for s in deltas.get(d, ())]
        splits += anchors.get(plan.anchor, ()) if plan.anchor is not None else ()
        group = _spec(state.layout, state.layout.group_of(plan.target))
        found[group] = found.get(group, 0) + sum(f.file_size for s in splits for f in s.files)
    return found


def summarize_chain_maintenance(
    params: Mapping[str, Any], compacted: Sequence[Mapping[str, Any] | None], expired: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Sum up what the run did and the state of the table now, as plain JSON values for the asset event.

    ``longest_chain``: deltas that a read of the newest partition of the worst group merges.
    """
    from airflow_paimon.core.chain.read_plan import report_groups
    from airflow_paimon.core.chain.state import gather_chain

    state = gather_chain(open_main(params))
    outcomes: dict[str, int] = {}
    rows = files_in = files_out = 0
    for result in filter(None, compacted):
        for one in result["details"]["partitions"]:
            outcomes[one["outcome"]] = outcomes.get(one["outcome"], 0) + 1
            rows += one.get("rows_out", 0)
            files_in += one.get("files_in", 0)
            files_out += one.get("files_out", 0)
    groups = report_groups(state.layout, state.partitions)
    sound = not any(g.without_time or g.misspelt for g in groups)  # check_chain_table names such partitions
    gone = expired["details"] if expired else {}
    held = state.partitions
    return {
        "table": state.main.table.name,
        "compacted": outcomes,
        "rows_written": rows,
        "ran_on": sorted({str(result["ran_on"]) for result in filter(None, compacted) if result.get("ran_on")}),
        "files_in": files_in,
        "files_out": files_out,
        "expired_partitions": gone.get("partitions", 0),
        "expired_segments": gone.get("segments", 0) if expired and expired["changed"] else 0,
        "warnings": gone.get("warnings", []),
        "snapshot_partitions": len(held.snapshot),
        "delta_partitions": len(held.delta),
        "groups": len(groups),
        "longest_chain": max((len(g.pending) for g in groups), default=0) if sound else None,
        "gaps": sum(len(g.gaps or ()) for g in groups) if sound and all(g.gaps is not None for g in groups) else None,
        "snapshots": state.snapshot_ids,
    }


def _shortened(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return [*lines[:_LISTED], *more]
