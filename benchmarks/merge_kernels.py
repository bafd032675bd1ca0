"""Merging sorted rows in memory with one thread: this package's merge beside general engines.

The rows of ``data_plane``: 2 million of one bucket and five upserts of 40,000, deduplicated, and summed up (``a``; of
the others the last value). The plans use that the upserts are small. Each result is sorted by the key, and all have the
same rows. Engines that are not installed are left out.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import merge_runs
from benchmarks.data_plane import CHANGED, COLUMNS, ROWS, UPSERTS, rows

VALUES = [name for name, _ in COLUMNS if name != "k"]
Merge = Callable[[Sequence[pa.Table], bool], pa.Table]
"""Runs, oldest first, and whether to sum up."""


def ours(runs: Sequence[pa.Table], sums: bool) -> pa.Table:
    options = {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum"} if sums else {}
    fields = tuple(DataField(at, name, parse_type(kind)) for at, (name, kind) in enumerate(COLUMNS))
    schema = TableSchema(id=0, fields=fields, highest_field_id=9, primary_keys=("k",), options=options)
    return pa.Table.from_batches(merge_runs([iter(r.to_batches(BATCH_ROWS)) for r in runs], merge_rules(schema)))


def acero(runs: Sequence[pa.Table], sums: bool) -> pa.Table:
    changes = _numbered(runs[1:])
    if sums:
        hit = runs[0].join(changes.select(["k"]), "k", join_type="left semi", use_threads=False)
        touched = _numbered([hit.select(runs[0].column_names), *runs[1:]])
        touched = touched.sort_by([("k", "ascending"), ("run", "ascending")])
        how = [(n, "sum" if n == "a" else "last") for n in VALUES]
        merged = touched.group_by("k", use_threads=False).aggregate(how)
        merged = merged.select(["k", *(f"{n}_{f}" for n, f in how)]).rename_columns(["k", *VALUES])
        merged = merged.set_column(2, "a", merged["a"].cast(pa.int32()))
    else:
        last = changes.group_by("k", use_threads=False).aggregate([("run", "max")])
        merged = changes.join(last, ["k", "run"], ["k", "run_max"], join_type="left semi", use_threads=False)
    rest = runs[0].join(changes.select(["k"]), "k", join_type="left anti", use_threads=False)
    names = ["k", *VALUES]
    return pa.concat_tables([rest.select(names), merged.select(names)]).sort_by("k")


def _numbered(runs: Sequence[pa.Table]) -> pa.Table:
    tables = [r.append_column("run", pa.array(np.full(r.num_rows, at, np.int8))) for at, r in enumerate(runs)]
    return pa.concat_tables(tables)


def polars(runs: Sequence[pa.Table], sums: bool) -> pa.Table:
    pl: Any = importlib.import_module("polars")
    base, *rest = (pl.from_arrow(r).with_columns(pl.col("k").set_sorted()) for r in runs)
    changes = pl.concat(rest)
    if sums:
        touched = pl.concat([base.join(changes, on="k", how="semi"), changes])
        how = [pl.col("a").sum() if n == "a" else pl.col(n).last() for n in VALUES]
        merged = touched.group_by("k", maintain_order=True).agg(how)
    else:
        merged = changes.unique("k", keep="last", maintain_order=True)
    kept = base.join(changes, on="k", how="anti", maintain_order="left")
    return pl.concat([kept, merged]).sort("k").to_arrow(compat_level=pl.CompatLevel.oldest())


def duckdb(runs: Sequence[pa.Table], sums: bool) -> pa.Table:
    db: Any = importlib.import_module("duckdb")
    with db.connect(config={"threads": 1}) as session:
        session.register("base", runs[0])
        session.register("changes", _numbered(runs[1:]))
        return session.sql(_query(sums, "arg_max({}, run)")).to_arrow_table()


def datafusion(runs: Sequence[pa.Table], sums: bool) -> pa.Table:
    engine: Any = importlib.import_module("datafusion")
    session = engine.SessionContext(engine.SessionConfig().with_target_partitions(1))
    session.from_arrow(runs[0], "base")
    session.from_arrow(_numbered(runs[1:]), "changes")
    return session.sql(_query(sums, "last_value({} ORDER BY run)")).to_arrow_table()


def _query(sums: bool, last_by_run: str) -> str:
    kept = f"SELECT k, {', '.join(VALUES)} FROM base WHERE k NOT IN (SELECT k FROM changes)"
    if not sums:
        last = "SELECT k AS lk, max(run) AS last FROM changes GROUP BY k"
        won = f"SELECT k, {', '.join(VALUES)} FROM changes JOIN ({last}) l ON k = lk AND run = last"
        return f"{kept} UNION ALL {won} ORDER BY k"
    how = [f"cast(sum(a) AS INT) AS {n}" if n == "a" else f"{last_by_run.format(n)} AS {n}" for n in VALUES]
    touched = (
        f"SELECT k, {', '.join(VALUES)}, -1 AS run FROM base WHERE k IN (SELECT k FROM changes) "
        f"UNION ALL SELECT k, {', '.join(VALUES)}, run FROM changes"
    )
    return f"{kept} UNION ALL SELECT k, {', '.join(how)} FROM ({touched}) t GROUP BY k ORDER BY k"


def main() -> None:
    chance = np.random.default_rng(0)
    runs = [rows(np.arange(ROWS, dtype=np.int64), 0)]
    for version in range(1, UPSERTS + 1):
        keys = np.sort(chance.choice(ROWS, CHANGED, replace=False)).astype(np.int64)
        runs.append(rows(keys, version))
    merges: dict[str, Merge] = {"ours": ours, "Acero": acero, "Polars": polars, "DuckDB": duckdb}
    merges["DataFusion"] = datafusion
    for sums in (False, True):
        what = "aggregation (sum)" if sums else "deduplicate"
        wanted = _digest(ours(runs, sums))
        first = 0.0
        for name, merge in merges.items():
            try:
                assert _digest(merge(runs, sums)) == wanted, f"{name}: other rows"
            except ImportError:
                print(f"{what}: {name} is not installed")
                continue
            used = _least(merge, runs, sums)
            first = first or used
            print(f"{what}: {name}: {used:.3f} s of CPU, {used / first:.1f}x", flush=True)


def _digest(table: pa.Table) -> tuple[Any, ...]:
    keys = table["k"].to_numpy()
    assert (keys[1:] > keys[:-1]).all(), "not sorted"
    return table.num_rows, *(pc.sum(table[n]).as_py() for n in ("seq", "a")), round(pc.sum(table["b"]).as_py(), 6)


def _least(merge: Merge, runs: Sequence[pa.Table], sums: bool) -> float:
    least = float("inf")
    for _ in range(5):
        started = time.process_time()
        merge(runs, sums)
        least = min(least, time.process_time() - started)
    return least


if __name__ == "__main__":
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    pa.set_cpu_count(1)
    main()
