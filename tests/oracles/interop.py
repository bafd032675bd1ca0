"""One table with two sides: Paimon's Java engine writes it and looks at it, our core branches and publishes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_paimon.core.commit.draft import Receipt
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.dynamic_buckets import Assigners, with_hash_indexes
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.rewrite import live_bucket, rewrite_bucket
from airflow_paimon.data.write import distribute, plan_write
from airflow_paimon.execution import run_operation
from tests.data.tables import sorted_changes
from tests.oracles.canonical import Row, canonical_rows
from tests.oracles.drivers import JavaOracle, PypaimonOracle, RustOracle

COLUMNS = {"k": "INT NOT NULL", "v": "STRING", "p": "STRING NOT NULL"}
ALWAYS_EXPIRING = {
    "snapshot.num-retained.min": "1",
    "snapshot.num-retained.max": "2",
    "snapshot.time-retained": "1 ms",
    "snapshot.expire.limit": "1000",
}
"""Java expires all but the last two snapshots at each commit."""


def kv(text: str) -> list[dict[str, Any]]:
    """Rows from text: ``"x1=a x2=b"`` is partition x, keys 1 and 2."""
    rows = []
    for word in text.split():
        key, value = word.split("=")
        rows.append({"p": key[0], "k": int(key[1:]), "v": value})
    return rows


def shown(rows: Sequence[Row]) -> str:
    """Rows of (p, k, v) as ``kv`` takes them."""
    return " ".join(f"{p}{k}={v}" for p, k, v in rows)


@dataclass(frozen=True, slots=True)
class World:
    """A warehouse with one table ``d.t``."""

    warehouse: Path
    java: JavaOracle
    table: str = "d.t"

    def create(
        self,
        columns: Mapping[str, Any] | None = None,
        *,
        primary_keys: Sequence[str] = ("p", "k"),
        partition_keys: Sequence[str] = ("p",),
        **options: str,
    ) -> dict[str, Any]:
        """Let Java create the table; a partitioned primary-key table with one bucket unless told otherwise."""
        return self.java.create_table(
            self.warehouse,
            self.table,
            columns or COLUMNS,
            primary_keys=primary_keys,
            partition_keys=partition_keys,
            options={"bucket": "1"} | {key.replace("__", "-"): value for key, value in options.items()},
        )

    @property
    def root(self) -> Path:
        database, name = self.table.split(".")
        return self.warehouse / f"{database}.db" / name

    @property
    def main(self) -> Table:
        return open_table(str(self.warehouse), self.table)

    def branch(self, name: str) -> Table:
        return self.main.branch(name)

    def run(self, operation: str, **values: Any) -> OperationResult:
        """Run one of our operations, as a job does."""
        request = build_request(operation, {"warehouse": str(self.warehouse), "table": self.table, **values})
        return run_operation(request)

    def write(self, rows: str | Sequence[Mapping[str, Any]] | pa.Table, branch: str | None = None, **more: Any) -> Any:
        """One Java commit."""
        data = kv(rows) if isinstance(rows, str) else rows
        return self.java.write(self.warehouse, self.table, data, branch=branch, **more)

    def alter(self, *changes: dict[str, Any], branch: str | None = None) -> Any:
        """One schema change by Java."""
        return self.java.alter_table(self.warehouse, self.table, changes, branch=branch)

    def do(self, op: str, branch: str | None = None, **more: Any) -> dict[str, Any]:
        """One of Java's other operations."""
        return self.java.do(op, self.warehouse, self.table, branch=branch, **more)

    def snapshots(self, branch: str | None = None) -> list[dict[str, Any]]:
        """The snapshot files of a branch, as Java lists them."""
        return list(self.do("list", branch=branch)["snapshots"])

    def java_rows(self, branch: str | None = None, columns: Sequence[str] = ("p", "k", "v"), **more: Any) -> list[Row]:
        read = self.java.read(self.warehouse, self.table, branch=branch, columns=columns, **more)
        return canonical_rows(read, columns)

    def text(self, branch: str | None = None, **more: Any) -> str:
        """What Java reads, as ``kv`` takes it."""
        return shown(self.java_rows(branch, **more))

    def our_rows(
        self, branch: str | None = None, version: int | str | None = None, columns: Sequence[str] = ("p", "k", "v")
    ) -> list[Row]:
        view = self.branch(branch) if branch else self.main
        return canonical_rows(read_arrow(view, version=version, columns=list(columns)), columns)

    def same(self, branch: str | None = None, columns: Sequence[str] = ("p", "k", "v"), **more: Any) -> list[Row]:
        """What Java reads, after having compared it with what we read."""
        rows = self.java_rows(branch, columns, **more)
        assert self.our_rows(branch, more.get("snapshot") or more.get("tag"), columns) == rows
        return rows

    def both(self, branch: str | None = None, **more: Any) -> str:
        """What Java and we read alike, as ``kv`` takes it."""
        return shown(self.same(branch, **more))

    def correct(self, branch: str, rows: str | Sequence[Mapping[str, Any]]) -> Receipt:
        """Upsert into a branch as correct_branch does: copy-on-write of the buckets that the rows fall into."""
        view = self.branch(branch)
        data = pa.Table.from_pylist([dict(row) for row in (kv(rows) if isinstance(rows, str) else rows)])
        plan, write = plan_scan(view), plan_write(view, by_buckets=True)
        found = {BucketKey(split.partition, split.bucket): split for split in plan.splits}
        messages = []
        assigners = Assigners(write.dynamic)
        for part in distribute(write, conform_rows(data, write.schema, view.label), assigners):
            changes = sorted_changes(part.rows, write.schema)
            split = found.get(BucketKey(part.partition, part.bucket))
            if split is None:
                new = BucketSplit(part.partition, part.values, part.bucket, -1, ())
                messages.append(rewrite_bucket(write, new, None, changes))
                continue
            highest = max(file.max_sequence_number for file in split.files)
            messages.append(rewrite_bucket(write, split, live_bucket(plan, split), changes, highest))
        messages = with_hash_indexes(write.dynamic, assigners.with_hashes(messages))
        return commit_buckets(view, messages, assigned=(write.planned_on,), vectors=plan.index_entries)

    def data_files(self) -> set[str]:
        """Names of all data files that lie in the table's folder."""
        return {path.name for path in self.root.glob("**/bucket-*/*") if path.is_file()}

    def live_files(self, branch: str | None = None) -> set[str]:
        view = self.branch(branch) if branch else self.main
        return {entry.file.file_name for entry in live_entries(view, view.latest_snapshot()).values()}

    def is_sound(self) -> bool:
        """Whether check_table finds nothing wrong."""
        details = self.run("check_table").details
        assert details["ok"], details["findings"]
        return True


def python_and_rust_rows(
    world: World,
    python: PypaimonOracle,
    rust: RustOracle,
    columns: Sequence[str] = ("p", "k", "v"),
    branch: str | None = None,
) -> list[Row]:
    """What pypaimon and pypaimon-rust read alike."""
    one = canonical_rows(python.read(world.warehouse, world.table, branch=branch, columns=columns), columns)
    other = canonical_rows(rust.read(world.warehouse, world.table, branch=branch, columns=columns), columns)
    assert one == other
    return one
