"""The changelog of a compaction, for the changelog producers ``lookup`` and ``full-compaction``.

Which files readers of the changelog know already depends on the producer: those above level 0, or those on the top
level. Of the keys in the other files, the row before (merged from the known files) is compared with the row after. See
docs/contributing/format.md, Changelogs. The changelog of other commits is in ``net_changelog``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.diff.keyed import changed_rows
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND, replaced
from airflow_paimon.data.merge.engine import Deduplicate
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.runs import align_runs, runs_at_once
from airflow_paimon.data.merge.sections import plan_sections, unmerged
from airflow_paimon.data.merge.sort_keys import Keys
from airflow_paimon.data.merge.versions import is_retract
from airflow_paimon.data.read import SeenRows, read_stored, read_versions
from airflow_paimon.data.read_splits import ReadSplit, TableRead

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)
SIDE = internal_column("side")
AFTER, BEFORE, _NEW = range(3)
_UNTOLD = (("changelog-producer.ignore-update-before", UPDATE_BEFORE), ("changelog-producer.ignore-delete", DELETE))


@dataclass(frozen=True, slots=True)
class Changelog:
    """``skips_equal``: an update that changes nothing is left out (``changelog-producer.row-deduplicate``), whatever it
    does to the columns ``not_compared``. ``untold``: kinds of rows that are left out as well
    (``changelog-producer.ignore-update-before``, ``changelog-producer.ignore-delete``).
    """

    producer: str
    skips_equal: bool
    not_compared: tuple[str, ...] = ()
    untold: tuple[int, ...] = ()

    def known(self, file: DataFile, top: int) -> bool:
        """Whether readers of the changelog know a file's rows. ``top``: the top level of its bucket.

        With ``input`` the writers tell their rows themselves.
        """
        if self.producer == "input":
            return True
        return file.level > 0 if self.producer == "lookup" else file.level == top

    def told(self, changes: pa.RecordBatch | None) -> pa.RecordBatch | None:
        """Leave out the kinds of rows that readers are not told; None: no row is left."""
        if changes is None or not self.untold:
            return changes
        left = changes.filter(pa.array(~np.isin(changes.column(VALUE_KIND).to_numpy(), self.untold)))
        return left if left.num_rows else None


def changelog_of(schema: TableSchema) -> Changelog | None:
    """Return what a compaction writes for streaming readers; None: nothing."""
    found = producer_of(schema)
    return None if found is None or found.producer == "input" else found


def producer_of(schema: TableSchema) -> Changelog | None:
    """Return the changelog producer of a primary-key table; None if its data files themselves are its changes."""
    options = TableOptions(schema.options)
    producer = options.text("changelog-producer", "none").lower()
    if producer == "none" or not schema.primary_keys:
        return None
    first_row = options.merge_engine == "first-row"  # a key never changes: only new ones are told
    deduplicates = options.flag("changelog-producer.row-deduplicate")
    made = producer in ("lookup", "full-compaction")  # with input the writers' rows are told as they are
    return Changelog(
        producer,
        first_row or deduplicates,
        options.names("changelog-producer.row-deduplicate-ignore-fields") if deduplicates else (),
        tuple(kind for option, kind in _UNTOLD if made and options.flag(option)),
    )


Merged = tuple[pa.RecordBatch | None, pa.RecordBatch | None]
"""Merged rows, with deletes, and the changes that they bring, both in key order."""


def merged_with_changes(
    read: TableRead, split: ReadSplit, changelog: Changelog, top: int, seen: SeenRows, quiet: SeenRows
) -> Iterator[Merged]:
    """Merge a part of a bucket as ``read_versions`` does, and tell the changes. ``seen`` gets each stored row once,
    ``quiet`` those that are read a second time."""
    new = [f for f in split.files if not changelog.known(f, top)]
    if not new:
        yield from ((batch, None) for batch in read_versions(read, split, seen))
        return
    rules = merge_rules(read.schema)
    known = [f for f in split.files if changelog.known(f, top)]
    keys = [read.schema.field(name) for name in rules.keys]
    runs = [marked(read_versions(read, split, seen), AFTER)]
    if known:
        runs.append(marked(read_versions(read, split.of(plan_sections(known, read.schema)), quiet), BEFORE))
    for file in new:
        stored = read_stored(read, split.of(unmerged([file])), [*keys, *_expiring(read)], quiet)
        runs.append(marked((b.select(rules.keys) for b in stored), _NEW))
    plain = replace(rules, engine=Deduplicate())
    with runs_at_once(runs, plain) as few:  # the two sides stay apart: they come first
        for slices, own in align_runs(few, plain):
            yield _step(slices, own, rules.keys, changelog)


def _expiring(read: TableRead) -> list[Any]:
    column = TableOptions(read.schema.options).text("record-level.time-field")
    return [f for f in read.schema.fields if f.name == column and column not in merge_rules(read.schema).keys]


def marked(run: Iterator[pa.RecordBatch], side: int) -> Iterator[pa.RecordBatch]:
    """Give each row the side that it is on: ``AFTER`` or ``BEFORE``."""
    for batch in run:
        yield batch.append_column(SIDE, pa.array(np.full(batch.num_rows, side, np.int8)))


def _step(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], names: Sequence[str], changelog: Changelog) -> Merged:
    before, after = states_of(slices, keys)
    new = rows_of_side(slices, keys, _NEW)[1]
    if not len(new):
        return after[0], None
    sides = [(rows, own, live[np.isin(own[live], new)]) for rows, own, live in (before, after)]
    apart = [*names, *changelog.not_compared]
    return after[0], changelog.told(changes_between(sides[0], sides[1], apart, changelog.skips_equal))


def rows_of_side(
    slices: Sequence[pa.RecordBatch], keys: Sequence[Keys], side: int
) -> tuple[pa.RecordBatch | None, Keys]:
    """Return the rows of one side of a stretch of keys, without the mark of ``marked``, and their keys."""
    found = [(b, own) for b, own in zip(slices, keys, strict=True) if b.column(SIDE)[0].as_py() == side]
    if not found:
        return None, keys[0][:0]
    batches = [batch.drop_columns([SIDE]) for batch, _ in found]
    rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return rows, np.concatenate([own for _, own in found])


State = tuple[pa.RecordBatch | None, Keys, Any]
"""Rows in any order, each key once, their keys, and the positions of those to compare."""


def states_of(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys]) -> tuple[State, State]:
    """Return the rows ``BEFORE`` and ``AFTER`` of a stretch of keys; those that are no deletes are compared."""
    (was, keys_was), (now, keys_now) = (rows_of_side(slices, keys, side) for side in (BEFORE, AFTER))
    return (was, keys_was, live_rows(was)), (now, keys_now, live_rows(now))


def changes_between(before: State, after: State, names: Sequence[str], skips_equal: bool) -> pa.RecordBatch | None:
    """Return the changes from one state to the other in key order, -U before +U, or None. ``names``: the key columns,
    and others that are not compared."""
    (rows_was, keys_was, was), (rows_now, keys_now, now) = before, after
    same, at_now, at_was = np.intersect1d(keys_now[now], keys_was[was], return_indices=True)
    if len(same) and skips_equal and rows_was is not None and rows_now is not None:
        pairs = (rows_was.take(pa.array(was[at_was])), rows_now.take(pa.array(now[at_now])))
        equal = ~changed_rows(*pairs, [*names, SEQUENCE_NUMBER, VALUE_KIND])
        now, was = np.delete(now, at_now[equal]), np.delete(was, at_was[equal])
    sides = [(rows_was, keys_was, was, keys_now[now], (DELETE, UPDATE_BEFORE)),
            (rows_now, keys_now, now, keys_was[was], (INSERT, UPDATE_AFTER))]  # fmt: skip
    return _in_key_order([one for one in sides if len(one[2])])


def live_rows(batch: pa.RecordBatch | None) -> Any:
    """Return the positions of the rows that are no deletes."""
    return np.empty(0, np.int64) if batch is None else np.flatnonzero(~is_retract(batch.column(VALUE_KIND)))


def _in_key_order(sides: Sequence[tuple[pa.RecordBatch, Keys, Any, Keys, tuple[int, int]]]) -> pa.RecordBatch | None:
    """Return the changes in key order, what was before what is."""
    if not sides:
        return None
    batches, keys = [], []
    for batch, own, at, other, (alone, paired) in sides:
        kinds = np.where(np.isin(own[at], other), paired, alone).astype(np.int8)
        batches.append(replaced(batch.take(pa.array(at)), VALUE_KIND, kinds))
        keys.append(own[at])
    ranks = np.unique(np.concatenate(keys), return_inverse=True)[1]
    order = np.argsort(ranks, kind="stable")
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole.take(pa.array(order))
