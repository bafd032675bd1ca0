"""The look-up of a chain table: what each group holds, and what a read of each partition is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_paimon.core.chain.check import ChainCheck, find_chain_problems
from airflow_paimon.core.chain.layout import ChainLayout, Values
from airflow_paimon.core.chain.read_plan import GroupReport, PartitionRead, plan_chain_read
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_values import format_partition
from airflow_paimon.core.table.table import Table
from airflow_paimon.shown import lists
from airflow_paimon.shown.listing import Listing, heads

_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """``findings``: what check_chain_table says; without sound schemas the rest is empty."""

    heading: str
    branches: Listing
    groups: Listing
    gaps: Listing
    reads: Listing
    findings: Listing

    def to_json(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).to_json() for name in ("branches", "groups", "gaps", "reads", "findings")}
        return {"table": self.heading, **parts}

    def to_text(self) -> str:
        parts = [self.branches, self.groups, self.gaps, self.reads, self.findings]
        return "\n\n".join([self.heading, *(p.to_text() for p in parts if p.rows or p is self.reads)])


def chain(table: Table, limit: int) -> ChainView:
    """Look at a chain table; the newest partitions of each group come first.

    Raises:
        InvalidInputError: it is an ordinary table.
    """
    if not TableOptions(table.require().schema().options).chain_table:
        raise InvalidInputError(
            f"{table.name} is not a chain table (option chain-table.enabled); create_chain_table makes it one"
        )
    check = find_chain_problems(table)
    heading = f"{table.name}: {'not a sound chain table' if check.state is None else _describe(check.state.layout)}"
    stale = (
        Counter(check.state.layout.group_of(s.values) for s in check.stale) if check.state is not None else Counter()
    )
    return ChainView(
        heading=heading,
        branches=_branches(check),
        groups=_listing("groups", _GROUPS, [_group_row(check, g, stale[g.group]) for g in check.groups]).first(limit),
        gaps=_listing("ranges of gaps", _GAPS, _gaps(check)).first(limit),
        reads=_listing("partitions", _READS, _reads(check)).first(limit),
        findings=lists.findings(check.findings).first(limit),
    )


_GROUPS = heads(
    "group | anchors: number | deltas: number | pending: number | newest anchor | newest delta | "
    "gaps: number | stale: number"
)
_GAPS = heads("gaps in | from | to | partitions: number")
_READS = heads("partition | read from | made of | reason | stale")


def _listing(title: str, columns: tuple[tuple[str, str], ...], rows: list[Any]) -> Listing:
    return Listing(title=title, columns=columns, rows=rows)


def _describe(layout: ChainLayout) -> str:
    width = layout.group_width
    group = f", a group for each {', '.join(layout.partition_keys[:width])}" if width else ""
    chain_columns = ", ".join(layout.partition_keys[width:])
    return f"a chain by {layout.clock.step.name.lower()} of {chain_columns}{group}"


def _branches(check: ChainCheck) -> Listing:
    columns = heads("part | branch | snapshot: number")
    state = check.state
    if state is None:
        return _listing("branches", columns, [])
    plans = {"main": state.main, "full partitions": state.snapshot, "changes": state.delta}
    rows = [(part, p.table.branch_name, p.snapshot.id if p.snapshot else None) for part, p in plans.items()]
    return _listing("branches", columns, rows)


def _group_row(check: ChainCheck, group: GroupReport, stale: int) -> list[Any]:
    assert check.state is not None
    layout = check.state.layout
    return [
        layout.group_text(group.group) or "all",
        len(group.snapshot),
        len(group.delta),
        len(group.pending),
        _chain_text(layout, group.snapshot[-1]) if group.snapshot else None,
        _chain_text(layout, group.delta[-1]) if group.delta else None,
        None if group.gaps is None else len(group.gaps),
        stale,
    ]


def _gaps(check: ChainCheck) -> list[list[Any]]:
    """Steps of the grids that no branch holds, those that follow each other as one range."""
    if check.state is None:
        return []
    layout = check.state.layout
    rows: list[list[Any]] = []
    for group in check.groups:
        last: datetime | None = None
        for values in group.gaps or ():
            moment = layout.time_of(values)
            text = _chain_text(layout, values)
            if last is not None and next(layout.clock.times_between(last, moment)) == moment:
                rows[-1][2:] = [text, rows[-1][3] + 1]
            else:
                rows.append([layout.group_text(group.group) or "all", text, text, 1])
            last = moment
    return rows


def _reads(check: ChainCheck) -> list[list[Any]]:
    """What each partition is read from, the newest first; groups that can't be read say why."""
    state = check.state
    if state is None:
        return []
    layout = state.layout
    stale = {s.values: s for s in check.stale}
    broken = {g.group for g in check.groups if g.without_time or g.misspelt}
    sound = plan_chain_read(
        layout, state.partitions, lambda values: [v for v in values if layout.group_of(v) not in broken]
    )
    rows = []
    for read in sorted(sound, key=lambda r: _newest_first(layout, r), reverse=True):
        anchor = read.anchor if read.anchor is not None else read.target
        blame = stale.get(anchor)
        rows.append(
            [
                layout.text_of(read.target),
                read.source.value,
                _made_of(layout, read),
                read.reason,
                None if blame is None else f"{layout.text_of(anchor)}: {blame.reason}",
            ]
        )
    for group in broken:
        text = layout.group_text(group) or "all"
        why = "a partition of the group is without a partition time; see the findings"
        rows.append([text, "refused", None, why, None])
    return rows


def _newest_first(layout: ChainLayout, read: PartitionRead) -> Any:
    moment = layout.parsed_time(read.target)
    return (moment is not None, moment, layout.text_of(read.target))


def _made_of(layout: ChainLayout, read: PartitionRead) -> str:
    start = [] if read.anchor is None else [f"full {_chain_text(layout, read.anchor)}"]
    deltas = [_chain_text(layout, d) for d in read.deltas]
    if len(deltas) > _NAMED:
        deltas = [deltas[0], "...", deltas[-1]]
    noun = "delta" if len(read.deltas) == 1 else "deltas"
    changes = [f"{len(read.deltas)} {noun} {' '.join(deltas)}"] if deltas else []
    return " + ".join([*start, *changes]) or f"{read.source} {_chain_text(layout, read.target)}"


def _chain_text(layout: ChainLayout, values: Values) -> str:
    """The columns of time alone: ``dt=20250101``."""
    width = layout.group_width
    return format_partition(values[width:], layout.partition_keys[width:], layout.partition_types[width:])
