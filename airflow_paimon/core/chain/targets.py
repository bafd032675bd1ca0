"""Parses and checks the partitions that a compaction request names. No storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_paimon.core.chain.layout import ChainLayout, GapPolicy, Values
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.partitions import parse_partition_spec

_SAMPLE = datetime(2000, 1, 1)
"""Stands in for chain columns missing in a spec when one column's form is checked: a leap year, a long month."""

Spec = tuple[tuple[int, Any], ...]
"""Positions of partition columns and their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTargets:
    """The partitions to make full. ``specs`` name partitions or, with a range or ``max_chain_length``, filter them.

    ``first`` and ``last``: the range, both inclusive. ``max_chain_length``: if given, select longer chains.
    ``finished`` partitions are skipped; those of ``again`` are rebuilt.
    """

    specs: tuple[Spec, ...] = ()
    first: datetime | None = None
    last: datetime | None = None
    max_chain_length: int | None = None
    overwrite: bool = False
    gap_policy: GapPolicy = "empty"
    finished: frozenset[Values] = frozenset()
    again: frozenset[Values] = frozenset()

    @property
    def is_range(self) -> bool:
        return self.first is not None or self.last is not None

    def matches(self, values: Values) -> bool:
        """Return whether the specs, if there are any, allow a partition or (a prefix of values) a group."""
        return not self.specs or any(_fits(spec, values) for spec in self.specs)

    def names(self, layout: ChainLayout, moment: datetime) -> bool:
        """Return whether a spec names the partitions of exactly this time."""
        return any(moment_of(layout, spec) == moment for spec in self.specs) and not self.is_range

    def in_range(self, moment: datetime) -> bool:
        return (self.first is None or self.first <= moment) and (self.last is None or moment <= self.last)


def _fits(spec: Spec, values: Values) -> bool:
    return all(at >= len(values) or values[at] == value for at, value in spec)


def parse_targets(
    layout: ChainLayout,
    *,
    partitions: Sequence[str] = (),
    first: str | None = None,
    last: str | None = None,
    pending: bool = False,
    max_chain_length: int | None = None,
    overwrite: bool = False,
    gap_policy: GapPolicy = "empty",
) -> ChainTargets:
    """Check a request against the layout. ``partitions`` are ``k=v,...``, full or partial; quotes change nothing.

    Raises:
        InvalidInputError: no or contradictory selections, a key is not a partition column, a value is not of its type
        or not in the form of the table's ``partition.timestamp-formatter``.
    """
    is_range = first is not None or last is not None
    if pending and is_range:
        raise _refused(layout, "give a range (--from, --to) or --pending, not both")
    if not partitions and not is_range and not pending:
        raise _refused(layout, "name what to compact: --partition, --from/--to, or --pending with --max-chain-length")
    if pending != (max_chain_length is not None):
        raise _refused(layout, "--pending and --max-chain-length N go together: N deltas may stay unmerged")
    if max_chain_length is not None and max_chain_length < 0:
        raise _refused(layout, f"--max-chain-length must be 0 or more, not {max_chain_length}")
    bounds = [None if text is None else _moment(layout, text) for text in (first, last)]
    if bounds[0] is not None and bounds[1] is not None and bounds[0] > bounds[1]:
        raise _refused(layout, f"--from {first} is later than --to {last}")
    return ChainTargets(
        specs=tuple(_spec(layout, text) for text in partitions),
        first=bounds[0],
        last=bounds[1],
        max_chain_length=max_chain_length,
        overwrite=overwrite,
        gap_policy=gap_policy,
    )


def moment_of(layout: ChainLayout, spec: Spec) -> datetime | None:
    """Return the time that a spec names; None if it lacks a chain column."""
    chain = dict(spec)
    width = len(layout.partition_keys)
    if any(at not in chain for at in range(layout.group_width, width)):
        return None
    fill: list[Any] = [None] * layout.group_width
    return layout.time_of((*fill, *(chain[at] for at in range(layout.group_width, width))))


def _spec(layout: ChainLayout, text: str) -> Spec:
    keys = layout.partition_keys
    try:
        parsed = parse_partition_spec(text, keys, layout.partition_types)
    except InvalidInputError as error:
        raise _refused(layout, error.message) from None
    spec = tuple((keys.index(k), v) for k, v in parsed.items())
    _check_form(layout, text, dict(spec))
    return spec


def _check_form(layout: ChainLayout, text: str, given: dict[int, Any]) -> None:
    """Refuse a value that no partition of this table can have, for which Paimon silently finds nothing."""
    width = layout.group_width
    if not any(at >= width for at in given):
        return
    group: Values = (None,) * width
    sample = layout.values_at(group, _SAMPLE)
    values = tuple(given.get(at, sample[at]) for at in range(width, len(sample)))
    moment = layout.parsed_time((*group, *values))
    if moment is None or layout.values_at(group, moment)[width:] != values:
        clock = layout.clock
        like = layout.text_of(layout.values_at(group, moment or _SAMPLE)).split("/")[width:]
        raise _refused(
            layout,
            f"partition {text} is not written as the table's partitions are (partition.timestamp-pattern "
            f"{clock.pattern!r}, partition.timestamp-formatter {clock.formatter.text!r}); write it like "
            f"{','.join(like)}",
        )


def _moment(layout: ChainLayout, text: str) -> datetime:
    spec = _spec(layout, text)
    keys = layout.partition_keys[layout.group_width :]
    moment = moment_of(layout, spec) if all(at >= layout.group_width for at, _ in spec) else None
    if moment is None:
        raise _refused(layout, f"an end of a range names the columns {', '.join(keys)}, and no others; got {text!r}")
    return moment


def _refused(layout: ChainLayout, why: str) -> InvalidInputError:
    return InvalidInputError(f"{layout.label}: {why}")
