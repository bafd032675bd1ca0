"""Examples of schemas for each rule of what Paimon opens: some that it refuses, and some near them that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

COLUMNS = {
    "dt": "STRING", "k": "INT", "v": "STRING", "n": "BIGINT", "g": "INT", "h": "INT", "b": "BOOLEAN",
    "a": "ARRAY<INT>", "m": "MAP<STRING, INT>", "r": "ROW<x INT, t STRING>", "rs": "ARRAY<ROW<x INT, t STRING>>",
    "mr": "MAP<STRING, ROW<x INT, t STRING>>", "c": "VARCHAR(9)", "d": "DECIMAL(9, 2)", "t9": "TIMESTAMP(9)",
    "y": "BYTES",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Example:
    """``only``: the columns; none: all but ``t9``. ``new``: 1.4.2 takes it, and Paimon 2.1 doesn't."""

    options: Mapping[str, str] = field(default_factory=dict)
    primary: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    only: str = " ".join(n for n in COLUMNS if n != "t9")
    columns: Mapping[str, str] = field(default_factory=dict)
    new: bool = False

    def types(self) -> dict[str, str]:
        return {n: COLUMNS[n] for n in self.only.split()} | dict(self.columns)


def _keyed(**more: str) -> Example:
    return Example(primary=("dt", "k"), partition=("dt",), options={"bucket": "1", **_named(more)})


def _append(**more: str) -> Example:
    return Example(options=_named(more))


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """``merge_engine`` is ``merge-engine``, and ``sequence__field`` ``sequence.field``."""
    return {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}


def _also(example: Example, **options: str) -> Example:
    return replace(example, options={**example.options, **options})


def _partial(**more: str) -> Example:
    return _also(_keyed(merge_engine="partial-update"), **more)


def _sums(**more: str) -> Example:
    return _also(_keyed(merge_engine="aggregation"), **more)


def _newer(*examples: Example) -> tuple[Example, ...]:
    return tuple(replace(one, new=True) for one in examples)


KEYED, APPEND = _keyed(), _append()
_NESTED = ("a", "m", "r")
_EVOLVED = {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}
_DV = {"deletion-vectors.enabled": "true"}

REFUSED: dict[str, tuple[Example, ...]] = {
    "key types": (
        *(Example(primary=("k", name), options={"bucket": "1"}) for name in _NESTED),
        *(Example(partition=(name,)) for name in _NESTED),
        Example(primary=("k", "z"), columns={"z": "VARIANT"}, options={"bucket": "1"}),
    ),
    "keys": (
        Example(primary=("dt",), partition=("dt", "k"), options={"bucket": "1"}),
        *_newer(_append(primary_key__nullable="true")),
    ),
    "bucket key": (
        _append(bucket_key="k"),
        _keyed(bucket_key="k", bucket="-1"),
        _append(bucket="2", bucket_key="nope"),
        _append(bucket="2", bucket_key="k, v"),
        _append(bucket="2", bucket_key="a"),
        _append(bucket="2", bucket_key="k,k"),
        _keyed(bucket_key="v"),
        _keyed(bucket_key="dt"),
    ),
    "buckets": (_append(bucket="2"), _append(bucket="-2"), _keyed(bucket="0"), _keyed(bucket="-3")),
    "branches read together": (_keyed(scan__fallback_branch="x", scan__primary_branch="y"),),
    "options of columns": (
        _keyed(fields__nope__sequence_group="v"),
        _also(KEYED, **{"fields. v.aggregate-function": "sum"}),
        _also(APPEND, **{"fields.nope.stats-mode": "none"}),
        *_newer(_sums(**{"fields.r.x.aggregate-function": "sum"})),
    ),
    "sequence field": (
        _keyed(sequence__field="nope"),
        _keyed(sequence__field="n,n"),
        _keyed(sequence__field="n,,g"),
        _keyed(sequence__field=""),
        _keyed(sequence__field="n", merge_engine="first-row"),
        _sums(**{"sequence.field": "n", "fields.n.aggregate-function": "sum"}),
        Example(primary=("k",), partition=("dt",), options={"sequence.field": "n"}),
    ),
    "sequence groups": (
        _partial(**{"fields.g.sequence-group": "v, n"}),
        _partial(**{"fields.g.sequence-group": " v"}),
        _partial(**{"fields.g.sequence-group": "nope"}),
        _partial(**{"fields.g, h.sequence-group": "v"}),
        *_newer(_partial(**{"fields.g.sequence-group": "k"}), _partial(**{"fields.k.sequence-group": "v"})),
        _partial(**{"fields.g.sequence-group": "v", "fields.h.sequence-group": "v,n"}),
        _partial(**{"fields.g.sequence-group": "v,v"}),
        _partial(**{"fields.g.sequence-group": ""}),
    ),
    "removals": (
        _partial(**{"ignore-delete": "true", "partial-update.remove-record-on-delete": "true"}),
        _partial(**{"fields.g.sequence-group": "v", "partial-update.remove-record-on-delete": "true"}),
        _partial(**{"fields.g.sequence-group": "v", "partial-update.remove-record-on-sequence-group": "v"}),
        _partial(**{"fields.g.sequence-group": "v", "partial-update.remove-record-on-sequence-group": " g"}),
        _partial(
            **{
                "fields.g.sequence-group": "v",
                "partial-update.remove-record-on-sequence-group": "g",
                "ignore-delete": "true",
            }
        ),
    ),
    "functions": (
        _sums(**{"fields.n.aggregate-function": "summ"}),
        _sums(**{"fields.n.aggregate-function": "sum "}),
        _sums(**{"fields.n.aggregate-function": "SUM"}),
        _sums(**{"fields.n.aggregate-function": ""}),
        _sums(**{"fields.default-aggregate-function": "nope"}),
        _partial(**{"fields.g.sequence-group": "n", "fields.n.aggregate-function": "nope"}),
        _sums(**{"fields.k.aggregate-function": "nope"}),
        _partial(**{"fields.n.aggregate-function": "sum"}),
        _partial(**{"fields.default-aggregate-function": "last_value"}),
        _partial(**{"fields.g.sequence-group": "v", "fields.n.aggregate-function": "sum"}),
        _sums(**{"fields.v.aggregate-function": "sum"}),
        _sums(**{"fields.v.aggregate-function": "product"}),
        _sums(**{"fields.n.aggregate-function": "bool_and"}),
        _sums(**{"fields.n.aggregate-function": "listagg"}),
        _sums(**{"fields.m.aggregate-function": "collect"}),
        _sums(**{"fields.a.aggregate-function": "merge_map"}),
        _sums(**{"fields.a.aggregate-function": "nested_update"}),
        _sums(**{"fields.rs.aggregate-function": "nested_update", "fields.rs.nested-key": "nope"}),
        _sums(**{"fields.v.aggregate-function": "rbm32"}),
        _sums(**{"fields.v.aggregate-function": "hll_sketch"}),
        _sums(**{"fields.default-aggregate-function": "sum"}),
        _partial(**{"fields.g.sequence-group": "v", "fields.v.aggregate-function": "sum"}),
        _sums(
            **{
                "fields.n.aggregate-function": "sum",
                "fields.n.ignore-retract": "true",
                "aggregation.remove-record-on-delete": "true",
            }
        ),
        *_newer(
            _sums(**{"fields.a.aggregate-function": "max"}),
            _sums(**{"fields.m.aggregate-function": "min"}),
            _sums(**{"fields.b.aggregate-function": "max"}),  # Paimon fails at the second value of a key
            _sums(**{"fields.rs.aggregate-function": "nested_update", "fields.rs.nested-sequence-field": "x"}),
        ),
        _sums(**{"fields.m.aggregate-function": "merge_map_with_keytime"}),
        _sums(**{"fields.mr.aggregate-function": "merge_map_with_keytime", "fields.mr.ts-field": "nope"}),
        _sums(**{"fields.rs.aggregate-function": "nested_partial_update"}),
        _sums(**{"fields.c.aggregate-function": "listagg"}),
    ),
    "changelogs": (
        _append(changelog_producer="input"),
        _append(changelog_producer="lookup"),
        _keyed(merge_engine="first-row", changelog_producer="input"),
        _append(full_compaction__delta_commits="5"),
        *_newer(_keyed(changelog_producer="lookup", full_compaction__delta_commits="5")),
        _keyed(changelog_producer="lookup", streaming_read_overwrite="true"),
        _append(streaming_read_overwrite="true"),
    ),
    "limits": (
        _keyed(snapshot__num_retained__min="0"),
        _keyed(snapshot__num_retained__max="5"),
        _keyed(changelog__num_retained__max="5"),
        _keyed(num_levels="1"),
        _keyed(num_sorted_run__compaction_trigger="0"),
        _keyed(write_buffer_size="191 kb"),
        *_newer(_keyed(target_file_row_num="0")),
    ),
    "file types": (
        replace(_append(file__format="avro"), only="k t9"),
        replace(_append(file__format="avro"), only="k", columns={"x": "ARRAY<TIMESTAMP(9)>"}),
        replace(_append(file__format="AVRO"), only="k", columns={"x": "TIME(6)"}),
        *_newer(replace(_append(file__format__per__level="0:avro"), only="k t9")),
    ),
    "compressions": (
        _append(file__compression="zzz"),
        _append(file__compression="gzip", file__format="orc"),
        _append(file__compression="none", file__format="avro"),
        _append(file__compression=" zstd"),
        _append(manifest__compression="gzip"),
        _keyed(file__compression__per__level="0:zlib"),
        _keyed(file__compression="gzip", file__format__per__level="0:orc"),
        _keyed(changelog_producer="input", changelog_file__compression="zzz"),
    ),
    "file names": (_append(data_file__prefix="a/b"), _keyed(data_file__prefix="/")),
    "column names": tuple(
        replace(APPEND, columns={name: "INT"})
        for name in ("_SEQUENCE_NUMBER", "_KEY_x", "rowkind", "_ROW_ID", "_LEVEL")
    ),
    "named columns": (
        _keyed(rowkind__field=" v "),
        _keyed(rowkind__field="nope"),
        _keyed(record_level__time_field="v", record_level__expire_time="1 d"),
        _keyed(record_level__time_field="nope", record_level__expire_time="1 d"),
        _keyed(record_level__expire_time="1 d"),
    ),
    "deletion vectors": (
        _also(_keyed(changelog_producer="full-compaction"), **_DV),
        _also(_keyed(merge_engine="first-row"), **_DV),
    ),
    "file indexes": (
        _also(KEYED, **{"file-index.bloom-filter.columns": "nope"}),
        _also(KEYED, **{"file-index.bloom-filter.columns": "v,,n"}),
        _also(KEYED, **{"file-index.bloom-filter.v.items": "9"}),
        _also(KEYED, **{"file-index.bloom-filter.columns": "v[x]"}),
        _also(KEYED, **{"file-index.nope.columns": "v"}),
    ),
    "row tracking": (
        _also(KEYED, **{"row-tracking.enabled": "true"}),
        _append(row_tracking__enabled="true", bucket="2", bucket_key="k"),
        _append(data_evolution__enabled="true"),
        _also(APPEND, **_EVOLVED, **{"clustering.incremental": "true"}),
    ),
    "order of files": (
        _also(KEYED, **{"clustering.incremental": "true"}),
        _append(clustering__incremental="true", bucket="2", bucket_key="k"),
        *_newer(
            _append(manifest_sort__enabled="true"),
            _also(KEYED, **{"manifest-sort.enabled": "true", "manifest-sort.partition-field": "v"}),
        ),
    ),
}
"""By rule. Chain tables have tests of their own."""

TAKEN: dict[str, tuple[Example, ...]] = {
    "key types": (
        Example(primary=("k", "v", "b", "d", "y", "c"), options={"bucket": "1"}),
        Example(partition=("k", "v", "b", "d")),
    ),
    "keys": (
        Example(primary=("dt", "k"), partition=("dt", "v"), options={"bucket": "1"}),
        Example(primary=("k",), partition=("dt",), options={"bucket": "-1"}),
    ),
    "bucket key": (
        _append(bucket="2", bucket_key="k,v"),
        _append(bucket="2", bucket_key="k,v,"),
        _keyed(bucket_key="k"),
    ),
    "buckets": (_append(bucket="-1"), _keyed(bucket="-2"), _keyed(bucket="+3"), _keyed(bucket="-1")),
    "branches read together": (_keyed(scan__fallback_branch="", scan__primary_branch=" "),),
    "options of columns": (
        _also(APPEND, **{"fields.v.stats-mode": "none"}),
        _also(APPEND, **{"fields.v,n.anything": "x", "fields.v,.other": "x"}),
        _also(APPEND, **{"fields.default-aggregate-function": "nope"}),
        _also(KEYED, **{"fields.n.aggregate-function": "nope"}),
    ),
    "sequence field": (_keyed(sequence__field=" n , g "), _keyed(sequence__field="n,")),
    "sequence groups": (
        _partial(**{"fields.g.sequence-group": "v,n"}),
        _partial(**{"fields.g.sequence-group": "v,n,"}),
        _partial(**{"fields.g,h.sequence-group": "v,n"}),
        _partial(**{"fields.g.sequence-group": "g,v"}),
        _partial(**{"fields.g.sequence-group": "v", "fields.h.sequence-group": "n"}),
    ),
    "removals": (
        _partial(**{"partial-update.remove-record-on-delete": "true"}),
        _partial(**{"fields.g,h.sequence-group": "v", "partial-update.remove-record-on-sequence-group": "h"}),
        _keyed(ignore_delete="true", partial_update__remove_record_on_delete="true"),
    ),
    "functions": (
        *(
            _sums(**{"fields.n.aggregate-function": name})
            for name in ("sum", "first_not_null_value", "last_value", "primary-key", "max", "product")
        ),
        _sums(**{"fields.default-aggregate-function": "last_value"}),
        _partial(**{"fields.n.aggregate-function": "last_non_null_value"}),
        _partial(**{"fields.g.sequence-group": "n", "fields.n.aggregate-function": "sum"}),
        _partial(**{"fields.g.sequence-group": "n", "fields.g.aggregate-function": "sum"}),
        _sums(
            **{
                "fields.n.aggregate-function": "sum",
                "fields.d.aggregate-function": "product",
                "fields.v.aggregate-function": "listagg",
                "fields.b.aggregate-function": "bool_or",
                "fields.a.aggregate-function": "collect",
                "fields.a.distinct": "true",
                "fields.m.aggregate-function": "merge_map",
                "fields.rs.aggregate-function": "nested_update",
                "fields.rs.nested-key": " x , t ",
                "fields.y.aggregate-function": "rbm32",
                "fields.c.aggregate-function": "max",
                "fields.r.aggregate-function": "first_value",
            }
        ),
        _sums(**{"fields.k.aggregate-function": "bool_and"}),
        _sums(**{"fields.mr.aggregate-function": "merge_map_with_keytime"}),
    ),
    "changelogs": (
        _keyed(changelog_producer="full-compaction", full_compaction__delta_commits="5"),
        _append(bucket="2", bucket_key="k", full_compaction__delta_commits="5"),
        _keyed(merge_engine="first-row", changelog_producer="lookup"),
        _keyed(streaming_read_overwrite="true", changelog_producer="input"),
    ),
    "limits": (
        _keyed(snapshot__num_retained__min="1", snapshot__num_retained__max="1"),
        _keyed(snapshot__num_retained__max="20", changelog__num_retained__min="11"),
        _keyed(num_levels="2", write_buffer_size="192 kb"),
        _append(num_levels="0", num_sorted_run__compaction_trigger="0", write_buffer_size="1 b"),
    ),
    "file types": (
        replace(_append(file__format="orc"), only="k t9 y", columns={"w": "BINARY(3)", "x": "TIME(3)"}),
        replace(_append(file__format="avro"), only="k", columns={"x": "TIMESTAMP(6)", "y": "TIME(3)"}),
        replace(_append(file__format="Parquet"), only="k t9 a m r rs"),
        replace(_append(file__format__per__level="0:orc"), only="k t9"),
    ),
    "compressions": (
        _append(file__compression="GZIP"),
        _append(file__compression="none"),
        _append(file__compression="null", file__format="avro"),
        _append(file__compression="zlib", file__format="orc"),
        _append(manifest__compression="deflate"),
        _keyed(file__compression__per__level="0:lz4,5:gzip", file__compression="zstd"),
        _keyed(changelog_file__compression="zzz"),
        _keyed(file__format__per__level="0:avro", file__compression__per__level="0:deflate"),
    ),
    "file names": (_append(data_file__prefix="a b-"), _append(data_file__prefix="")),
    "column names": (replace(APPEND, columns={"_key_x": "INT", "ROWKIND": "STRING", "level": "INT"}),),
    "named columns": (
        _keyed(rowkind__field="v"),
        _keyed(record_level__time_field="n", record_level__expire_time="1 d"),
    ),
    "deletion vectors": (
        _also(KEYED, **_DV),
        _also(_keyed(changelog_producer="lookup"), **_DV),
        _also(APPEND, **_DV),
    ),
    "file indexes": (
        _also(KEYED, **{"file-index.bloom-filter.columns": " v , n", "file-index.bloom-filter.v.items": "9"}),
        _also(KEYED, **{"file-index.bitmap.columns": "v,b", "file-index.bsi.columns": "n,d"}),
        _also(KEYED, **{"file-index.bloom-filter.columns": "m[x]"}),
        _also(KEYED, **{"file-index.read.enabled": "false", "file-index.in-manifest-threshold": "1 kb"}),
    ),
    "row tracking": (_also(APPEND, **{"row-tracking.enabled": "true"}), _also(APPEND, **_EVOLVED)),
    "order of files": (
        _append(clustering__incremental="true", clustering__columns="k"),
        _also(KEYED, **{"manifest-sort.enabled": "true", "manifest-sort.partition-field": "dt"}),
    ),
}
