"""Files with some columns written again and the others copied: rows, pages, statistics, and what is not copied."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile
from airflow_paimon.core.format.stats import ColumnStats
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files import kept_columns as module
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.data.files.kept_columns import KeptColumns, kept_columns
from airflow_paimon.data.files.parquet_footer import encoded_footer, footer_of, read_struct
from airflow_paimon.data.files.pruning import value_bounds
from airflow_paimon.data.files.read import read_data_file
from airflow_paimon.data.files.write import FileTarget, RollingWriter
from tests.randomness import chance

COLUMNS = [
    ("k", "BIGINT NOT NULL"), ("s", "STRING"), ("r", "ROW<a INT, b ARRAY<STRING>>"), ("d", "DECIMAL(25, 3)"),
    ("t", "TIMESTAMP(9)"), ("m", "MAP<STRING, INT>"), ("f", "DOUBLE"), ("b", "BOOLEAN"),
]  # fmt: skip


def make(folder: Path, **options: str) -> tuple[Table, FileTarget]:
    table = create_table(str(folder), "d.t", COLUMNS, options={"bucket": "-1", **options})
    return table, FileTarget(store=table.store, schema=table.schema(), values=(), bucket=0)


def some_rows(table: Table, draw: random.Random, count: int) -> pa.Table:
    def row(k: int) -> dict[str, Any]:
        return {
            "k": k * 3,
            "s": draw.choice([None, "", "a" * 20, f"value {k}"]),
            "r": draw.choice([None, {"a": k, "b": [None, "x"][: draw.randint(0, 2)]}]),
            "d": draw.choice([None, Decimal(k) / 8]),
            "t": draw.choice([None, draw.randint(-(10**18), 10**18)]),
            "m": draw.choice([None, [("p", 1), ("q", None)], []]),
            "f": draw.choice([None, -0.0, 1.5, float("nan")]) if draw.random() < 0.2 else k / 2,
            "b": draw.choice([None, True, False]),
        }

    return pa.Table.from_pylist([row(k) for k in range(count)], arrow_schema(table.schema().fields))


def write(target: FileTarget, rows: pa.Table, group_rows: int) -> DataFile:
    writer = RollingWriter(target)
    for batch in rows.to_batches(max_chunksize=group_rows):
        writer.write(batch)
        writer._flush()
    [file] = writer.finish()
    return file


def path_of(file: DataFile) -> str:
    return f"bucket-0/{file.file_name}"


def planned(table: Table, target: FileTarget, file: DataFile, replaced: set[str]) -> KeptColumns | None:
    return kept_columns(table.store.open_input(path_of(file)), path_of(file), target, replaced, file.row_count)


def stats_of(file: DataFile, table: Table) -> dict[str, ColumnStats]:
    found = value_bounds(file, table.schema(), table.schema())
    return {name: ColumnStats(b.low, b.high, b.nulls) for name, b in found.items()}


def read(table: Table, file: DataFile) -> pa.Table:
    batches = read_data_file(table.store, path_of(file), table.schema().fields)
    return pa.Table.from_batches([b.rows for b in batches]).combine_chunks()


def same(one: pa.Table, other: pa.Table) -> bool:
    return repr(one.to_pylist()) == repr(other.to_pylist())  # NaN is itself, -0.0 is not 0.0


@pytest.mark.parametrize("seed", range(4))
def test_the_file_is_the_one_that_a_writer_of_all_columns_makes(tmp_path: Path, seed: int) -> None:
    draw = chance(f"kept columns {seed}")
    table, target = make(tmp_path, **{"file.compression": draw.choice(["zstd", "snappy", "none"])})
    before, fresh = some_rows(table, draw, 60), some_rows(table, draw, 60)
    group_rows = draw.choice([7, 30, 100])
    old = write(target, before, group_rows)
    replaced = set(draw.sample([n for n, _ in COLUMNS], draw.randint(1, 5)))
    after = before
    for at, name in enumerate(before.schema.names):
        after = after.set_column(at, name, (fresh if name in replaced else before).column(name))
    found = planned(table, target, old, replaced)
    assert found is not None and [f.name for f in found.replaced] == [n for n, _ in COLUMNS if n in replaced]
    new = found.write(after.select([f.name for f in found.replaced]).to_batches(max_chunksize=11), stats_of(old, table))
    whole = write(target, after, group_rows)
    assert same(read(table, new), after) and same(read(table, new), read(table, whole))
    plain = {"file_name": "", "file_size": 0, "creation_time_ms": 0, "value_stats": EMPTY_STATS}
    assert new._replace(**plain) == whole._replace(**plain)
    assert stats_of(new, table) == stats_of(whole, table), "but for bounds of floats, which nobody trusts"
    stored = tmp_path / "d.db" / "t" / path_of(new)
    assert new.file_size == stored.stat().st_size
    for name in {n for n, _ in COLUMNS} - replaced:
        assert pages(tmp_path, new, name) == pages(tmp_path, old, name)
    metadata = pq.ParquetFile(stored).metadata
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert groups == found.group_rows and sum(groups) == metadata.num_rows == 60


def pages(folder: Path, file: DataFile, name: str) -> list[bytes]:
    """What is stored of a column, by row group and leaf."""
    path = folder / "d.db" / "t" / path_of(file)
    data, metadata = path.read_bytes(), pq.ParquetFile(path).metadata
    out = []
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            if chunk.path_in_schema.split(".")[0] == name:
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                out.append(data[start : start + chunk.total_compressed_size])
    return out


def test_a_file_that_was_written_again_is_written_again(tmp_path: Path) -> None:
    draw = chance("kept columns twice")
    table, target = make(tmp_path)
    rows = some_rows(table, draw, 30)
    file = write(target, rows, 10)
    for name in ("s", "f", "s"):
        fresh = some_rows(table, draw, 30)
        found = planned(table, target, file, {name})
        assert found is not None
        file = found.write(fresh.select([name]).to_batches(), stats_of(file, table))
        rows = rows.set_column(rows.schema.names.index(name), name, fresh.column(name))
        assert same(read(table, file), rows)


def test_a_footer_is_written_as_it_was(tmp_path: Path) -> None:
    table, target = make(tmp_path)
    file = write(target, some_rows(table, chance("footer"), 50), 20)
    data = (tmp_path / "d.db" / "t" / path_of(file)).read_bytes()
    footer = footer_of(table.store.open_input(path_of(file)), "x")
    assert data.endswith(encoded_footer(footer))
    whole = encoded_footer(footer)[:-8]
    for cut in range(0, len(whole), 7):
        with pytest.raises(FormatError, match="x has a damaged footer"):
            read_struct(whole[:cut], "x")
    for damaged in (data[:-1], b"PAR1", data[:-8] + b"\xff\xff\xff\x7fPAR1"):
        with pytest.raises(FormatError, match="no footer"):
            footer_of(pa.BufferReader(damaged), "x")


def test_what_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is stored in another way, one that is missing, and rows that the manifest doesn't know."""
    table, target = make(tmp_path)
    rows = some_rows(table, chance("not copied"), 20)
    file = write(target, rows, 20)
    assert planned(table, target, file, {"s"}) is not None
    assert planned(table, target, file._replace(row_count=21), {"s"}) is None
    other, other_target = make(tmp_path / "other")
    strange = pa.table({"k": rows.column("k").cast(pa.int32()), "s": rows.column("s")})
    folder = tmp_path / "other" / "d.db" / "t" / "bucket-0"
    folder.mkdir()
    pq.write_table(strange, folder / file.file_name)
    assert planned(other, other_target, file, {n for n, _ in COLUMNS} - {"k"}) is None
    assert planned(other, other_target, file, {n for n, _ in COLUMNS} - {"m"}) is None
    monkeypatch.setattr(module, "_MOST_GROUP_ROWS", 19)
    assert planned(table, target, file, {"s"}) is None
    monkeypatch.setattr(module, "_MOST_GROUP_ROWS", 20)
    found = planned(table, target, file, {"s"})
    assert found is not None
    before = sorted(p.name for p in (tmp_path / "d.db" / "t" / "bucket-0").iterdir())
    for count in (19, 21):
        more = pa.concat_tables([rows, rows]).slice(0, count).select(["s"])
        with pytest.raises(FormatError, match="rows than its footer lists"):
            found.write(more.to_batches(), {})
    assert sorted(p.name for p in (tmp_path / "d.db" / "t" / "bucket-0").iterdir()) == before
