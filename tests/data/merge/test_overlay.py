"""A merge that leaves most rows of a large piece where they are, against the merge of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.data.merge import engine
from airflow_paimon.data.merge.engine import MergeRules, merge_all, merge_slices
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.sort_keys import sort_keys
from airflow_paimon.data.merge.versions import LEVEL, find_versions
from tests.data.merge.versions import schema_of
from tests.randomness import chance as chance_of
from tests.randomness import lives

COLUMNS = {"k": "INT NOT NULL", "s": "BIGINT", "a": "INT", "f": "DOUBLE", "t": "STRING", "y": "BOOLEAN",
           "d": "DECIMAL(12, 2)", "n": {"type": "ARRAY", "element": "DOUBLE"}, "at": "TIMESTAMP(3)"}  # fmt: skip
PARTIAL = {"merge-engine": "partial-update"}
GROUPED = {**PARTIAL, "fields.s.sequence-group": "a,t", "fields.a.aggregate-function": "sum"}
SUMS = {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum", "fields.t.aggregate-function": "listagg",
        "fields.f.aggregate-function": "max"}  # fmt: skip
BACK = {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum", "fields.d.aggregate-function": "sum"}
ENGINES: list[dict[str, str]] = [
    {},
    {"sequence.field": "s"},
    {"sequence.field": "s,t", "sequence.field.sort-order": "descending"},
    {"ignore-delete": "true"},
    PARTIAL,
    {**PARTIAL, "ignore-delete": "true", "sequence.field": "s"},
    {**PARTIAL, "partial-update.remove-record-on-delete": "true"},
    GROUPED,
    {**GROUPED, "partial-update.remove-record-on-sequence-group": "s"},
    SUMS,
    BACK,
    {**SUMS, "aggregation.remove-record-on-delete": "true"},
    {"merge-engine": "first-row"},
    {"merge-engine": "first-row", "ignore-delete": "true"},
]


def _chance(salt: int) -> np.random.Generator:
    return np.random.default_rng(chance_of(salt).getrandbits(63))


def _piece(chance: np.random.Generator, keys: np.ndarray[Any, Any], kinds: list[int], nulls: bool) -> pa.RecordBatch:
    count = len(keys)
    words = np.array(["", "a", "same", "-", "longer than the others"])
    values: dict[str, list[Any]] = {
        "k": keys.tolist(),
        "s": chance.integers(0, 4, count).tolist(),
        "a": chance.integers(-9, 9, count).tolist(),
        "f": chance.choice([0.0, -0.0, 1.5, float("nan")], count).tolist(),
        "t": chance.choice(words, count).tolist(),
        "y": (chance.random(count) < 0.5).tolist(),
        "d": [f"{v}.25" for v in chance.integers(-99, 99, count).tolist()],
        "n": [[0.0] * int(v) for v in chance.integers(0, 3, count)],
        "at": chance.integers(0, 10**9, count).tolist(),
    }
    fields = arrow_schema(schema_of(COLUMNS, {}).fields)
    columns = []
    for field in fields:
        mask = (chance.random(count) < 0.2) if nulls and field.name != "k" else np.zeros(count, bool)
        found = [None if m else v for m, v in zip(mask, values[field.name], strict=True)]
        columns.append(pa.array(found).cast(field.type) if any(v is not None for v in found) else
                       pa.nulls(count, field.type))  # fmt: skip
    rows = pa.RecordBatch.from_arrays(columns, schema=fields)
    rows = rows.append_column("_SEQUENCE_NUMBER", pa.array(chance.integers(0, 6, count)))
    return rows.append_column("_VALUE_KIND", pa.array(chance.choice(kinds, count), pa.int8()))


def _pieces(chance: np.random.Generator, options: Mapping[str, str]) -> list[pa.RecordBatch]:
    """A large piece among small ones, whose keys it mostly has; sometimes without the columns that nobody needs."""
    nulls, kinds = chance.random() < 0.5, [[0], [0, 2], [0, 0, 2, 1, 3]][chance.integers(3)]
    if options.get("merge-engine") == "first-row" and "ignore-delete" not in options and chance.random() < 0.8:
        kinds = [0]
    step = int(chance.integers(1, 3))
    keys = np.sort(chance.choice(np.arange(0, 160 * step, step), int(chance.integers(60, 160)), replace=False))
    pieces = [_piece(chance, keys, [0] if chance.random() < 0.8 else kinds, nulls)]
    for _ in range(int(chance.integers(1, 4))):
        own = np.sort(chance.choice(170 * step, int(chance.integers(1, 7)), replace=chance.random() < 0.2))
        own = chance.permutation(keys)[: len(own)] if chance.random() < 0.5 else own
        pieces.insert(int(chance.integers(0, len(pieces) + 1)), _piece(chance, np.sort(own), kinds, nulls))
    if chance.random() < 0.3:
        pieces = [
            p.append_column(LEVEL, pa.array(np.full(p.num_rows, at % 3, np.int32))) for at, p in enumerate(pieces)
        ]
    if chance.random() < 0.3:
        pieces = [p.drop_columns(["_SEQUENCE_NUMBER"]) for p in pieces]
    if kinds == [0] and chance.random() < 0.5:
        pieces = [p.drop_columns(["_VALUE_KIND"]) for p in pieces]
    return pieces


def _result(merge: Any, pieces: list[pa.RecordBatch], rules: MergeRules) -> Any:
    keys = sort_keys([[p.column(n) for n in rules.keys] for p in pieces])
    try:
        rows = merge(pieces, keys, rules)
    except UnsupportedFeatureError as error:
        return str(error)
    assert rows.validate(full=True) is None
    return rows.schema.names, repr(rows.to_pylist())


@pytest.mark.parametrize("options", ENGINES, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "deduplicate")
def test_rows_stay_in_place(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[bool] = []
    overlaid = engine.overlaid
    monkeypatch.setattr(engine, "overlaid", lambda *given, **named: (placed.append(True), overlaid(*given, **named))[1])
    chance = _chance(13)
    rules = merge_rules(schema_of(COLUMNS, options))
    for _ in range(lives(10, 60)):
        pieces = _pieces(chance, options)
        given = replace(rules, keep_deletes=bool(chance.random() < 0.3))
        whole = _result(merge_all, pieces, given)
        assert _result(merge_slices, pieces, given) == whole, options
    assert placed or "first-row" in options.get("merge-engine", "")


def test_a_column_that_no_row_changes_is_not_copied() -> None:
    base = _piece(_chance(1), np.arange(100), [0], False).drop_columns(["_SEQUENCE_NUMBER", "_VALUE_KIND"])
    change = base.slice(10, 5)
    changed = change.set_column(2, base.schema.field(2), pa.array([77] * 5, pa.int32()))
    keys = [np.arange(100), np.arange(10, 15)]
    rows = merge_slices([base, changed], keys, MergeRules(keys=("k",)))
    assert rows.column("t").buffers()[2].address == base.column("t").buffers()[2].address
    assert rows.column("a").to_pylist()[9:16] == [*base.column("a").to_pylist()[9:10], *[77] * 5,
                                                 base.column("a")[15].as_py()]  # fmt: skip
    assert base.column("a").to_pylist()[10:15] != [77] * 5, "the stored batch was overwritten"


def test_a_zero_that_becomes_a_negative_one_is_a_change() -> None:
    base = pa.record_batch({"k": pa.array(np.arange(50)), "f": pa.array(np.zeros(50))})
    rows = merge_slices([base, pa.record_batch({"k": [7], "f": [-0.0]})], [np.arange(50), np.array([7])],
                        MergeRules(keys=("k",)))  # fmt: skip
    assert repr(rows.column("f")[6:9].to_pylist()) == "[0.0, -0.0, 0.0]"


@pytest.mark.parametrize("seed", range(3))
def test_versions_are_sorted_only_where_they_are_not(seed: int) -> None:
    """Against a sort of all of them, key by key."""
    chance = _chance(seed)
    pieces = [
        _piece(chance, np.sort(chance.choice(40, 30, replace=False)), [0, 3], True).select(
            ["k", "s", "_SEQUENCE_NUMBER", "_VALUE_KIND"]
        )
        for _ in range(3)
    ]
    keys = np.concatenate([p.column("k").to_numpy() for p in pieces])
    found = find_versions(pieces, keys, ("s",))
    rows = pa.Table.from_batches(pieces).to_pylist()

    def order(at: int) -> Any:
        row = rows[at]
        s = row["s"]
        return (row["k"], s is not None, s or 0, row["_SEQUENCE_NUMBER"], row["_VALUE_KIND"] != 3, at)

    contested = [at for at in range(len(rows)) if (keys == keys[at]).sum() > 1]
    assert found.rows.tolist() == sorted(contested, key=order)
    assert [rows[at]["k"] for at in found.firsts] == sorted(set(keys.tolist()))
