"""Random lives of a chain table through the operations that users run, against a model of rows made from the rules.

After every step: reads of main (both gap policies) and of the branches give the model's rows, so no commit is lost;
full partitions that compaction made are stale if and only if what they were made of changed; what was refused changed
nothing; every file that a branch refers to exists.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from tests.core.chain.setups import made
from tests.core.tables import run
from tests.data.chain.compactions import compact, outcomes
from tests.randomness import lives
from tests.stateful.chain_model import DELTA, FULL, MAIN, ChainModel, Partition, Row

pytestmark = pytest.mark.random

START = datetime(2025, 8, 11, 20)
MOMENTS = 6
WRITTEN = ("compacted", "stale-rebuilt")
TYPES = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64()}

targets = st.tuples(st.sampled_from(["CN", "CN", "US"]), st.integers(0, MOMENTS - 1))
text_values = st.one_of(st.none(), st.sampled_from("abc"))
versions = st.builds(
    lambda key, sequence, values, kind: (key, sequence, values, kind),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(0, 3)),
    st.lists(text_values, min_size=2, max_size=2),
    st.sampled_from(["+I", "+I", "+I", "+U", "-D", "-U"]),
)
batches = st.lists(versions, min_size=1, max_size=4)
days = st.lists(
    st.tuples(targets, batches, st.sampled_from(["", "", "full", "full", "loaded"])), min_size=1, max_size=4
)
"""Rows of deltas, and whether these partitions are then made full, or a full one is loaded beside them."""
policies = st.sampled_from([None, None, "record", "record", "refuse"])


class ChainMachine(RuleBasedStateMachine):
    @initialize(
        grouped=st.booleans(), hourly=st.booleans(), partial=st.booleans(), buckets=st.integers(1, 2), past=days
    )
    def start(self, grouped: bool, hourly: bool, partial: bool, buckets: int, past: list[Any]) -> None:
        self.grouped, self.hourly = grouped, hourly
        times = ["dt", "hour"] if hourly else ["dt"]
        self.keys = [*(["region"] if grouped else []), *times]
        engine = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
        form = ("$dt $hour:00:00", "yyyyMMdd HH:mm:ss") if hourly else ("$dt", "yyyyMMdd")
        options = {"bucket": str(buckets), "manifest.merge-min-count": "4", **(engine if partial else {})}
        self.columns: list[tuple[int, str, str]] = [(0, "v1", "STRING"), (1, "v2", "STRING")]
        self.table: Table = made(
            f"memory://{uuid.uuid4()}/wh",
            column=[*(f"{k} STRING" for k in self.keys), "k INT", "s INT", "v1 STRING", "v2 STRING"],
            primary_key=[*self.keys, "k"],
            partition_key=self.keys,
            chain_partition_key=times,
            timestamp_pattern=form[0],
            timestamp_formatter=form[1],
            sequence_field=["s"],
            option=[f"{key}={value}" for key, value in options.items()],
        )
        self.numbers = 2
        self.looked_at: list[Any] = []
        self.model = ChainModel(partial=partial)
        event(f"partial: {partial}")
        self.some_days(past)

    # -- rules ---------------------------------------------------------------------------------------------------------

    @rule(branch=st.sampled_from([DELTA] * 5 + [FULL, FULL, MAIN]), at=targets, rows=batches, how=policies)
    def append(self, branch: str, at: Partition, rows: list[Any], how: str | None) -> None:
        self._write(branch, at, rows, False, how)

    @rule(branch=st.sampled_from([DELTA, DELTA, FULL, MAIN]), at=targets, rows=batches, how=policies)
    def overwrite(self, branch: str, at: Partition, rows: list[Any], how: str | None) -> None:
        self._write(branch, at, rows, True, how)

    @rule(of=days)
    def some_days(self, of: list[Any]) -> None:
        for at, rows, then in of:
            self._write(DELTA, at, rows, False, "record")
            if then == "full":
                self.compact({at}, False, False)
            elif then == "loaded":
                self._write(FULL, at, rows[::-1], True, None)

    @rule(
        branch=st.sampled_from([DELTA, FULL, FULL, MAIN]), some=st.sets(targets, min_size=1, max_size=2), how=policies
    )
    def drop(self, branch: str, some: set[Partition], how: str | None) -> None:
        some, how = {self._mine(p) for p in some}, how if branch == DELTA else None
        there = some & self.model.held[branch].keys()
        if branch == FULL:
            near = (*self.model.held[DELTA],)
            may_refuse = any(d[0] == p[0] and d >= p for p in there for d in near)
            must_refuse = self.model.orphaned(there)
        else:
            may_refuse = must_refuse = how == "refuse" and bool(there & self.model.held[FULL].keys())
        asked = [self._spec(p) for p in sorted(some)]
        done = self._try(
            f"drop {branch} {how}",
            lambda: drop_partitions(self.table.branch(branch), asked, on_stale=how),
            may_refuse,
            must_refuse,
        )
        if done is not None:
            self.model.drop(branch, some)

    @rule(some=st.sets(targets, min_size=1, max_size=3), again=st.booleans(), carry=st.booleans())
    def compact(self, some: set[Partition], again: bool, carry: bool) -> None:
        some = {self._mine(p) for p in some}
        stored = set(self.model.held[FULL])
        asked = [",".join(f"{k}={v}" for k, v in self._spec(p).items()) for p in sorted(some)]
        policy = "carry_forward" if carry else "empty"
        found = self._partitions(outcomes(compact(self.table, *asked, overwrite=again, gap_policy=policy)))
        assert some <= found.keys() <= some | stored
        for at in sorted(found):
            if at not in stored:
                assert found[at] == self.model.outcome(at, carry)
            elif not again and at in some:
                assert found[at] == "exists" or self._hangs(at, found)
            self._compacted(at, found[at])

    @rule(longest=st.integers(0, 3))
    def compact_pending(self, longest: int) -> None:
        stored, pending = set(self.model.held[FULL]), self.model.too_long(longest)
        made = {f for f in stored if self.model.record(f) is not None}
        found = self._partitions(outcomes(compact(self.table, pending=True, max_chain_length=longest)))
        assert pending <= found.keys() <= pending | stored
        assert all(found[at] == "compacted" for at in pending)
        written = {at for at, outcome in found.items() if outcome in WRITTEN}
        assert written <= pending | made, "what was loaded is never built again unasked"
        assert not written & self.model.surely_fresh() or written & pending
        for at in sorted(found):
            self._compacted(at, found[at])

    @rule(cutoff=st.integers(0, MOMENTS), limit=st.integers(1, 3), keep=st.integers(1, 2))
    def expire(self, cutoff: int, limit: int, keep: int) -> None:
        before, fresh, stale = self.model.read(), self.model.surely_fresh(), self._stale()
        old = self.model.expiring(cutoff, limit, keep)
        now = self._time(cutoff) + timedelta(days=1)
        asked = {
            "expiration_time": "1 d",
            "now": f"{now.isoformat()}+00:00",
            "limit": limit,
            "min_full_partitions": keep,
        }
        run(self.table, "expire_partitions", **asked)
        left = self._held(FULL)
        gone = {g: [f for f in fulls if f not in left] for g, fulls in old.items()}
        for group, fulls in old.items():
            assert gone[group] == fulls[: len(gone[group])]
            waits = any(f[0] == group for f in stale)
            assert gone[group] == fulls or waits, "old segments stay only where a stale partition is made of them"
        self.model.expire(f for fulls in gone.values() for f in fulls)
        event(f"expire: {min(sum(map(len, gone.values())), 2)} of {min(sum(map(len, old.values())), 2)}")
        after = self.model.read()
        assert {p: before[p] for p in after} == after, "what stays reads as before"
        assert not self._stale() & fresh, "expiry makes nothing stale"

    @rule(kind=st.sampled_from(["add", "drop", "rename", "widen", "option"]), data=st.data())
    def alter(self, kind: str, data: Any) -> None:
        at = data.draw(st.integers(0, len(self.columns) - 1)) if self.columns else 0
        number, name, is_of = self.columns[at] if self.columns else (0, "", "")
        if kind == "add" and len(self.columns) < 4:
            free = next(n for n in ("w1", "w2", "v1", "v2", "w3") if n not in {c[1] for c in self.columns})
            self.columns.append((self.numbers, free, "INT"))
            self.numbers += 1
            change = f"add column {free} INT"
        elif kind == "drop" and len(self.columns) > 1:
            del self.columns[at]
            change = f"drop column {name}"
        elif kind == "rename" and self.columns:
            self.columns[at] = (number, f"{name}x" if len(name) < 5 else name[:2] + "y" * (len(name) - 1), is_of)
            change = f"rename column {name} to {self.columns[at][1]}"
        elif kind == "widen" and is_of == "INT":
            self.columns[at] = (number, name, "BIGINT")
            change = f"alter column {name} type BIGINT"
        else:
            change = f"set target-file-size={data.draw(st.sampled_from(['32 mb', '64 mb']))}"
        run(self.table, "alter_chain_table", change=[change])

    @precondition(lambda self: any(self.model.held.values()))
    @rule()
    def refused_alter(self) -> None:
        with pytest.raises(InvalidInputError):
            run(self.table, "alter_chain_table", change=["add column no INT", "set bucket=7"])

    # -- how the rules are carried out ---------------------------------------------------------------------------------

    def _write(self, branch: str, at: Partition, rows: list[Any], overwrite: bool, how: str | None) -> None:
        at, how = self._mine(at), how if branch == DELTA else None
        found, data = self._rows(at, rows)
        mode: dict[str, Any] = {"mode": "overwrite", "partition": self._spec(at)} if overwrite else {}
        refuses = how == "refuse" or (how is None and not overwrite)
        hidden = branch == DELTA and refuses and at in self.model.held[FULL]
        done = self._try(
            f"{mode.get('mode', 'append')} {branch} {how}",
            lambda: write_arrow(self.table.branch(branch), data, **mode, on_stale=how),
            hidden,
            hidden,
        )
        if done is not None:
            self.model.write(branch, at, found, overwrite)

    def _try(self, what: str, act: Callable[[], Any], may_refuse: bool, must_refuse: bool) -> Any:
        """Do it and give the result; None: it was refused, and nothing was changed."""
        heads = self._heads()
        try:
            done = act()
        except UnsafeOperationError as error:
            assert may_refuse, "refused without need"
            assert self._heads() == heads and "done" not in error.details
            event(f"{what}: refused")
            return None
        assert not must_refuse, "rows would be lost or invisible"
        event(f"{what}: done")
        return done

    def _hangs(self, at: Partition, found: dict[Partition, str]) -> bool:
        record = self.model.record(at)
        return record is None or record.anchor is None or found.get(record.anchor[0]) in WRITTEN

    def _compacted(self, at: Partition, outcome: str) -> None:
        event(f"compact: {outcome}")
        if outcome in WRITTEN:
            self.model.make_full([at])

    def _partitions(self, texts: Mapping[str, str]) -> dict[Partition, str]:
        every = {
            self._text(p): p for p in ((g, n) for g in ("", "CN", "US") for n in range(MOMENTS)) if self._mine(p) == p
        }
        return {every[text]: outcome for text, outcome in texts.items()}

    def _held(self, branch: str) -> set[Partition]:
        found = {s.values for s in plan_scan(self.table.branch(branch)).splits}
        return {p for p in self.model.held[branch] if tuple(self._spec(p).values()) in found}

    def _stale(self) -> set[Partition]:
        details = run(self.table, "check_chain_table").details
        assert details["errors"] == 0
        return set(self._partitions(dict.fromkeys(details["stale"], "")))

    def _heads(self) -> list[int | None]:
        return [self.table.branch(b).latest_snapshot_id() for b in (MAIN, FULL, DELTA)]

    def _mine(self, at: Partition) -> Partition:
        return at if self.grouped else ("", at[1])

    def _time(self, number: int) -> datetime:
        return START + timedelta(hours=number) if self.hourly else datetime(2025, 8, 10) + timedelta(days=number)

    def _spec(self, at: Partition) -> dict[str, str]:
        time = self._time(at[1])
        found = {"region": at[0], "dt": f"{time:%Y%m%d}", "hour": f"{time:%H}"}
        return {key: found[key] for key in self.keys}

    def _text(self, at: Partition) -> str:
        return "/".join(f"{k}={v}" for k, v in self._spec(at).items())

    def _rows(self, at: Partition, rows: list[Any]) -> tuple[list[Row], pa.Table]:
        """The same rows for the model and for a write; columns of numbers get numbers."""
        found, records = [], []
        for key, sequence, drawn, kind in rows:
            values = []
            for place, (number, _, is_of) in enumerate(self.columns):
                one = drawn[place % 2]
                values.append((number, one if one is None or is_of == "STRING" else ord(one)))
            found.append(Row(key, sequence, tuple(values), kind))
            shown = {name: value for (_, name, _), (_, value) in zip(self.columns, values, strict=True)}
            records.append({**self._spec(at), "k": key, "s": sequence, **shown, "_row_kind": kind})
        types = [*((k, pa.string()) for k in self.keys), ("k", pa.int32()), ("s", pa.int32())]
        types += [(name, TYPES[is_of]) for _, name, is_of in self.columns]
        return found, pa.Table.from_pylist(records, schema=pa.schema([*types, ("_row_kind", pa.string())]))

    def _shown(self, read: dict[Partition, list[Row]]) -> list[str]:
        out = []
        for at, rows in read.items():
            for row in rows:
                values = dict(row.values)
                shown = {name: values.get(number) for number, name, _ in self.columns}
                out.append(repr({**self._spec(at), "k": row.key, "s": row.sequence, **shown}))
        return sorted(out)

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def reads_are_the_models(self) -> None:
        if not hasattr(self, "model"):
            return
        now = [*self._heads(), self.table.schema().id, dict(self.model.versions)]
        if now == self.looked_at:
            return
        self.looked_at = now
        for carry in (False, True):
            rows = read_arrow(self.table, gap_policy="carry_forward" if carry else "empty")
            assert _sorted(rows) == self._shown(self.model.read(carry=carry))
        for branch in (FULL, DELTA):
            assert _sorted(read_arrow(self.table.branch(branch))) == self._shown(self.model.read_branch(branch))

    @invariant()
    def what_is_stale_is_found(self) -> None:
        if hasattr(self, "model"):
            stale = self._stale()
            assert self.model.surely_stale() <= stale
            assert not stale & self.model.surely_fresh()

    @invariant()
    def every_referenced_file_exists(self) -> None:
        if hasattr(self, "model"):
            assert [f for f in find_all(self.table, 0, verify_files=True) if f.severity != "info"] == []


def _sorted(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


TestChainMachine = ChainMachine.TestCase
TestChainMachine.settings = settings(max_examples=lives(2, 10), stateful_step_count=15)
