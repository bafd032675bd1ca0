"""Corrections beside Flink jobs that go on writing: what is right where the job has left a partition alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_paimon import create_branch, merge_branch, open_table
from airflow_paimon.data import read_arrow, write_arrow
from tests.flink_cluster import Flink

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

_KEYED = "PRIMARY KEY (dt, id) NOT ENFORCED"
KINDS = {
    "pk": "",
    "pk_dynamic": "'bucket'='-1'",
    "pk_vectors": "'deletion-vectors.enabled'='true'",
    "pk_lookup": "'changelog-producer'='lookup'",
    "partial_lookup": "'merge-engine'='partial-update', 'changelog-producer'='lookup'",
    "sum_vectors": "'merge-engine'='aggregation', 'fields.v.aggregate-function'='sum', "
    "'deletion-vectors.enabled'='true'",
    "append": "",
}
Row = tuple[str, int, int | None, int | None]


def make_tables(flink: Flink, database: str) -> str:
    """One table of each kind, and one job that writes all of them from the source ``feed``; gives the job."""
    flink.sql(f"CREATE DATABASE {database}")
    flink.sql(f"USE {database}")
    flink.source(f"feed_{database}", "dt STRING, id BIGINT, v BIGINT, w BIGINT")
    for name, options in KINDS.items():
        key = "" if name == "append" else f", {_KEYED}"
        bucket = "" if "bucket" in options else "'bucket'='-1'" if name == "append" else "'bucket'='1'"
        given = ", ".join(filter(None, (bucket, options)))
        flink.sql(
            f"CREATE TABLE {name} (dt STRING, id BIGINT, v BIGINT, w BIGINT{key}) PARTITIONED BY (dt) WITH ({given})"
        )
    inserts = "; ".join(f"INSERT INTO {name} SELECT * FROM feed_{database}" for name in KINDS)
    return flink.insert(f"EXECUTE STATEMENT SET BEGIN {inserts}; END")


def merged(kind: str, rows: list[Row], row: Row) -> list[Row]:
    """What a table of a kind shows once ``row`` comes after ``rows``."""
    at = [n for n, old in enumerate(rows) if old[:2] == row[:2] and kind != "append"]
    if not at:
        return [*rows, row]
    (dt, key, v, w), (_, _, new_v, new_w) = rows[at[0]], row
    if kind.startswith("partial"):
        new = (dt, key, v if new_v is None else new_v, w if new_w is None else new_w)
    elif kind.startswith("sum"):
        new = (dt, key, (v or 0) + (new_v or 0), w if new_w is None else new_w)
    else:
        new = row
    return [*rows[: at[0]], new, *rows[at[0] + 1 :]]


def _sorted(table: pa.Table) -> list[Row]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def test_a_partition_that_a_job_has_left_alone_is_corrected_exactly(flink: Flink) -> None:
    """Two checkpoints without rows of it; the job's later rows of it are merged onto the corrected ones."""
    database = "left_alone"
    job = make_tables(flink, database)
    wrong: list[Row] = [("d0", n, n * 100, n) for n in range(1, 2001)]
    flink.feed(f"feed_{database}", wrong, job)
    flink.checkpoint(job)
    for n in (1, 2):
        flink.feed(f"feed_{database}", [("d1", n, n, n)], job)
        flink.checkpoint(job)
    right = pa.table({"dt": ["d0"] * 2000, "id": range(1, 2001), "v": range(1, 2001), "w": range(1, 2001)})
    for kind in KINDS:
        table = open_table(str(flink.warehouse), f"{database}.{kind}")
        create_branch(table, "fix", snapshot=table.latest_snapshot_id())
        write_arrow(table.branch("fix"), right, mode="overwrite", partition={"dt": "d0"})
        merge_branch(table, "fix")
    later: list[Row] = [("d0", 1, None, 55), ("d0", 2, 5, None), ("d0", 9999, 7, 7)]
    flink.feed(f"feed_{database}", later, job)
    flink.checkpoint(job)
    flink.checkpoint(job)  # commits what compactions made visible of the last rows
    flink.cancel(job)
    for kind in KINDS:
        model = [("d0", n, n, n) for n in range(1, 2001)] + [("d1", n, n, n) for n in (1, 2)]
        for row in later:
            model = merged(kind, model, row)
        expected = sorted(model, key=repr)
        assert _sorted(read_arrow(open_table(str(flink.warehouse), f"{database}.{kind}"))) == expected, kind
        assert flink.query(f"SELECT * FROM {database}.{kind}") == expected, kind
