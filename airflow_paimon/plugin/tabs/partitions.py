"""The tabs Partitions and Files: what is live in the branch's newest snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import ByColumn, Sheet, heading, paged, sheet_of
from airflow_paimon.shown.listing import Listing, size_text
from airflow_paimon.shown.live_files import LiveFiles, files, partitions, read_live_files, small_below

_ROWS = 100
_MANY_SMALL = 10
"""Small files in each bucket, on average, from which the page speaks of compaction."""
_PARTITIONS = ("partition", "rows", "files", "bytes", "average", "newest", "small")
_FILES = ("partition", "bucket", "level", "rows", "bytes", "schema", "source", "created", "name")
"""What the lists have in their columns, in ``LiveFiles``."""


def _live(context: PageContext) -> tuple[LiveFiles, int]:
    """Raises ``StillReadingError`` while a large table is read for the first time."""
    head = context.view_head
    small = small_below(context.options)
    view = context.cached.branch(context.view.branch_name)
    found = context.read(
        "files", view.branch_name, head.identity if head else None, context.schema.id, small,
        make=lambda: read_live_files(view, head, small), fresh=None, weigh=lambda live: live.weight,
    )  # fmt: skip
    return found, small


def show(context: PageContext) -> Panel:
    """Show a page of the partitions."""
    live, small = _live(context)
    table = live.partitions
    average = pc.divide(table["bytes"], pc.max_element_wise(table["files"], 1))

    def crowded(row: Mapping[str, Any]) -> str:
        return "warn" if row["partition"] in many else ""

    is_many = pc.greater_equal(table["small"], pc.multiply(pc.max_element_wise(table["buckets"], 1), _MANY_SMALL))
    many = set(table.filter(is_many)["partition"].to_pylist())
    sheet = _sheet(
        context, table.append_column("average", average), ("partition",), partitions, _PARTITIONS,
        links={"partition": lambda row: context.query.href(tab="files", q=row["partition"], page=1, sort="")},
        marks={"small files": crowded},
    )  # fmt: skip
    notes = [f"{len(many):,} of {table.num_rows:,} partitions have many small files (below {size_text(small)}): "
             f"compact them."] if many else []  # fmt: skip
    return Panel(sheets=[sheet], notes=[*notes, *_elsewhere(context)])


def show_files(context: PageContext) -> Panel:
    """Show a page of the data files."""
    live, _ = _live(context)
    shown = partial(files, schema=context.schema)
    sheet = _sheet(context, live.files, ("partition", "name"), shown, _FILES)
    return Panel(sheets=[sheet], notes=_elsewhere(context))


def _sheet(
    context: PageContext,
    table: pa.Table,
    searched: Sequence[str],
    shown: Callable[[pa.Table], Listing],
    order: Sequence[str],
    *,
    links: ByColumn | None = None,
    marks: ByColumn | None = None,
) -> Sheet:
    """Search, sort and cut a table, and list the rows of the page. ``order``: by what each column is sorted."""
    query = context.query
    if query.q:
        hits = [pc.match_substring(table[name], query.q, ignore_case=True) for name in searched]
        table = table.filter(reduce(pc.or_, hits))
    by, direction = _order(context, order)
    page, pages, first, last = paged(table.num_rows, query.page, _ROWS)
    chosen = pc.select_k_unstable(table, k=last, sort_keys=[(by, direction)]) if last else pa.array([], pa.int64())
    empty = "Nothing has this in its name" if query.q else "No file is live here: nothing was written yet"
    listing = shown(table.take(chosen[first:]))
    sheet = sheet_of(listing, context.now_ms, size=_ROWS, empty=empty, links=links, marks=marks)
    by_title = {heading(name, kind): name_of for (name, kind), name_of in zip(listing.columns, order, strict=True)}
    columns = [
        replace(c, href=query.href(sort=name if query.sort == f"-{name}" else f"-{name}", page=1),
                order=direction if by == name else "")
        for c in sheet.columns
        for name in [by_title[c.title]]
    ]  # fmt: skip
    return replace(sheet, columns=columns, total=table.num_rows, page=page, pages=pages, search=query.q)


def _order(context: PageContext, known: Sequence[str]) -> tuple[str, str]:
    """Return the column to sort by, and how."""
    name = context.query.sort.lstrip("-")
    if name not in known:
        return "partition", "descending"
    return name, "descending" if context.query.sort.startswith("-") else "ascending"


def _elsewhere(context: PageContext) -> list[str]:
    """Say what main of a chain table doesn't hold, so that it isn't taken for empty."""
    options = context.options
    if context.view.branch_name != context.main.branch_name or not options.chain_table:
        return []
    return [f"This is main alone. The table is a chain table: choose branch {options.snapshot_branch} (full "
            f"partitions) or {options.delta_branch} (changes), or see the tab Grid."]  # fmt: skip
