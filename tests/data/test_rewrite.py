"""Buckets rewritten copy-on-write: the rows are right, and no sequence number rises above the given one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.rewrite import NEW_BUCKET, folded, live_bucket, rewrite_bucket
from airflow_paimon.data.write import TableWrite, plan_write
from tests.data.tables import make_table, rows_of, sorted_changes
from tests.randomness import lives

COLUMNS = {"k": "INT NOT NULL", "s": "INT", "v": "STRING"}


def rewritten(
    table: Table, changes: Sequence[dict[str, Any]], kinds: Sequence[str], limit: int, *, keep: bool = True
) -> list[CommitMessage]:
    write, plan = plan_write(table), plan_scan(table)
    rows = rows_of(COLUMNS, changes).append_column("_row_kind", pa.array(list(kinds), pa.string()))
    batch = conform_rows(rows, write.schema, table.label)
    (split,) = plan.splits
    return [rewrite_bucket(write, split, live_bucket(plan, split) if keep else None, in_order(batch, write), limit)]


def in_order(batch: pa.RecordBatch, write: TableWrite) -> list[pa.RecordBatch]:
    if not write.is_keyed:
        return [batch]
    batches: list[pa.RecordBatch] = sorted_changes(batch, write.schema)
    return batches


def rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


def start(table: Table) -> None:
    write_arrow(table, rows_of(COLUMNS, [{"k": k, "s": 5, "v": f"a{k}"} for k in range(6)]))
    write_arrow(table, rows_of(COLUMNS, [{"k": k, "s": 5, "v": f"b{k}"} for k in (1, 2)]))


def test_changes_win_and_numbers_stay_low(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1")
    start(table)
    (message,) = rewritten(table, [{"k": 1, "v": "c"}, {"k": 9, "v": "c"}, {"k": 3}], ["+I", "+I", "-D"], limit=6)
    (file,) = message.new_files
    assert (file.level, file.max_sequence_number, file.min_sequence_number, file.delete_row_count) == (5, 6, 0, 0)
    assert len(message.replaced) == 2
    commit_buckets(table, [message])
    assert rows(table) == [(0, 5, "a0"), (1, None, "c"), (2, 5, "b2"), (4, 5, "a4"), (5, 5, "a5"), (9, None, "c")]
    path = next(p for p in tmp_path.rglob("*.parquet") if p.name == file.file_name)
    stored = pq.read_table(path, columns=["k", "_SEQUENCE_NUMBER", "_VALUE_KIND"]).to_pylist()
    assert {r["k"]: r["_SEQUENCE_NUMBER"] for r in stored} == {0: 0, 1: 6, 2: 6, 4: 4, 5: 5, 9: 6}  # 2 had 7


def test_sequence_fields_still_decide(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1", sequence__field="s")
    start(table)
    changes = [{"k": 0, "s": 4, "v": "older"}, {"k": 1, "s": 5, "v": "same"}, {"k": 2, "s": 6, "v": "newer"}]
    changes += [{"k": 3, "s": 4}, {"k": 4, "s": 5}]
    messages = rewritten(table, changes, ["+I", "+I", "+I", "-D", "-D"], limit=100)
    commit_buckets(table, messages)
    assert rows(table) == [(0, 5, "a0"), (1, 5, "same"), (2, 6, "newer"), (3, 5, "a3"), (5, 5, "a5")]


def test_a_bucket_can_become_exactly_these_rows_or_none(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1")
    start(table)
    commit_buckets(table, rewritten(table, [{"k": 8, "v": "x"}], ["+I"], limit=3, keep=False))
    assert rows(table) == [(8, None, "x")]
    (message,) = rewritten(table, [], [], limit=3, keep=False)
    assert (message.new_files, len(message.replaced)) == ((), 1)
    commit_buckets(table, [message])
    assert rows(table) == []


def test_a_bucket_of_an_append_table_is_rewritten_with_its_rows(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS)
    write_arrow(table, rows_of(COLUMNS, [{"k": 1}, {"k": 1}]))
    commit_buckets(table, rewritten(table, [{"k": 2}], ["+I"], limit=NEW_BUCKET))
    assert [r[0] for r in rows(table)] == [1, 1, 2]


def test_folding_keeps_the_rows_and_lowers_the_numbers(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1")
    start(table)
    before, plan = rows(table), plan_scan(table)
    (split,) = plan.splits
    messages = folded(plan_write(table), plan, {BucketKey(split.partition, split.bucket): NEW_BUCKET})
    commit_buckets(table, messages)
    assert rows(table) == before
    (file,) = plan_scan(table).splits[0].files
    assert (file.min_sequence_number, file.max_sequence_number) == (-1, -1)
    write_arrow(table, rows_of(COLUMNS, [{"k": 0, "v": "next"}]))
    assert rows(table)[0] == (0, None, "next")


def test_a_missing_live_file_leaves_nothing_behind(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1")
    start(table)
    first = min(tmp_path.rglob("*.parquet"))
    first.unlink()
    with pytest.raises(FormatError, match="is missing"):
        rewritten(table, [{"k": 1}], ["+I"], limit=3)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


CHANGE = st.tuples(
    st.integers(0, 6), st.one_of(st.none(), st.integers(0, 3)), st.sampled_from(["+I", "+U", "-U", "-D"])
)


@settings(max_examples=lives(6, 60))
@given(st.lists(CHANGE, max_size=12), st.lists(CHANGE, max_size=12), st.booleans())
def test_a_rewrite_gives_the_rows_that_an_upsert_gives(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[int, int | None, str]],
    change: list[tuple[int, int | None, str]],
    sequenced: bool,
) -> None:
    options = {"sequence__field": "s"} if sequenced else {}
    answers = []
    for way in ("upsert", "rewrite"):
        table = make_table(tmp_path_factory.mktemp(way), COLUMNS, primary_keys=["k"], bucket="1", **options)
        write_arrow(table, rows_of(COLUMNS, [{"k": k, "s": 1, "v": "base"} for k in range(5)]))
        _upsert(table, before, "before")
        if way == "upsert":
            _upsert(table, change, "change")
        else:
            changed = [{"k": k, "s": s, "v": f"change{i}"} for i, (k, s, _) in enumerate(change)]
            commit_buckets(table, rewritten(table, changed, [kind for *_, kind in change], limit=4))
        answers.append(rows(table))
    assert answers[0] == answers[1]


def _upsert(table: Table, changes: Sequence[tuple[int, int | None, str]], tag: str) -> None:
    data = rows_of(COLUMNS, [{"k": k, "s": s, "v": f"{tag}{i}"} for i, (k, s, _) in enumerate(changes)])
    write_arrow(table, data.append_column("_row_kind", pa.array([kind for *_, kind in changes], pa.string())))
