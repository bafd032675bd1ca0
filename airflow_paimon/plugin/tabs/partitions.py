"""The tabs Partitions and Files: what is live in the branch's newest snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, moment, number, sheet_of, size, text
from airflow_paimon.shown.listing import size_text
from airflow_paimon.shown.live_files import LiveFiles, partitions, read_live_files, small_below, source_name

_ROWS = 100
_MANY_SMALL = 10
"""Small files in each bucket, on average, from which the page speaks of compaction."""
_PARTITIONS = ("partition", "rows", "files", "bytes", "average", "newest", "small")
"""What the list of partitions has in its columns, in ``LiveFiles``."""
_FILES = (
    ("partition", Column("Partition")),
    ("bucket", Column("Bucket", number=True)),
    ("level", Column("Level", number=True)),
    ("rows", Column("Stored rows", number=True)),
    ("bytes", Column("Size", number=True)),
    ("schema", Column("Schema", number=True)),
    ("source", Column("Written by")),
    ("created", Column("Created (UTC)")),
    ("name", Column("File")),
)


def _live(context: PageContext) -> tuple[LiveFiles, int]:
    """Raises ``StillReadingError`` while a large table is read for the first time."""
    head = context.view_head
    small = small_below(context.options)
    view = context.cached.branch(context.view.branch_name)
    key = (context.uri, "files", view.branch_name, head.identity if head else None, context.schema.id, small)
    found = context.reader.get(
        key, lambda: read_live_files(view, head, small), until=context.until, weigh=lambda live: live.weight
    )
    return found, small


def show(context: PageContext) -> Panel:
    """Show a page of the partitions."""
    live, small = _live(context)
    table = live.partitions
    average = pc.divide(table["bytes"], pc.max_element_wise(table["files"], 1))
    (shown, total), page, pages = _page(context, table.append_column("average", average), ("partition",))
    crowded = {r["partition"] for r in shown.to_pylist() if _is_many_small(r)}
    sheet = sheet_of(
        partitions(shown), context.now_ms, q=None, page=1, size=_ROWS, empty="No partition holds a file",
        links={"partition": lambda row: context.asked.href(tab="files", q=row["partition"], page=1, sort="")},
        marks={"small files": lambda row: "warn" if row["partition"] in crowded else ""},
    )  # fmt: skip
    columns = [replace(c, href=_turned(context, n), order=_arrow(context, n))
               for c, n in zip(sheet.columns, _PARTITIONS, strict=True)]  # fmt: skip
    sheet = replace(sheet, columns=columns, total=total, page=page, pages=pages, search=context.asked.q)
    many = sum(_is_many_small(r) for r in live.partitions.select(["small", "buckets"]).to_pylist())
    notes = [f"{many:,} of {live.partitions.num_rows:,} partitions have many small files (below {size_text(small)}): "
             f"compact them."] if many else []  # fmt: skip
    return Panel(sheets=[sheet], notes=[*notes, *_elsewhere(context)])


def _is_many_small(row: dict[str, Any]) -> bool:
    return bool(row["small"] >= _MANY_SMALL * max(1, row["buckets"]))


def show_files(context: PageContext) -> Panel:
    """Show a page of the data files."""
    live, _ = _live(context)
    table, page, pages = _page(context, live.files, ("partition", "name"))
    rows = [_file(context, r) for r in table[0].to_pylist()]
    sheet = Sheet(columns=_sortable(context, _FILES), rows=rows, total=table[1], page=page, pages=pages,
                  search=context.asked.q, empty="No files")  # fmt: skip
    return Panel(sheets=[sheet], notes=_elsewhere(context))


def _file(context: PageContext, row: dict[str, Any]) -> list[Cell]:
    return [
        text(row["partition"]),
        number(row["bucket"]),
        number(row["level"]),
        number(row["rows"]),
        size(row["bytes"]),
        number(row["schema"]),
        Cell(source_name(row["source"])),
        moment(row["created"], context.now_ms),
        Cell(row["name"], title=row["external"] or ""),
    ]


def _page(context: PageContext, table: pa.Table, searched: tuple[str, ...]) -> tuple[tuple[pa.Table, int], int, int]:
    """Search, sort and cut: the rows of the page and how many there are."""
    asked = context.asked
    if asked.q:
        hits = [pc.match_substring(table[name], asked.q, ignore_case=True) for name in searched]
        found = hits[0]
        for more in hits[1:]:
            found = pc.or_(found, more)
        table = table.filter(found)
    order = asked.sort or "-partition"
    name, direction = order.lstrip("-"), "descending" if order.startswith("-") else "ascending"
    if name not in table.column_names:
        name, direction = "partition", "descending"
    page, pages, first, last = context.page_of(table.num_rows, _ROWS)
    chosen = pc.select_k_unstable(table, k=last, sort_keys=[(name, direction)]) if last else pa.array([], pa.int64())
    return (table.take(chosen[first:]), table.num_rows), page, pages


def _sortable(context: PageContext, columns: tuple[tuple[str, Column], ...]) -> list[Column]:
    return [
        Column(c.title, c.number, c.help, _turned(context, name), _arrow(context, name)) for name, c in columns
    ]  # fmt: skip


def _turned(context: PageContext, name: str) -> str:
    return context.asked.href(sort=name if context.asked.sort == f"-{name}" else f"-{name}", page=1)


def _arrow(context: PageContext, name: str) -> str:
    order = context.asked.sort or "-partition"
    return "" if order.lstrip("-") != name else "descending" if order.startswith("-") else "ascending"


def _elsewhere(context: PageContext) -> list[str]:
    """Say what main of a chain table doesn't hold, so that it isn't taken for empty."""
    options = context.options
    if context.view.branch_name != context.main.branch_name or not options.chain_table:
        return []
    return [f"This is main alone. The table is a chain table: choose branch {options.snapshot_branch} (full "
            f"partitions) or {options.delta_branch} (changes), or see the tab Grid."]  # fmt: skip
