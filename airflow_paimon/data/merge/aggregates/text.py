"""``listagg``: texts joined with a delimiter. Values of nothing but white space are left out, as nulls are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import Records, element_codes, explode, nothing, scatter, slots_of
from airflow_paimon.data.merge.versions import Mask

_SPACES = (
    "\t\n\x0b\f\r\x1c\x1d\x1e\x1f "
    "\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)
"""White space by Java's ``Character.isWhitespace``: without the spaces that don't break a line."""


@dataclass(frozen=True, slots=True)
class ListAgg(Aggregate):
    """The texts of a key, joined. ``distinct``: of each but the first only the parts that are new."""

    order_bound: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        kept, groups = records.kept(~_is_blank(records.values))
        if not kept.groups:
            return nothing(records.values, records.groups)
        values, starts = kept.values, kept.starts
        if self.options.distinct:
            values, starts = self._new_parts(kept)
        lists = pa.ListArray.from_arrays(pa.array(np.append(starts, len(values)), pa.int32()), values)
        return scatter(pc.binary_join(lists, self.options.delimiter), groups, records.groups)

    def _new_parts(self, kept: Records) -> tuple[pa.Array, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Return for each group its first text, whole, and then the parts of the others that are new."""
        split = pc.split_pattern(kept.values, self.options.delimiter)
        parts = explode(split)
        texts = pc.take(split.values, pa.array(parts.at))
        group = kept.group[parts.record]
        slots = slots_of(group, element_codes(texts))
        is_first = np.zeros(len(parts.at), bool)
        is_first[slots.first_of(np.ones(len(parts.at), bool))] = True
        whole = np.isin(parts.record, kept.starts)
        new = np.flatnonzero(is_first & ~whole & ~_is_blank(texts))
        order = np.argsort(np.append(np.arange(kept.groups), group[new]), kind="stable")
        joined = pa.concat_arrays([kept.values.take(pa.array(kept.starts)), texts.take(pa.array(new))])
        sizes = 1 + np.bincount(group[new], minlength=kept.groups)
        return joined.take(pa.array(order)), np.cumsum(sizes) - sizes

    def _fold_rows(self, records: Records) -> pa.Array:
        texts = records.values.to_pylist()
        return pa.array([self._join_rows(records, texts, g) for g in range(records.groups)], records.values.type)

    def _join_rows(self, records: Records, texts: list[str | None], group: int) -> str | None:
        joined: str | None = None
        for at in range(records.starts[group], records.ends[group] + 1):
            if records.initial[at]:
                joined = texts[at]
            else:
                joined = self._join(texts[at], joined) if records.late[at] else self._join(joined, texts[at])
        return joined

    def _join(self, left: str | None, right: str | None) -> str | None:
        if right is None or not right.strip(_SPACES):
            return left
        if left is None or not left.strip(_SPACES):
            return right
        parts = self._unknown(left, right) if self.options.distinct else [right]
        return self.options.delimiter.join([left, *parts])

    def _unknown(self, left: str, right: str) -> Iterator[str]:
        known = set(left.split(self.options.delimiter))
        for part in right.split(self.options.delimiter):
            if part.strip(_SPACES) and part not in known:
                known.add(part)
                yield part


def _is_blank(texts: pa.Array) -> Mask:
    """Return which texts are null or only white space."""
    blank = pc.equal(pc.binary_length(pc.utf8_trim(texts, characters=_SPACES)), 0)
    return np.asarray(pc.fill_null(blank, True).to_numpy(zero_copy_only=False))
