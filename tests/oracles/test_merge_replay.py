"""The lives of ``merge-fuzz`` again: each statement of connector 2.0.0 by our writers, on a table of our own.

After each statement we and O3, Paimon's Java engine, read the rows that the connector had then. What the embedded
engine refuses by name changes nothing, and Java writes it instead: so a table changes hands in the middle of its life.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import run_operation
from tests.data.corrections import arrow, change, whole_rows
from tests.data.test_compact import run as compact
from tests.oracles.canonical import assert_same_rows, canonical_rows
from tests.oracles.drivers import JavaOracle
from tests.oracles.golden import GoldenArchive, golden_index
from tests.randomness import every

pytestmark = pytest.mark.oracle

ARCHIVE = "merge-fuzz"
LIVES = golden_index(ARCHIVE)
_NUMBER = r"-?[\d.]+"
_LITERALS = (
    (rf"cast\(({_NUMBER}) as decimal\(\d+,\d+\)\)", r"D('\1')"),
    (r"cast\(null as [a-z]+(\([\d,]+\))?\)", "None"),
    (r"date'(\d+)-0?(\d+)-0?(\d+)'", r"date(\1, \2, \3)"),
    (rf"({_NUMBER})[LD]\b", r"\1"),
    (r"\btrue\b", "True"),
    (r"\bfalse\b", "False"),
)


def values_of(text: str) -> list[tuple[Any, ...]]:
    """The rows of a VALUES list of the archive."""
    for pattern, replacement in _LITERALS:
        text = re.sub(pattern, replacement, text)
    return list(eval(f"[{text}]", {"D": Decimal, "date": dt.date}))


def statements_of(table: Table) -> Iterator[list[Snapshot]]:
    """The snapshots that each statement on a branch made: with the APPEND or OVERWRITE often a COMPACT."""
    head = table.latest_snapshot_id() or 0
    for _, found in groupby((table.snapshot(i) for i in range(1, 1 + head)), lambda s: s.commit_user):
        yield list(found)


@dataclass(slots=True)
class Replay:
    """A life, and the table that it is lived again on."""

    golden: Table
    warehouse: Path
    java: JavaOracle
    number: int
    left: list[list[Snapshot]] = field(default_factory=list)
    branch_at: int = 0
    at: int | None = None
    """The snapshot of the golden table after what was done so far."""

    @property
    def name(self) -> str:
        return self.golden.name

    @property
    def options(self) -> TableOptions:
        return TableOptions(self.golden.schema().options)

    def table(self, branch: str = "main") -> Table:
        return open_table(str(self.warehouse), self.name, branch=branch)

    def run(self, text: str) -> None:
        if text.startswith("-- refused"):
            return
        if found := re.match(r"insert (into|overwrite) \S+?(?:\$branch_(\w+)`)? values (.*)", text):
            self._insert(found[1] == "overwrite", found[2] or "main", values_of(found[3]))
        elif found := re.match(r"update \S+ set c0 = (\d+) where k < (\d+)", text):
            self._update(int(found[1]), int(found[2]))
        elif found := re.match(r"delete from \S+ where k % 4 = (\d)", text):
            self._delete(int(found[1]))
        elif "sys.compact" in text:
            if self.left and all(s.commit_kind is CommitKind.COMPACT for s in self.left[0]):
                self._take()
        elif found := re.search(r"create_tag\(.*tag=>'(\w+)'\)", text):
            self._operate("create_tag", tag=found[1])
        elif found := re.search(r"create_branch\(.*branch=>'(\w+)', tag=>'(\w+)'\)", text):
            self._operate("create_branch", branch=found[1], tag=found[2])
        else:
            raise AssertionError(text)

    def _operate(self, operation: str, **values: Any) -> None:
        run_operation(build_request(operation, {"warehouse": str(self.warehouse), "table": self.name, **values}))

    def _take(self) -> None:
        """Go on to the next statement of the golden table; compact where it did and reads show it."""
        found = self.left.pop(0)
        self.at = found[-1].id
        hides = self.options.deletion_vectors or self.options.merge_engine in ("first-row", "partial-update")
        if found[-1].commit_kind is CommitKind.COMPACT and (hides or self.number % 2):
            compact(self.table())

    def _do(self, branch: str, ours: Callable[[Table], Any], theirs: Callable[[], Any]) -> None:
        table = self.table(branch)
        before = table.latest_snapshot()
        try:
            ours(table)
        except UnsupportedFeatureError as error:
            assert "the built-in engine does not" in error.message
            assert table.latest_snapshot() == before
            theirs()

    def _write(self, rows: list[dict[str, Any]], mode: str, branch: str = "main") -> None:
        data = arrow(self.table(branch), rows)
        self._do(
            branch,
            lambda table: write_arrow(table, data, mode=mode),
            lambda: self.java.write(self.warehouse, self.name, data, mode=mode, branch=branch),
        )

    def _insert(self, overwrite: bool, branch: str, rows: list[tuple[Any, ...]]) -> None:
        names = self.golden.schema().field_names
        mode = "overwrite" if overwrite else "append"
        self._write([dict(zip(names, r, strict=True)) for r in rows], mode, branch)
        if branch == "main":
            self._take()
        else:
            self.branch_at += 1

    def _chosen(self, where: Callable[[int], bool]) -> list[dict[str, Any]]:
        return [r for r in whole_rows(self.table()).to_pylist() if where(r["k"])]

    def _update(self, value: int, below: int) -> None:
        rows = self._chosen(lambda k: k < below)
        if rows:
            self._write([{**r, "c0": value, "_row_kind": "+U"} for r in rows], "append")
            self._take()

    def _delete(self, remainder: int) -> None:
        rows = [{**r, "_row_kind": "-D"} for r in self._chosen(lambda k: k % 4 == remainder)]
        if not rows:
            return
        deduplicates = self.options.merge_engine == "deduplicate"
        if deduplicates and self.options.flag("ignore-delete"):  # the connector commits nothing then
            self._write(rows, "append")
            return
        by_record = deduplicates and (
            self.number % 2 or self.options.sequence_fields
        )  # a later row may be an older one
        if by_record or self.options.flag("partial-update.remove-record-on-delete"):
            self._write(rows, "append")
        else:
            self._do("main", lambda table: change(table, rows, operation="DELETE"), lambda: self._publish(rows))
        self._take()

    def _publish(self, rows: list[dict[str, Any]]) -> None:
        """A DELETE where main takes none: on a branch, which is published."""
        head, branch = self.table().latest_snapshot_id(), f"fix{len(self.left)}"
        self._operate("create_branch", branch=branch, snapshot=head)
        change(self.table(), rows, branch, operation="DELETE")
        self._operate("merge_branch", branch=branch, writers_stopped=True)

    def _shows(self, rows: pa.Table) -> bool:
        """Whether a read of the golden table gives all rows: none waits for a compaction."""
        return canonical_rows(read_arrow(self.golden, version=self.at)) == canonical_rows(rows)

    def check(self) -> None:
        """Our table, read by us and by Java, has the rows of the golden one."""
        table = self.table()
        if self.at is not None:
            wanted = whole_rows(self.golden, self.golden.snapshot(self.at))
            assert_same_rows(whole_rows(table), wanted)
            if self._shows(wanted):
                assert_same_rows(read_arrow(table), wanted)
                assert_same_rows(self.java.read(self.warehouse, self.name), wanted)
        if self.branch_at:
            view = self.table("b")
            wanted = read_arrow(self.golden.branch("b"))
            assert_same_rows(read_arrow(view), wanted)
            assert_same_rows(self.java.read(self.warehouse, self.name, branch="b"), wanted)


CHOSEN = every(3, LIVES) or [None]


@pytest.mark.parametrize("life", CHOSEN, ids=lambda life: life["table"] if life else "no-golden-tables")
@pytest.mark.every(2)
def test_a_life_again(
    golden: Callable[[str], GoldenArchive], java_oracle: JavaOracle, tmp_path: Path, life: Any
) -> None:
    folder = golden(ARCHIVE).root
    assert life is not None
    stored = open_table(str(folder / "wh"), life["table"])
    schema = stored.schema()
    create_table(
        str(tmp_path),
        life["table"],
        [(f.name, f.type) for f in schema.fields],
        partition_keys=schema.partition_keys,
        primary_keys=schema.primary_keys,
        options={k: v for k, v in schema.options.items() if k != "owner"},
    )
    replay = Replay(stored, tmp_path, java_oracle, int(life["table"][3:]), list(statements_of(stored)))
    for text in life["ops"]:
        replay.run(text)
        replay.check()
    assert not replay.left
    run = {"warehouse": str(tmp_path), "table": life["table"]}
    assert run_operation(build_request("check_table", run)).details["ok"]
    for read in life["reads"]:
        if read["version"] is not None and not read["version"].isdigit():
            rows = read_arrow(replay.table(read["branch"]), version=read["version"])
            assert_same_rows(rows, pq.read_table(folder / read["expected"]))
