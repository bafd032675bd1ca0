"""What a list of tables says of each: a few small reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.main_state import main_state
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.shown.listing import Listing, heads, utc_time
from airflow_paimon.shown.lists import STORED_ROWS

_NOT_YET = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """``problem`` instead of the rest when it can't be read. ``state_of``: the branch that main is the state of."""

    kind: str = ""
    partitioned_by: Sequence[str] = ()
    branches: int = 0
    newest: Snapshot | None = None
    rows: int | None = None
    state_of: str | None = None
    problem: str = ""


def glance(table: Table, *, with_state: bool = False) -> Glance | None:
    """Read a table's newest schema and snapshots; a chain table's newest commit may be one of its branches.

    None: the folder holds no table.
    """
    try:
        if not table.exists():
            return None
        schema = table.schema()
        options = TableOptions(schema.options)
        chain = [options.snapshot_branch, options.delta_branch] if options.chain_table else []
        heads = [table.branch(name).hinted_snapshot() for name in (MAIN, *chain) if name]
        return Glance(
            kind="chain" if options.chain_table else "primary key" if schema.primary_keys else "append",
            partitioned_by=schema.partition_keys,
            branches=len(table.branch_names()),
            newest=max((h for h in heads if h), key=lambda h: h.time_millis, default=None),
            rows=heads[0].total_record_count if heads[0] and not chain else None,
            state_of=main_state(table)["is_state_of"] if with_state else None,
        )
    except PaimonError as error:
        return Glance(problem=error.message)


def tables(found: Sequence[tuple[str, Glance | None]], clean: Callable[[str], str] = str) -> Listing:
    """List tables; None: it is still being read. ``clean`` takes secrets out of a storage's message."""
    names = heads(
        "table | kind | partitioned by | branches: number | snapshot: number | committed: utc | "
        "stored rows: number | state of"
    )
    rows: list[list[object]] = []
    for name, one in found:
        if one is None or one.problem:
            kind = f"unreadable: {clean(one.problem)}" if one else _NOT_YET
            rows.append([name, kind, *[None] * (len(names) - 2)])
        else:
            last = (one.newest.id, utc_time(one.newest.time_millis)) if one.newest else (None, None)
            rows.append([name, one.kind, one.partitioned_by, one.branches, *last, one.rows, one.state_of])
    return Listing(title="tables", columns=names, rows=rows, help={"stored rows": STORED_ROWS})
