"""Tables of all kinds after some commits, and what is planned and read of them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.manifest import EMPTY_STATS, FileKind, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.schema_plan import AddColumn, WidenColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.data.local import rewrite_files
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_groups import Layer
from tests.core.tables import alter_table, run
from tests.data.chain.examples import mark_deleted
from tests.data.chain.tables import set_options

KEYED = {"bucket": "2"}
KINDS: dict[str, dict[str, str]] = {
    "keyed": KEYED,
    "hidden level 0": {**KEYED, "merge-engine": "first-row"},
    "dynamic buckets": {"bucket": "-1"},
    "append": {"bucket": "-1", "row-tracking.enabled": "true"},
    "append in buckets": {"bucket": "2", "bucket-key": "k"},
    "deletion vectors": {"bucket": "-1", "deletion-vectors.enabled": "true"},
    "data evolution": {"bucket": "-1", "row-tracking.enabled": "true", "deletion-vectors.enabled": "true"},
    "fallback branch": {"bucket": "-1"},
    "primary branch": KEYED,
}
NO_KEYS = ("append", "append in buckets", "deletion vectors", "data evolution", "fallback branch")
OTHERS = {"fallback branch": "scan.fallback-branch", "primary branch": "scan.primary-branch"}
"""The options of tables that are read together with another branch."""


def make(kind: str, warehouse: str | None = None) -> Table:
    keyed = kind not in NO_KEYS
    columns = [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "INT")]
    keys = ["dt", "k"] if keyed else []
    return create_table(warehouse or f"memory://{uuid.uuid4()}/wh", "d.t", columns, partition_keys=["dt"],
                        primary_keys=keys, options={"write-only": "true", **KINDS[kind]})  # fmt: skip


def put(table: Table, draw: random.Random, days: str = "abc", **how: Any) -> None:
    found = [(draw.choice(days), draw.randint(0, 20), draw.randint(0, 99)) for _ in range(draw.randint(1, 6))]
    rows = pa.table({"dt": [r[0] for r in found], "k": pa.array([r[1] for r in found], pa.int32()),
                     "v": pa.array([r[2] for r in found], pa.int32())})  # fmt: skip
    write_arrow(table, rows, **how)


def compacted(table: Table, min_files: int) -> None:
    request = build_request("compact", {"warehouse": "w", "table": table.name, "min_files": min_files})
    assert isinstance(request, Compact)
    rewrite_files(Context(request, table, int(time.time() * 1000), time.monotonic()), request)


def put_columns(table: Table, draw: random.Random) -> None:
    """A file with new values of ``v`` for the rows of one that is there, as an UPDATE with data evolution adds it."""
    set_options(table, {"data-evolution.enabled": "true"})  # with which we write no rows
    held = [(s, f) for s in plan_scan(table).splits for f in s.files if f.write_cols is None]
    split, file = draw.choice(held)
    buffer = pa.BufferOutputStream()
    values = [draw.randint(100, 199) for _ in range(file.row_count)]
    pq.write_table(pa.table({"v": pa.array(values, arrow_schema([table.schema().field("v")]).field(0).type)}), buffer)
    new = file._replace(file_name=f"data-{uuid.uuid4()}-0.parquet", file_size=buffer.tell(), write_cols=("v",),
                        value_stats=EMPTY_STATS, value_stats_cols=(), schema_id=table.schema().id,
                        max_sequence_number=file.max_sequence_number + draw.randint(1, 9))  # fmt: skip
    table.store.create(data_file_path(table.schema(), split.values, split.bucket, new), buffer.getvalue().to_pybytes())
    entry = ManifestEntry(FileKind.ADD, split.partition, split.bucket, split.total_buckets, new)
    commit(table, lambda _: Draft(kind=CommitKind.APPEND, entries=[entry], schema=table.schema()))
    set_options(table, {"data-evolution.enabled": "false"})


def change(view: Table, kind: str, draw: random.Random) -> None:
    """A commit of some kind."""
    act = draw.random()
    if act < 0.2 and kind != "data evolution":
        compacted(view, draw.randint(2, 3))
    elif act < 0.35:
        put(view, draw, draw.choice("abc"), mode="dynamic_overwrite")
    else:
        put(view, draw, draw.choice(["abc", "cd"]))
    if kind == "data evolution":
        put_columns(view, draw)


def used(kind: str, draw: random.Random, warehouse: str | None = None) -> Table:
    """A table with files of several levels, files that are gone, and several manifests."""
    table = make(kind, warehouse)
    if kind in ("deletion vectors", "data evolution"):
        for day in "xy":
            put(table, draw, day)
            mark_deleted(table, (day,), [0])
    views = [table]
    if kind in OTHERS:
        put(table, draw, "ab")
        run(table, "create_branch", branch="other")
        views.append(table.branch("other"))
    for _ in range(5):
        change(draw.choice(views), kind, draw)
    run(table, "create_tag", tag="then")
    put(draw.choice(views), draw)
    for view in views:
        alter_table(view, [WidenColumn(name="v", type="BIGINT")])
    put(draw.choice(views), draw)
    if kind == "data evolution":
        put_columns(table, draw)
        set_options(table, {"data-evolution.enabled": "true"})
    if kind in OTHERS:
        set_options(table, {OTHERS[kind]: "other"})
    return table


def branch_of_columns(warehouse: str) -> Table:
    """A branch each of whose files has a schema of its own."""
    table = create_table(warehouse, "d.t", [("k", "INT")], options={"bucket": "-1"})
    write_arrow(table, pa.table({"k": pa.array([0], pa.int32())}))
    run(table, "create_tag", tag="t")
    run(table, "create_branch", branch="b", tag="t")
    branch = table.branch("b")
    for column in "abc":
        alter_table(branch, [AddColumn(name=column, type="INT")])
        write_arrow(branch, pa.table(dict.fromkeys(branch.schema().field_names, pa.array([1], pa.int32()))))
    return branch


def make_anew(branch: Table) -> None:
    """Give the ids of schemas and columns of ``branch_of_columns`` to others."""
    main = branch.branch("main")
    run(main, "delete_branch", branch="b")
    run(main, "create_branch", branch="b", tag="t")
    for column in "xyz":
        alter_table(branch, [AddColumn(name=column, type="INT")])


def parts_of(layers: Iterable[Layer]) -> list[Any]:
    parts = [part for _, splits in layers for split in splits for part in split.divided()]
    return sorted(
        (p.bucket.values, p.bucket.bucket, [[f.file_name for f in run] for s in p.sections for run in s.runs],
         [(path, where.data_file) for path, where in p.deletions])
        for p in parts
    )  # fmt: skip


def rows_of(layers: Iterable[Layer]) -> list[Any]:
    batches = [b for read, splits in layers for s in splits for b in read_split(read, s)]
    return sorted((tuple(row.values()) for b in batches for row in b.to_pylist()), key=repr)
