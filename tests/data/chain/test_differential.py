"""Random chain tables, written, overwritten, dropped and compacted by us, against a model of rows made from the rules.

The rules (docs/howto/chain-reads.md): main, else the full partition, else the nearest earlier full partition of the
group and the deltas behind it; of a key's versions the last by (sequence field, null lowest; place in the chain; order
of writing) wins, or with partial updates each column's last value does; a delete that wins removes the row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.files import drop_partitions
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.arrow_read import read_group
from tests.data.chain.compactions import compact, outcomes
from tests.data.chain.tables import chain_table, planned_chain
from tests.randomness import chance as chance_of
from tests.randomness import lives

SEEDS = lives(5, 40)
KINDS = ("+I", "+I", "+I", "+U", "-D", "-U")

Row = tuple[int, int | None, str | None, str | None, str]
"""Key, sequence, two values, kind."""
Partition = tuple[str, ...]
LAYOUTS: dict[str, dict[str, Any]] = {
    "daily": {"partitions": {"dt": "STRING"}, "form": ("$dt", "yyyyMMdd")},
    "groups": {
        "partitions": {"region": "STRING", "dt": "STRING"},
        "form": ("$dt", "yyyyMMdd"),
        "chain_keys": "dt",
    },
    "hourly groups": {
        "partitions": {"region": "STRING", "dt": "STRING", "hour": "STRING"},
        "form": ("$dt $hour:00:00", "yyyyMMdd HH:mm:ss"),
        "chain_keys": "dt,hour",
    },
}


class Model:
    """What each branch's partitions hold: every row ever written to them, in order."""

    def __init__(self, width: int, partial: bool) -> None:
        self.width = width
        self.partial = partial
        self.held: dict[str, dict[Partition, list[Row]]] = {"main": {}, "snapshot": {}, "delta": {}}

    def write(self, branch: str, target: Partition, rows: Sequence[Row], overwrite: bool) -> None:
        old = [] if overwrite else self.held[branch].get(target, [])
        if old or rows:
            self.held[branch][target] = [*old, *rows]
        else:
            self.held[branch].pop(target, None)

    def chain(self, target: Partition) -> list[list[Row]]:
        """The parts that a partition is merged of; the full partition of its own does not count."""
        group = target[: self.width]
        earlier = [p for p in self.held["snapshot"] if p[: self.width] == group and p < target]
        anchor = max(earlier, default=None)
        deltas = [
            p
            for p in sorted(self.held["delta"])
            if p[: self.width] == group and p <= target and (anchor is None or p > anchor)
        ]
        return [*([self.held["snapshot"][anchor]] if anchor else []), *(self.held["delta"][p] for p in deltas)]

    def full(self, target: Partition) -> list[Row]:
        """What compaction makes of a partition."""
        return self.merged(self.chain(target))

    def merged(self, parts: Sequence[Sequence[Row]]) -> list[Row]:
        versions: dict[int, list[tuple[tuple[Any, ...], Row]]] = {}
        for place, rows in enumerate(parts):
            for number, row in enumerate(rows):
                order = (row[1] is not None, row[1] or 0, place, number)
                versions.setdefault(row[0], []).append((order, row))
        out = []
        for key in sorted(versions):
            ordered = [row for _, row in sorted(versions[key], key=lambda pair: pair[0])]
            found = self._folded(ordered) if self.partial else ordered[-1]
            if found is not None and found[4] in ("+I", "+U"):
                out.append((*found[:4], "+I"))
        return out

    @staticmethod
    def _folded(rows: Sequence[Row]) -> Row | None:
        found: list[Any] | None = None
        for row in rows:
            if row[4] == "-D":
                found = None
            elif row[4] != "-U":
                found = found or [None] * 4
                found = [old if new is None else new for old, new in zip(found, row[:4], strict=True)]
        return None if found is None else (*found, "+I")  # type: ignore[return-value]

    def branch_rows(self, branch: str) -> list[tuple[Any, ...]]:
        return _shown((p, self.merged([rows])) for p, rows in self.held[branch].items())

    def rows(self) -> list[tuple[Any, ...]]:
        targets = {p for held in self.held.values() for p in held}
        return _shown((p, self.merged(self._source(p))) for p in targets)

    def _source(self, target: Partition) -> list[list[Row]]:
        for branch in ("main", "snapshot"):
            if target in self.held[branch]:
                return [self.held[branch][target]]
        return self.chain(target)


def _shown(found: Any) -> list[tuple[Any, ...]]:
    return sorted(((*row[:4], *p) for p, rows in found for row in rows), key=repr)


class Life:
    """One table and its model, through some random steps."""

    def __init__(self, seed: int) -> None:
        self.chance = chance_of(seed)
        self.layout = LAYOUTS[self.chance.choice(list(LAYOUTS))]
        self.keys = list(self.layout["partitions"])
        partial = self.chance.random() < 0.4
        engine = {"merge_engine": "partial-update", "partial-update__remove-record-on-delete": "true"}
        self.table: Table = chain_table(
            f"memory://{uuid.uuid4()}/wh",
            [],
            values={"v1": "STRING", "v2": "STRING"},
            buckets=self.chance.randint(1, 3),
            **self.layout,
            **(engine if partial else {}),
        )
        self.model = Model(len(self.keys) - len((self.layout.get("chain_keys") or "dt").split(",")), partial)
        self.refused = 0

    def partition(self) -> Partition:
        moment = self.chance.randint(0, 7)
        if "hour" in self.keys:
            day, hour = divmod(20 + moment, 24)
            times = (f"2025081{day}", f"{hour:02}")
        else:
            times = (f"2025081{moment}",)  # type: ignore[assignment]
        return (self.chance.choice(["CN", "US"]), *times) if "region" in self.keys else times

    def some_rows(self) -> list[Row]:
        keys = self.chance.choices(range(12), k=self.chance.randint(1, 8))
        return [
            (
                *(k, self.chance.choice([None, *range(5)])),
                *(self.chance.choice([None, f"v{self.chance.randint(0, 9)}"]) for _ in range(2)),
                self.chance.choice(KINDS),
            )
            for k in keys
        ]  # type: ignore[misc]

    def step(self) -> None:
        kind = self.chance.choices(
            ["delta", "snapshot", "main", "drop delta", "drop snapshot", "compact"], [8, 2, 1, 1, 1, 3]
        )[0]
        target = self.partition()
        if kind == "compact":
            self.compact(target)
        elif kind.startswith("drop"):
            self.drop(kind.removeprefix("drop "), target)
        else:
            self.write(kind, target, overwrite=self.chance.random() < 0.25)

    def write(self, branch: str, target: Partition, overwrite: bool) -> None:
        rows = self.some_rows()
        hidden = branch == "delta" and not overwrite and target in self.model.held["snapshot"]
        spec = dict(zip(self.keys, target, strict=True))
        columns = ["k", "s", "v1", "v2", "_row_kind"]
        found = [{**dict(zip(columns, row, strict=True)), **spec} for row in rows]
        types = {"k": pa.int32(), "s": pa.int32()}
        schema = pa.schema([(n, types.get(n, pa.string())) for n in (*columns, *self.keys)])
        mode = {"mode": "overwrite", "partition": spec} if overwrite else {}
        view = self.table.branch(branch)
        data = pa.Table.from_pylist(found, schema=schema)
        if hidden and self.chance.random() < 0.5:
            with pytest.raises(UnsafeOperationError, match="would be invisible"):
                write_arrow(view, data)
            self.refused += 1
            return
        write_arrow(view, data, **mode, on_stale="record" if hidden else None)  # type: ignore[arg-type]
        self.model.write(branch, target, rows, overwrite)

    def drop(self, branch: str, target: Partition) -> None:
        there = target in self.model.held[branch]
        try:
            drop_partitions(self.table.branch(branch), [dict(zip(self.keys, target, strict=True))])
        except UnsafeOperationError:
            assert branch == "snapshot" and there
            self.refused += 1
            return
        self.model.held[branch].pop(target, None)

    def compact(self, target: Partition) -> None:
        rows = self.model.full(target)
        if target not in self.model.held["delta"] or not rows:
            return
        text = ",".join(f"{k}={v}" for k, v in zip(self.keys, target, strict=True))
        overwrite = self.chance.random() < 0.3
        there = target in self.model.held["snapshot"]
        before = self.table.branch("snapshot").latest_snapshot_id()
        result = compact(self.table, text, overwrite=overwrite)
        after = self.table.branch("snapshot").latest_snapshot_id()
        if after != before:
            assert overwrite or not there
            # What was built from a partition is rebuilt with it.
            built = [self._values(p) for p, o in outcomes(result).items() if o in ("compacted", "stale-rebuilt")]
            assert target in built
            for values in sorted(built):
                full = self.model.full(values)
                self.model.held["snapshot"].pop(values, None)
                if full:
                    self.model.held["snapshot"][values] = full
        else:
            assert there

    def _values(self, text: str) -> Partition:
        spec = dict(pair.split("=") for pair in text.replace("/", ",").strip(",").split(","))
        return tuple(spec[k] for k in self.keys)

    def check(self) -> None:
        expected = self.model.rows()
        assert _read(self.table) == expected
        for branch in ("snapshot", "delta"):
            assert _read(self.table.branch(branch)) == self.model.branch_rows(branch)
        some = (pc.field("v1") > "v4") & (pc.field("k") < 7)
        found = [r for r in expected if r[2] is not None and r[2] > "v4" and r[0] < 7]
        assert _read(self.table, where=some) == found
        target = self.partition()
        one = pc.field(self.keys[-1]) == target[-1]
        assert _read(self.table, where=one) == [r for r in expected if r[-1] == target[-1]]
        planned = planned_chain(self.table, batch_rows=2)
        batches = pa.Table.from_batches(read_group(planned), planned.inputs.main.output_schema)
        assert _sorted(batches) == expected


def _read(table: Table, **more: Any) -> list[tuple[Any, ...]]:
    return _sorted(read_arrow(table, **more))


def _sorted(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in rows.to_pylist()), key=repr)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_chain_tables(seed: int) -> None:
    life = Life(seed)
    for _ in range(2):
        for _ in range(life.chance.randint(3, 9)):
            life.step()
        life.check()
