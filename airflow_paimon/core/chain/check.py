"""check_chain_table: finds problems of a chain table that Paimon reports only when it is read, or never. Reads only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.chain.layout import (
    SAME_OPTIONS,
    ChainBranch,
    ChainLayout,
    Values,
    branch_problems,
    chain_layout,
    schema_problems,
)
from airflow_paimon.core.chain.provenance import StalePartition, find_stale, gather_provenances
from airflow_paimon.core.chain.provenance_plan import Provenance
from airflow_paimon.core.chain.read_plan import GroupReport, report_groups
from airflow_paimon.core.chain.setup_plan import time_column_problems
from airflow_paimon.core.chain.state import ChainState, splits_by_partition
from airflow_paimon.core.errors import FormatError, NotFoundError, first_few
from airflow_paimon.core.format.manifest import FileSource
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.findings import (
    ERROR,
    INFO,
    WARNING,
    Finding,
    summary,
    unreadable_metadata,
    worst_first,
)
from airflow_paimon.core.requests.requests import CheckChainTable
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import PROTECTIVE_OPTIONS, TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table

_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCheck:
    """The findings. The other fields are empty when the schemas don't allow reading the partitions."""

    findings: tuple[Finding, ...]
    state: ChainState | None = None
    groups: tuple[GroupReport, ...] = ()
    stale: tuple[StalePartition, ...] = ()
    recorded: int = 0
    """Snapshot partitions with a provenance record."""


def check_chain_table(context: Context, request: CheckChainTable) -> OperationResult:
    """Check options, branches, schemas and partitions of a chain table; changes nothing.

    ``details.findings`` lists the findings, worst first; ``details.ok`` is true when none is an error or a warning.
    """
    check = find_chain_problems(context.table)
    head = context.table.latest_snapshot_id()
    details: dict[str, Any] = {
        **summary(check.findings),
        "groups": len(check.groups),
        "anchors": sum(len(g.snapshot) for g in check.groups),
        "deltas": sum(len(g.delta) for g in check.groups),
        "gaps": sum(len(g.gaps or ()) for g in check.groups),
        "stale": [check.state.layout.text_of(s.values) for s in check.stale] if check.state else [],
        "recorded": check.recorded,
    }
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=details)


def find_chain_problems(table: Table) -> ChainCheck:
    """Run all checks. ``table`` is main's view.

    Raises:
        NotFoundError: there is no such table.
    """
    main = table.require().schema()
    names = TableOptions(main.options).chain_branches
    views = [table.branch(n) if n and "/" not in n else None for n in names]
    schemas = [view.schema() if view is not None and view.exists() else None for view in views]
    findings = [_settings(p) for p in (*schema_problems(main), *time_column_problems(main))]
    findings += [_drift(s, p, s in names) for s, p in branch_problems(main, *schemas).items() if all(names)]
    for name, schema in zip(names, schemas, strict=True):
        if schema is not None:
            findings += [*_other_options(name, main, schema), *_id_clashes(table, name)]
    layout = None if schema_problems(main) else chain_layout(main, table.name)
    same_keys = all(s is not None and s.partition_keys == main.partition_keys for s in schemas)
    if layout is not None and same_keys:
        try:
            return _check_partitions(table, layout, names, findings)
        except (FormatError, NotFoundError) as error:
            lost = "reads of the chain fail; run check_table for more"
            findings.append(unreadable_metadata(table.name, error, lost))
    return ChainCheck(findings=tuple(worst_first(findings)))


def _check_partitions(table: Table, layout: ChainLayout, names: Sequence[str], before: list[Finding]) -> ChainCheck:
    snapshot, delta = (plan_scan(table.branch(n)) for n in names)
    state = ChainState(layout=layout, main=plan_scan(table), snapshot=snapshot, delta=delta)
    groups = report_groups(layout, state.partitions)
    provenances = gather_provenances(table, layout, state.snapshot)
    stale = find_stale(state, provenances)
    findings = [*before, *_buckets(state), *_shadowing(state), *(_stale(layout, s) for s in stale)]
    findings += _hidden(state, provenances)
    for group in groups:
        findings += _places(layout, group)
    return ChainCheck(
        findings=tuple(worst_first(findings)), state=state, groups=groups, stale=stale, recorded=len(provenances)
    )


def _slug(text: str) -> str:
    """A subject that is the same in every run, for findings without a name of their own."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _listed(layout: ChainLayout, some: Sequence[Values]) -> str:
    return first_few(list(map(layout.text_of, some)), _NAMED)


# -- schemas and options ---------------------------------------------------------------------------------------------


def _settings(problem: str) -> Finding:
    return Finding(
        kind="chain-settings",
        subject=_slug(problem),
        severity=ERROR,
        message=problem,
        at_risk="reads of main fail, read main alone, or merge wrong partitions",
    )


def _drift(subject: str, problem: str, missing: bool) -> Finding:
    return Finding(
        kind="missing-branch" if missing else "branch-drift",
        subject=subject,
        severity=ERROR,
        message=problem,
        at_risk="Paimon fails at every read of main until the three branches agree",
        repair="run create_chain_table without columns"
        if missing
        else "run alter_chain_table again, or the same ALTER",
    )


def _other_options(name: str, main: TableSchema, branch: TableSchema) -> Iterator[Finding]:
    """Options that may differ, perhaps by mistake."""
    keys = {k for k in main.options.keys() | branch.options.keys() if main.options.get(k) != branch.options.get(k)}
    keys -= SAME_OPTIONS.keys()  # those are drift where they differ
    protective = keys & PROTECTIVE_OPTIONS.keys()
    if protective:
        yield Finding(
            kind="never-expires",
            subject=name,
            severity=WARNING,
            message=f"Branch {name!r} has options that keep every engine from expiring snapshots: "
            f"{', '.join(sorted(protective))}",
            at_risk="its replaced files take up space for ever",
            repair="reset these options in that branch, unless its files are shared on purpose",
        )
    different = sorted(keys - protective)
    if different:
        yield Finding(
            kind="option-drift",
            subject=name,
            severity=INFO,
            message=f"Branch {name!r} has other values than main for {', '.join(different)}",
            at_risk="nothing, if it is intended",
        )


def _id_clashes(table: Table, name: str) -> Iterator[Finding]:
    main = {s.id: s.content for s in table.schemas()}
    clashing = [s.id for s in table.branch(name).schemas() if s.id in main and s.content != main[s.id]]
    if clashing:
        yield Finding(
            kind="schema-id-clash",
            subject=name,
            severity=WARNING,
            message=f"Schema {', '.join(map(str, clashing))} of branch {name!r} differs from main's schema of that id",
            at_risk="Paimon's chain reads use the id alone and may read the branch's files with main's columns",
            repair="alter the branches together, with alter_chain_table",
        )


# -- partitions ------------------------------------------------------------------------------------------------------


def _buckets(state: ChainState) -> Iterator[Finding]:
    wanted = TableOptions(state.main.schema.options).bucket
    for branch in (ChainBranch.SNAPSHOT, ChainBranch.DELTA):
        splits = state.plan(branch).splits
        other = sorted({s.values for s in splits if s.total_buckets != wanted}, key=state.layout.text_of)
        if other:
            yield Finding(
                kind="bucket-drift",
                subject=branch.value,
                severity=ERROR,
                message=f"Partitions of the {branch} branch have another number of buckets than option bucket "
                f"({wanted}): {_listed(state.layout, other)}",
                at_risk="Paimon refuses to merge them with others ('Inconsistent bucket num')",
                repair="overwrite these partitions",
            )


def _shadowing(state: ChainState) -> Iterator[Finding]:
    held = state.partitions
    hiding = sorted(held.main & (held.snapshot | held.delta), key=state.layout.text_of)
    alone = sorted(held.main - held.snapshot - held.delta, key=state.layout.text_of)
    if hiding:
        yield Finding(
            kind="shadowed-by-main",
            subject=MAIN,
            severity=WARNING,
            message=f"Main has partitions that the branches have as well: {_listed(state.layout, hiding)}",
            at_risk="reads of these return main's rows alone; later deltas of them are never seen",
            repair="drop them from main, or from the branches",
        )
    if alone:
        yield Finding(
            kind="in-main",
            subject=MAIN,
            severity=INFO,
            message=f"Main has partitions that the branches lack: {_listed(state.layout, alone)}",
            at_risk="nothing; they take no part in chains and never expire with them",
        )


def _stale(layout: ChainLayout, stale: StalePartition) -> Finding:
    text = layout.text_of(stale.values)
    lost = f"; {_listed(layout, stale.lost)} can't be restored" if stale.lost else ""
    return Finding(
        kind="stale-partition",
        subject=text,
        severity=WARNING,
        message=f"Snapshot partition {text} is stale: {stale.reason}",
        at_risk="reads of it, and of the days after it, return rows that the deltas no longer contain",
        repair=f"rebuild it with compact_chain_table and overwrite, or drop it{lost}",
    )


def _hidden(state: ChainState, provenances: Mapping[Values, Provenance]) -> Iterator[Finding]:
    """Deltas hidden by a snapshot partition of unknown origin that have newer files, which are never read."""
    full = {v: _newest(splits) for v, splits in splits_by_partition(state.snapshot).items()}
    changed = {v: _newest(splits, rewritten=False) for v, splits in splits_by_partition(state.delta).items()}
    late = sorted(
        (v for v in full.keys() & changed.keys() if v not in provenances and 0 < full[v] < changed[v]),
        key=state.layout.text_of,
    )
    for values in late:
        text = state.layout.text_of(values)
        yield Finding(
            kind="hidden-delta",
            subject=text,
            severity=WARNING,
            message=f"Delta partition {text} has files that are newer than the snapshot partition that hides them",
            at_risk="late rows are read neither there nor later",
            repair="rebuild the snapshot partition with compact_chain_table and overwrite",
        )


def _newest(splits: Iterable[BucketSplit], *, rewritten: bool = True) -> int:
    """The newest file's creation time in epoch milliseconds, 0 if unknown. ``rewritten``: include compacted files."""
    found = (f for s in splits for f in s.files if rewritten or f.file_source != FileSource.COMPACT)
    return max((f.creation_time_ms or 0 for f in found), default=0)


def _places(layout: ChainLayout, group: GroupReport) -> Iterator[Finding]:
    label = layout.group_text(group.group) or "all"
    kinds = (
        ("unparsable-partition", group.without_time, "are without a partition time"),
        ("misspelt-partition", group.misspelt, "are not written as partition.timestamp-formatter writes them"),
        ("off-grid-partition", group.off_grid, f"lie between the {layout.clock.step.name.lower()}s of their group"),
    )
    for kind, some, what in kinds:
        if some:
            yield Finding(
                kind=kind,
                subject=label,
                severity=ERROR,
                message=f"Partitions {what}: {_listed(layout, some)}",
                at_risk="Paimon silently leaves them out of chains, or fails; reads of their group are refused here",
                repair="write their rows to partitions of that form, and drop them",
            )
    if group.gaps is None or group.gaps:
        gaps = f"{len(group.gaps)} gaps" if group.gaps is not None else "possibly gaps"
        days = _listed(layout, group.gaps) if group.gaps is not None else "there are too many steps to search"
        yield Finding(
            kind="gaps",
            subject=label,
            severity=INFO,
            message=f"{gaps} without any partition: {days}",
            at_risk="a read of such a day returns no rows; gap_policy='carry_forward' returns those of the day before",
        )
