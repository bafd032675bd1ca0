"""The layout of a chain table: groups of partitions, each a chronological line, in three branches; and the rules for
their schemas, from which it follows. Pure: Paimon checks most of them at the first read, or never.

A partition is (group columns..., chain columns...); the chain columns form a time. The snapshot branch holds full
partitions, the delta branch changes. ``TimeLines`` is created once per branch state; a group's line is sorted on first
use.

See docs/chain-tables.md, Set up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, KeysView
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataType, with_nullable
from airflow_paimon.core.table.options import CHAIN_BRANCHES, TableOptions
from airflow_paimon.core.table.partition_time import PartitionClock, partition_clock
from airflow_paimon.core.table.partition_values import format_partition, parse_partition_spec, readable_value

Values = tuple[Any, ...]
"""The values of a partition, in the order of the partition columns."""
GapPolicy = Literal["empty", "carry_forward"]


class ChainBranch(StrEnum):
    """The role of a branch in a chain table; its name is set by an option."""

    MAIN = "main"
    SNAPSHOT = "snapshot"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLayout:
    """The layout of a chain table. The first ``group_width`` partition columns are the group, the others the time."""

    label: str
    snapshot_branch: str
    delta_branch: str
    partition_keys: tuple[str, ...]
    partition_types: tuple[DataType, ...]
    group_width: int
    clock: PartitionClock

    def group_of(self, values: Values) -> Values:
        return values[: self.group_width]

    def text_of(self, values: Values) -> str:
        """Format a partition for messages."""
        return format_partition(values, self.partition_keys, self.partition_types)

    def group_text(self, group: Values) -> str:
        """Format a group for messages; empty where there is only one."""
        width = self.group_width
        return format_partition(group, self.partition_keys[:width], self.partition_types[:width])

    def spec_of(self, values: Values) -> dict[str, str]:
        """Return the texts of a partition's values by column, as requests have them."""
        typed = zip(self.partition_keys, values, self.partition_types, strict=True)
        return {key: readable_value(value, data_type) for key, value, data_type in typed}

    def parsed_time(self, values: Values) -> datetime | None:
        """Return the time of a partition's values, None if they are not a time."""
        try:
            return self.clock.time_of(self._texts(values))
        except ValueError:
            return None

    def time_of(self, values: Values) -> datetime:
        """Return the time of a partition that takes part in a chain.

        Raises:
            InvalidInputError: it has none, or is written in a form that Paimon silently skips (``5`` where the
            formatter writes ``05``).
        """
        moment = self.parsed_time(values)
        if moment is None:
            raise self._misplaced(values, "write its rows to a partition of that form, and drop this one if it exists")
        if self.clock.texts_at(moment) != self._texts(values):
            right = self.text_of(self.values_at(self.group_of(values), moment))
            raise self._misplaced(values, f"write its rows to {right}")
        return moment

    def _misplaced(self, values: Values, way_out: str) -> InvalidInputError:
        timeless = self.parsed_time(values) is None
        why = "is without a partition time" if timeless else "is not written as the formatter writes it"
        return InvalidInputError(
            f"{self.label}: partition {self.text_of(values)} {why} (partition.timestamp-pattern "
            f"{self.clock.pattern!r}, partition.timestamp-formatter {self.clock.formatter.text!r}); {way_out}",
            code="no-partition-time",
        )

    def values_at(self, group: Values, moment: datetime) -> Values:
        """Return the partition of a group at a time."""
        keys, types = self.partition_keys[self.group_width :], self.partition_types[self.group_width :]
        by_key = parse_partition_spec(dict(zip(keys, self.clock.texts_at(moment), strict=True)), keys, types)
        return (*group, *(by_key[k] for k in keys))

    def _texts(self, values: Values) -> tuple[str, ...]:
        chain = zip(values[self.group_width :], self.partition_types[self.group_width :], strict=True)
        return tuple(readable_value(v, t) for v, t in chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """The partitions of each branch with at least one live file, even if all its rows are deletes."""

    main: frozenset[Values] = frozenset()
    snapshot: frozenset[Values] = frozenset()
    delta: frozenset[Values] = frozenset()

    @property
    def all(self) -> frozenset[Values]:
        return self.main | self.snapshot | self.delta


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Partitions of one group and branch in chronological order."""

    times: tuple[datetime, ...] = ()
    values: tuple[Values, ...] = ()

    def between(self, first: datetime | None, end: datetime | None) -> tuple[Values, ...]:
        """Return those from ``first`` (inclusive) to ``end`` (exclusive); None: no such bound."""
        low = 0 if first is None else bisect_left(self.times, first)
        high = len(self.times) if end is None else bisect_left(self.times, end)
        return self.values[low:high]

    def up_to(self, after: datetime | None, last: datetime) -> tuple[Values, ...]:
        """Return those later than ``after``, up to and including ``last``."""
        low = 0 if after is None else bisect_right(self.times, after)
        return self.values[low : bisect_right(self.times, last)]

    def inside(self, after: datetime | None, end: datetime | None) -> tuple[Values, ...]:
        """Return those later than ``after`` and before ``end``; None: no such bound."""
        low = 0 if after is None else bisect_right(self.times, after)
        high = len(self.times) if end is None else bisect_left(self.times, end)
        return self.values[low:high]

    def before(self, moment: datetime) -> tuple[datetime | None, Values | None]:
        """Return the last one that is earlier than ``moment``, with its time; (None, None): there is none."""
        at = bisect_left(self.times, moment)
        return (self.times[at - 1], self.values[at - 1]) if at else (None, None)

    def time_from(self, moment: datetime) -> datetime | None:
        """Return the time of the first one at ``moment`` or later."""
        at = bisect_left(self.times, moment)
        return self.times[at] if at < len(self.times) else None

    def time_after(self, moment: datetime) -> datetime | None:
        """Return the time of the first one later than ``moment``."""
        at = bisect_right(self.times, moment)
        return self.times[at] if at < len(self.times) else None


class TimeLines:
    """The time line of each group. ``held``: all partitions, with a time or without.

    Args:
        strict: Raise ``InvalidInputError`` for a group with a partition that can't be part of a chain
        (``ChainLayout.time_of``). Otherwise it is left out; see ``without_time``.
    """

    def __init__(self, layout: ChainLayout, held: Iterable[Values], *, strict: bool = False) -> None:
        self.layout = layout
        self.held = frozenset(held)
        self._strict = strict
        self._groups: dict[Values, list[Values]] = {}
        self._lines: dict[Values, TimeLine] = {}
        for values in self.held:
            self._groups.setdefault(layout.group_of(values), []).append(values)

    @property
    def groups(self) -> KeysView[Values]:
        """The groups that hold a partition, with or without a time."""
        return self._groups.keys()

    def of(self, group: Values) -> TimeLine:
        """Return a group's line; an empty one for a group without partitions.

        Raises:
            InvalidInputError: ``strict``, and a partition of the group can't be part of a chain.
        """
        if group not in self._lines:
            time_of = self.layout.time_of if self._strict else self.layout.parsed_time
            timed = [(t, v) for v in self._groups.get(group, ()) if (t := time_of(v)) is not None]
            timed.sort(key=lambda pair: pair[0])
            self._lines[group] = TimeLine(tuple(t for t, _ in timed), tuple(v for _, v in timed))
        return self._lines[group]

    def without_time(self, group: Values) -> tuple[Values, ...]:
        """Return the partitions of a group whose values are not a time."""
        timed = frozenset(self.of(group).values)
        return tuple(v for v in self._groups.get(group, ()) if v not in timed)


MERGE_ENGINES = ("deduplicate", "partial-update")
_FLOATS = ("FLOAT", "DOUBLE")
SAME_OPTIONS = {
    **dict.fromkeys((*CHAIN_BRANCHES, "partition.timestamp-pattern", "partition.timestamp-formatter"), ""),
    **dict.fromkeys(("chain-table.chain-partition-keys", "bucket-key", "sequence.field"), ""),
    "chain-table.enabled": "false",
    "bucket": "-1",
    "bucket-function.type": "default",
    "merge-engine": "deduplicate",
    "sequence.field.sort-order": "ascending",
    "deletion-vectors.enabled": "false",
}
"""Options on which the three branches must agree, with their defaults."""


def chain_layout(schema: TableSchema, label: str) -> ChainLayout:
    """Return the layout of a chain table from main's schema.

    Raises:
        InvalidInputError: it is not a chain table, or violates rules of ``schema_problems``, all of which are listed.
    """
    problems = schema_problems(schema)
    if not TableOptions(schema.options).chain_table:
        problems = problems[:1]  # the other rules don't matter for an ordinary table
    if problems:
        raise _refusal(InvalidInputError, label, problems)
    options = TableOptions(schema.options)
    clock, _ = _clock(schema)
    assert clock is not None and options.snapshot_branch is not None and options.delta_branch is not None
    return ChainLayout(
        label=label,
        snapshot_branch=options.snapshot_branch,
        delta_branch=options.delta_branch,
        partition_keys=schema.partition_keys,
        partition_types=schema.partition_types,
        group_width=len(schema.partition_keys) - len(clock.columns),
        clock=clock,
    )


def _refusal(error: type[PaimonError], label: str, problems: list[str]) -> PaimonError:
    return error(f"{label} can't be used as a chain table: {'; '.join(problems)}", details={"problems": problems})


def schema_problems(schema: TableSchema) -> list[str]:
    """Return the rules that one branch's schema violates; each line names the option and the way out."""
    options = TableOptions(schema.options)
    problems = (
        []
        if options.chain_table
        else ["it is not a chain table (chain-table.enabled=true): create_chain_table makes it one"]
    )
    for key in CHAIN_BRANCHES:
        if not options.text(key):
            problems.append(f"option {key} is missing: without it Paimon silently reads main alone")
    names = [options.text(key).lower() for key in CHAIN_BRANCHES]
    if names[0] and names[0] == names[1]:
        problems.append(f"{' and '.join(CHAIN_BRANCHES)} name the same branch {names[0]!r}")
    if "main" in names:
        problems.append("main can't be its own snapshot or delta branch")
    return problems + _key_problems(schema, options) + _merge_problems(schema, options) + _clock(schema)[1]


def _key_problems(schema: TableSchema, options: TableOptions) -> list[str]:
    problems = []
    if not schema.primary_keys:
        problems.append("a primary key is required")
    if not schema.partition_keys:
        problems.append("it must be partitioned")
    elif schema.crosses_partitions:
        problems.append("the primary key must include the partition columns")
    if options.bucket <= 0:
        problems.append(f"option bucket must be greater than 0, it is {options.bucket}")
    for field in schema.partition_fields:
        if getattr(field.type, "root", "") in _FLOATS:
            problems.append(f"partition column {field.name} is a floating-point number, which is not comparable")
    return problems


def _merge_problems(schema: TableSchema, options: TableOptions) -> list[str]:
    problems = []
    if not options.sequence_fields:
        problems.append("option sequence.field is required: it decides which version of a row is newer")
    for name in options.sequence_fields:
        if name in schema.partition_keys:
            problems.append(f"sequence.field {name} is a partition column, so every version of a row would tie")
        elif name not in schema.field_names:
            problems.append(f"sequence.field {name} is not a column")
    if options.merge_engine not in MERGE_ENGINES:
        problems.append(f"merge-engine={options.merge_engine} is not one of {', '.join(MERGE_ENGINES)}")
    if options.text("changelog-producer", "none").lower() not in ("none", "input"):
        problems.append("changelog-producer must be none or input")
    if options.deletion_vectors and options.merge_engine != "deduplicate":
        problems.append("deletion vectors need merge-engine=deduplicate")
    strategy = options.text("partition.expiration-strategy", "values-time").lower()
    if options.text("partition.expiration-time") and strategy != "values-time":
        problems.append(f"partition.expiration-strategy must be values-time, it is {strategy}")
    return problems


def chain_keys(schema: TableSchema) -> tuple[str, ...]:
    """Return the partition columns that form the time: option ``chain-table.chain-partition-keys``, else all."""
    return TableOptions(schema.options).chain_partition_keys or schema.partition_keys


def _clock(schema: TableSchema) -> tuple[PartitionClock | None, list[str]]:
    options = TableOptions(schema.options)
    keys = chain_keys(schema)
    if not keys:
        return None, []
    if schema.partition_keys[-len(keys) :] != keys:
        return None, [
            f"chain-table.chain-partition-keys ({', '.join(keys)}) must be the last partition columns in their order "
            f"(partition columns: {', '.join(schema.partition_keys)})"
        ]
    group = schema.partition_keys[: -len(keys)]
    try:
        pattern = options.text("partition.timestamp-pattern")
        clock = partition_clock(pattern, options.text("partition.timestamp-formatter"), keys, group)
    except InvalidInputError as error:
        return None, [error.message]
    problem = clock.sort_problem
    if problem is None:
        return clock, []
    return clock, [
        f"partitions don't sort in the order of time ({problem}), so Paimon takes wrong anchors; use a form such as "
        f"yyyyMMdd"
    ]


def branch_problems(main: TableSchema, snapshot: TableSchema | None, delta: TableSchema | None) -> dict[str, str]:
    """Return the rules that the three branches together violate, by what they are about: ``delta`` (it does not exist,
    None), ``delta/columns``, ``delta/bucket``.
    """
    problems: dict[str, str] = {}
    options = TableOptions(main.options)
    for name, schema in ((options.snapshot_branch, snapshot), (options.delta_branch, delta)):
        if name is None:
            continue  # which schema_problems names
        if schema is None:
            problems[name] = f"branch {name!r} does not exist: create it, or reset the option that names it"
            continue
        if _columns(schema) != _columns(main):
            problems[f"{name}/columns"] = (
                f"branch {name!r} has other columns than main: apply the same ALTER to it (alter_chain_table does so)"
            )
        if (schema.partition_keys, schema.primary_keys) != (main.partition_keys, main.primary_keys):
            problems[f"{name}/keys"] = f"branch {name!r} has another primary key or other partition columns than main"
        for key, default in SAME_OPTIONS.items():
            ours, theirs = options.text(key, default), TableOptions(schema.options).text(key, default)
            if ours != theirs:
                problems[f"{name}/{key}"] = (
                    f"option {key} is {theirs!r} in branch {name!r}, but {ours!r} in main: make them equal"
                )
        if _deletes(schema) != _deletes(main):
            problems[f"{name}/deletes"] = (
                f"branch {name!r} handles deletes differently from main (options ignore-delete, "
                f"partial-update.remove-record-on-delete), so their rows can't be merged: make them equal"
            )
    return problems


def _deletes(schema: TableSchema) -> tuple[bool, bool]:
    """The meaning of a delete when this branch's rows are merged: is it ignored, does it remove rows."""
    options = TableOptions(schema.options)
    removes = options.merge_engine == "partial-update" and options.flag("partial-update.remove-record-on-delete")
    return options.ignore_delete, removes


def _columns(schema: TableSchema) -> list[object]:
    return [(f.name, with_nullable(f.type, True)) for f in schema.fields]


def check_chain_branches(
    label: str, main: TableSchema, snapshot: TableSchema | None, delta: TableSchema | None
) -> ChainLayout:
    """Check the schemas of all three branches and return the layout.

    Raises:
        NotFoundError: a branch does not exist. InvalidInputError: the schemas are not those of one chain table.
    """
    layout = chain_layout(main, label)
    problems = branch_problems(main, snapshot, delta)
    if problems:
        missing = snapshot is None or delta is None
        raise _refusal(NotFoundError if missing else InvalidInputError, label, list(problems.values()))
    return layout
