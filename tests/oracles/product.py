"""The product of what primary-key tables may be: every pair of choices in few combinations, and a model of the rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]
Combination = Mapping[str, str]

AXES: dict[str, dict[str, dict[str, str]]] = {
    "engine": {
        "deduplicate": {},
        "partial-update": {
            "merge-engine": "partial-update",
            "partial-update.remove-record-on-delete": "true",
        },
        "aggregation": {
            "merge-engine": "aggregation",
            "fields.a.aggregate-function": "sum",
            "aggregation.remove-record-on-delete": "true",
        },
        "first-row": {"merge-engine": "first-row"},
    },
    "buckets": {
        "fixed": {"bucket": "2"},
        "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": "3"},
        "moving": {"bucket": "-1", "dynamic-bucket.target-row-num": "3"},
    },
    "vectors": {
        "none": {},
        "32": {"deletion-vectors.enabled": "true"},
        "64": {"deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": "true"},
    },
    "changelog": {p: {"changelog-producer": p} for p in ("none", "input", "lookup", "full-compaction")},
    "format": {f: {"file.format": f} for f in ("parquet", "orc", "avro")},
    "writers": {"compact": {}, "write-only": {"write-only": "true"}},
}
"""What varies, and the options of each choice. ``moving``: the key lacks the partition column."""


def is_table(combination: Combination) -> bool:
    """Whether Paimon creates such a table."""
    if combination["engine"] == "first-row":
        return combination["vectors"] == "none" and combination["changelog"] in ("none", "lookup")
    return combination["vectors"] == "none" or combination["changelog"] != "full-compaction"


def everything() -> list[Combination]:
    """All combinations that are tables."""
    product = itertools.product(*AXES.values())
    return [c for choices in product if is_table(c := dict(zip(AXES, choices, strict=True)))]


def pairwise() -> list[Combination]:
    """Few combinations, the same in each run, in which every pair of choices occurs that occurs in any."""
    left = everything()
    random.Random(12).shuffle(left)
    missing = {pair for c in left for pair in _pairs(c)}
    chosen = []
    while missing:
        best = max(left, key=lambda c: len(missing & _pairs(c)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(combination: Combination) -> set[Any]:
    return set(itertools.combinations(combination.items(), 2))


def name_of(combination: Combination) -> str:
    return "-".join(combination.values())


def options_of(combination: Combination) -> dict[str, str]:
    return {k: v for axis, choice in combination.items() for k, v in AXES[axis][choice].items()}


@dataclass(slots=True)
class Model:
    """What the table holds once nothing waits for a compaction. A row: p, k, a, b.

    ``dead``: keys whose last record is a delete that a compaction may or may not have dropped: what an upsert of a part
    of the row gives then depends on it.
    """

    engine: str
    moving: bool = False
    rows: dict[Key, Row] = field(default_factory=dict)
    dead: set[Key] = field(default_factory=set)

    def key(self, row: Row) -> Key:
        return (row["k"],) if self.moving else (row["p"], row["k"])

    def copy(self) -> Model:
        return Model(self.engine, self.moving, {k: dict(r) for k, r in self.rows.items()}, set(self.dead))

    def fits(self, row: Row) -> bool:
        """Whether a correction may put the row into its partition: the key is in no other one."""
        return self.rows.get(self.key(row), row)["p"] == row["p"]

    def upsert(self, rows: Iterable[Row]) -> None:
        for row in rows:
            old = self.rows.get(self.key(row))
            self.rows[self.key(row)] = dict(row) if old is None else self._merged(old, row)

    def _merged(self, old: Row, new: Row) -> Row:
        if self.engine == "deduplicate":
            return dict(new)
        if self.engine == "first-row":
            return old
        kept = {name: old[name] if value is None else value for name, value in new.items()} | {"p": old["p"]}
        if self.engine == "aggregation" and None not in (old["a"], new["a"]):
            kept["a"] = old["a"] + new["a"]
        return kept

    def put(self, rows: Iterable[Row]) -> None:
        """A correction: the row replaces the merged one."""
        self.rows |= {self.key(r): dict(r) for r in rows}

    def delete(self, rows: Iterable[Row], *, by_record: bool) -> None:
        for row in rows:
            self.rows.pop(self.key(row), None)
            if by_record:
                self.dead.add(self.key(row))

    def drop(self, partition: str) -> None:
        self.rows = {k: r for k, r in self.rows.items() if r["p"] != partition}

    def takes_deletes(self) -> bool:
        """Whether writers take records that delete."""
        return self.engine != "first-row"

    def content(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(r.values()) for r in self.rows.values())


def some_rows(chance: random.Random, model: Model, partitions: Sequence[str], number: int) -> list[Row]:
    """Rows for a write, each key once; of a key whose delete may be there still, all columns or none."""
    keys = {(chance.choice(partitions), chance.randrange(9)) for _ in range(number)}
    if model.moving:
        keys = {(p, k) for k, p in {k: p for p, k in sorted(keys)}.items()}
    rows = []
    for p, k in sorted(keys):
        dead = model.key({"p": p, "k": k}) in model.dead
        if dead and model.engine == "aggregation":
            continue
        whole = dead or chance.random() < 0.5
        a, b = chance.randrange(100), chance.choice("uvwxyz")
        part = chance.choice([(a, None), (None, b), (None, None)])
        rows.append(dict(zip("pkab", (p, k, *((a, b) if whole else part)), strict=True)))
    return rows
