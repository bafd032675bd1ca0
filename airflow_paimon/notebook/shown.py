"""Tags, options and diffs of a table: values of Python that a notebook shows as tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.errors import UnsupportedError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.diff.differing_buckets import plan_diff
from airflow_paimon.data.diff.run_diff import KINDS, compare_here, diff_fits, diff_result
from airflow_paimon.shown import diff_lists, lists
from airflow_paimon.shown.html import line_html

_NOT_LISTED = "details has them"


class Tags(list[Tag]):
    """The tags of a branch, by snapshot."""

    def __repr__(self) -> str:
        return repr(lists.tags(self))

    def _repr_html_(self) -> str:
        return lists.tags(self).to_html("")


class Options(dict[str, str]):
    """The options that are set on a branch, as they are stored; what is shown hides those that may be secrets."""

    def __repr__(self) -> str:
        return repr(lists.options(self))

    def _repr_html_(self) -> str:
        return lists.options(self).to_html("")


@dataclass(frozen=True, slots=True)
class Diff:
    """``details``: those of the result of ``diff_branches`` (docs/reference/results.md)."""

    details: Mapping[str, Any]

    @property
    def different(self) -> bool:
        """Whether the two sides differ."""
        return bool(self.details["different"])

    @property
    def total(self) -> Mapping[str, Any]:
        """How many rows were added, changed and deleted, and how many are unchanged."""
        total: Mapping[str, Any] = self.details["total"]
        return total

    def samples(self, kind: str) -> list[dict[str, Any]]:
        """Return the sample rows that were ``added``, ``changed`` (``before`` and ``after``) or ``deleted``."""
        return [row for partition in self.details["partitions"] for row in partition.get("samples", {}).get(kind, ())]

    def __repr__(self) -> str:
        return "\n".join([self._headline(), diff_lists.counts(self.details).to_text(_NOT_LISTED), *self._notes()])

    def _repr_html_(self) -> str:
        parts = [line_html(self._headline())]
        if self.details["partitions"]:
            parts.append(diff_lists.counts(self.details).to_html(_NOT_LISTED))
        for name, kind, listing in diff_lists.samples(self.details):
            parts += [line_html(f"{name}, some {kind} rows"), listing.to_html(_NOT_LISTED)]
        return "".join([*parts, *map(line_html, self._notes())])

    def _headline(self) -> str:
        found, total = self.details, self.total
        sides = (
            f"Branch {found['branch']} (snapshot {found['branch_snapshot']}) compared with {found['against']} "
            f"(snapshot {found['against_snapshot']})"
        )
        if not found["different"]:
            return f"{sides}: no row differs"
        counts = ", ".join(f"{total[kind]:,} {kind}" for kind in KINDS)
        return f"{sides}: rows {counts}, {diff_lists.unchanged_text(total)} unchanged"

    def _notes(self) -> list[str]:
        return [f"Note: {note}" for note in self.details["notes"]]


def compare(
    table: Table,
    branch: str,
    against: str,
    partitions: Sequence[str],
    sample: int,
    mask: Sequence[str],
    however_large: bool,
) -> Diff:
    """See ``ReadableTable.diff``."""
    main = table.branch(MAIN)
    request = DiffBranches(
        table=main.name, branch=branch, against=against, partitions=tuple(partitions), sample=sample, mask=tuple(mask)
    )
    context = Context(request, main.require(), int(time.time() * 1000), time.monotonic())
    plan = plan_diff(context, request)
    if not however_large and not diff_fits(plan):
        raise UnsupportedError(
            f"{main.branch(branch).label}: what differs is too much for a diff in this process. Name partitions=, give "
            f"however_large=True and wait, or run the job diff_branches, which has Spark"
        )
    return Diff(diff_result(context, request, plan, compare_here(plan, sample)).details)
