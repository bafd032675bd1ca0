"""What the built-in engine does not do is refused by name, with the way out; what changes nothing is ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.table.features import (
    check_file,
    check_index,
    check_mergeable,
    check_readable,
    check_writable,
    file_format,
)
from tests.environment import REPO_ROOT


def schema(
    keyed: bool = True,
    types: dict[str, Any] | None = None,
    default: str | None = None,
    partition_keys: tuple[str, ...] = (),
    **options: str,
) -> TableSchema:
    columns = {"k": "INT NOT NULL", "v": "STRING", **(types or {})}
    fields = tuple(DataField(i, n, parse_type(t), None, default) for i, (n, t) in enumerate(columns.items()))
    options = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    keys = ("k",) if keyed else ()
    base = {"bucket": "2", "bucket-key": "k"} if keyed else {}
    return TableSchema(
        id=0,
        fields=fields,
        highest_field_id=9,
        primary_keys=keys,
        partition_keys=partition_keys,
        options={**base, **options},
    )


NEITHER: list[tuple[str, dict[str, Any]]] = [
    ("merge-engine=last-row", {"merge_engine": "last-row"}),
    ("query-auth.enabled=true", {"query_auth__enabled": "true"}),
    ("pk-clustering-override=true", {"pk_clustering_override": "true", "deletion_vectors__merge_on_read": "true"}),
    ("postpone.merge-on-read=true", {"bucket": "-2", "postpone__merge_on_read": "true"}),
    ("tables of type 'format-table'", {"keyed": False, "type": "format-table"}),
    ("branch=other", {"branch": "other"}),
    ("fields.v.default-value", {"fields.v.default_value": "x"}),
    ("fields.v.default-value", {"fields.v.default_value": ""}),
    ("columns of type VARIANT (column 'x')", {"types": {"x": "VARIANT"}}),
    ("columns of type BLOB (column 'x')", {"keyed": False, "types": {"x": {"type": "ARRAY", "element": "BLOB"}}}),
    ("columns of type MULTISET", {"types": {"x": {"type": "MULTISET", "element": "INT"}}}),
    ("columns of type VECTOR", {"types": {"x": {"type": "VECTOR", "element": "FLOAT", "length": 3}}}),
    ("main branch of a chain table", {"chain_table__enabled": "true", "scan__fallback_snapshot_branch": "s",
                                      "scan__fallback_delta_branch": "d"}),
]  # fmt: skip
READ: list[tuple[str, dict[str, Any]]] = [
    ("scan.snapshot-id", {"scan__snapshot_id": "3"}),
    ("scan.tag-name", {"scan__tag_name": "t"}),
    ("scan.mode=from-snapshot", {"scan__mode": "from-snapshot"}),
    ("scan.fallback-branch", {"scan__fallback_branch": "b"}),
    ("scan.primary-branch", {"scan__primary_branch": "b"}),
    ("both scan.fallback-branch and scan.primary-branch", {"scan__primary_branch": "b", "scan__fallback_branch": "c"}),
]
WRITE: list[tuple[str, dict[str, Any]]] = [
    ("pk-clustering-override=true", {"pk_clustering_override": "true"}),
    ("sequence.snapshot-ordering=true", {"sequence__snapshot_ordering": "true"}),
    ("deletion-vectors.merge-on-read=true", {"deletion_vectors__merge_on_read": "true"}),
    ("data-evolution.enabled=true", {"keyed": False, "data_evolution__enabled": "true"}),
    ("data-file.external-paths", {"data_file__external_paths": "s3://x"}),
    ("rowkind.field=op, which is not a string column", {"rowkind__field": "op"}),
    ("rowkind.field=k, which is not a string column", {"rowkind__field": "k"}),
    ("changelog-producer=other", {"changelog_producer": "other"}),
    ("write.sequence-number-init-mode=snapshot", {"write__sequence_number_init_mode": "snapshot"}),
    ("bucket-function.type=mod and this bucket key", {"bucket_function__type": "mod", "bucket_key": "v"}),
    ("bucket-function.type=hive", {"bucket_function__type": "hive", "bucket_key": "t", "types": {"t": "TIMESTAMP(3)"}}),
    ("bucket-function.type=crc", {"bucket_function__type": "crc"}),
    ("index-file-in-data-file-dir", {"bucket": "-1", "index_file_in_data_file_dir": "true"}),
    ("postponed buckets", {"bucket": "-2"}),
    ("without bucket-key", {"keyed": False, "bucket": "2"}),
]


def ids(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [name for name, _ in cases]


def refusal(check: Any, options: dict[str, Any], **more: Any) -> UnsupportedFeatureError:
    with pytest.raises(UnsupportedFeatureError) as refused:
        check(schema(**options), table="d.t", **more)
    return refused.value


@pytest.mark.parametrize("what, options", NEITHER, ids=ids(NEITHER))
def test_neither_read_nor_written(what: str, options: dict[str, Any]) -> None:
    for check, verb in ((check_readable, "read"), (check_writable, "write")):
        error = refusal(check, options)
        assert what in error.message
        assert error.message.startswith(f"d.t: the built-in engine does not {verb} ")
        assert "; " in error.message  # and then the way out
        assert (error.kind, error.exit_code) == ("unsupported", 2)


@pytest.mark.parametrize("what, options", READ, ids=ids(READ))
def test_not_read(what: str, options: dict[str, Any]) -> None:
    assert what in refusal(check_readable, options).message
    check_writable(schema(**options), table="d.t")


@pytest.mark.parametrize("what, options", WRITE, ids=ids(WRITE))
def test_not_written(what: str, options: dict[str, Any]) -> None:
    assert what in refusal(check_writable, options).message
    check_readable(schema(**options), table="d.t")


def test_main_of_a_chain_table_whose_set_up_is_not_finished_is_neither_read_nor_written() -> None:
    options = {"chain_table__enabled": "true"}
    for check in (check_readable, check_writable):
        assert "whose set-up is not finished" in refusal(check, options).message
    assert "branches of chain tables" in refusal(check_writable, options, branch="delta").message


def test_whole_buckets_and_appends_are_written_with_each_producer() -> None:
    for producer in ("input", "lookup", "full-compaction"):
        for by_buckets in (False, True):
            check_writable(schema(changelog_producer=producer), table="d.t", by_buckets=by_buckets)
    assert (
        "changelog-producer=other" in refusal(check_writable, {"changelog_producer": "other"}, by_buckets=True).message
    )


def test_what_a_chain_table_may_not_have() -> None:
    for options in ({"deletion_vectors__enabled": "true"}, {"changelog_producer": "lookup"}):
        chain = schema(chain_table__enabled="true", **options)
        with pytest.raises(UnsupportedFeatureError, match=r"deletion-vectors|changelog-producer"):
            check_writable(chain, table="d.t", branch="fix", chained=True)


@pytest.mark.parametrize(
    "options",
    [
        {"file_index__bloom_filter__columns": "k", "num_levels": "3", "consumer_id": "x"},
        {"changelog_producer": "lookup", "write_only": "true"},
        {"changelog_producer": "full-compaction", "merge_engine": "partial-update"},
        {"merge_engine": "FIRST-ROW"},
        {"deletion_vectors__enabled": "true", "merge_engine": "aggregation"},
        {"keyed": False, "merge_engine": "aggregation", "changelog_producer": "input", "bucket_key": ""},
        {"fields.v.aggregate_function": "sum", "ignore_delete": "true", "sequence__field": "v"},
        {"scan__mode": "latest-full", "snapshot__time_retained": "1 h", "file__format": "avro"},
        {"branch": "main", "type": "TABLE", "bucket_function__type": "default"},
    ],
)
def test_what_changes_nothing_is_ignored(options: dict[str, Any]) -> None:
    check_readable(schema(**options), table="d.t")
    check_writable(schema(**options), table="d.t")


def test_a_starting_point_does_not_matter_to_time_travel() -> None:
    check_readable(schema(scan__snapshot_id="3", scan__mode="from-snapshot"), table="d.t", time_travel=True)
    check_readable(schema(scan__fallback_branch="b"), table="d.t", layered=True)


@pytest.mark.parametrize("branch", ["s", "D"])
def test_the_branches_of_a_chain_table_are_plain_tables_to_a_reader(branch: str) -> None:
    chain = {"chain_table__enabled": "true", "scan__fallback_snapshot_branch": "s", "scan__fallback_delta_branch": "d"}
    check_readable(schema(**chain), table="d.t", branch=branch)


def data_file(name: str = "data-1.parquet", **more: Any) -> DataFile:
    return DataFile(name, 1, 1, b"", b"", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0, **more)


def test_files_of_other_kinds() -> None:
    check_file(data_file(), schema(), table="d.t")
    check_file(data_file("data-1.zstd.orc", write_cols=("k", "v", "_ROW_ID")), schema(), table="d.t")
    for file, what in [
        (data_file("data-1.lance"), "format 'lance'"),
        (data_file("data-1"), "format ''"),
        (data_file("data-1.blob"), "format 'blob'"),
        (data_file(external_path="s3://b/x"), "data-file.external-paths"),
        (data_file(write_cols=("k",)), "a part of the columns without data-evolution.enabled"),
    ]:
        with pytest.raises(UnsupportedFeatureError, match="connector") as refused:
            check_file(file, schema(), table="d.t")
        assert what in refused.value.message
    assert file_format("a/data-1.ZSTD.Parquet") == "parquet"


def test_index_files_of_unknown_kinds() -> None:
    def entry(kind: str) -> IndexEntry:
        return IndexEntry(0, b"", 0, kind, "index-1", 1, 1)

    check_index([entry("HASH"), entry("DELETION_VECTORS"), entry("btree")], table="d.t")
    with pytest.raises(UnsupportedFeatureError, match="index files of type 'MYSTERY'"):
        check_index([entry("MYSTERY")], table="d.t")


def test_defaults_of_nested_columns_are_not_written() -> None:
    with pytest.raises(UnsupportedFeatureError, match="default values of nested columns"):
        check_writable(schema(types={"x": {"type": "ARRAY", "element": "INT"}}, default="1"), table="d.t")
    check_writable(schema(default="1"), table="d.t")


@pytest.mark.parametrize(
    "options, appends_only", [({"sequence__field": "v"}, False), ({"changelog_producer": "input"}, True)]
)
def test_keys_that_move_between_partitions(options: dict[str, str], appends_only: bool) -> None:
    """An append would have to change the old partition in a way that these options don't show, or forbid."""
    crossed = schema(partition_keys=("v",), bucket="-1", **options)
    with pytest.raises(UnsupportedFeatureError):
        check_writable(crossed, table="d.t")
    if appends_only:
        check_writable(crossed, table="d.t", branch="fix", by_buckets=True)
    else:
        with pytest.raises(UnsupportedFeatureError, match="lacks partition columns"):
            check_writable(crossed, table="d.t", branch="fix", by_buckets=True)
    check_writable(schema(partition_keys=("v",), sequence__field="v"), table="d.t")


_MERGED: list[dict[str, Any]] = [{"merge_engine": "partial-update"}, {"merge_engine": "aggregation"}]
_VECTORS = {"deletion_vectors__enabled": "true"}
_WRITE_ONLY, _INPUT = {"write_only": "true"}, {"changelog_producer": "input"}
_LOOKUP, _FULL = {"changelog_producer": "lookup"}, {"changelog_producer": "full-compaction"}
_SPECIAL = ("sequence__snapshot_ordering", "pk_clustering_override", "deletion_vectors__merge_on_read")
_ROWS: dict[str, list[dict[str, Any]]] = {
    "append table": [{"keyed": False, **more} for more in ({}, _VECTORS)],
    "primary-key table": [{}, {"bucket": "-1"}, *({"partition_keys": ("v",), "bucket": n} for n in ("2", "-1"))],
    "row tracking": [_VECTORS, {**_VECTORS, "bucket": "-1"}, {"keyed": False, "row_tracking__enabled": "true"}],
    "any `changelog": [{**one, **more} for one in (_INPUT, _LOOKUP, _FULL) for more in ({}, _WRITE_ONLY)],
    "any merge engine": [
        *({**one, **more} for one in _MERGED for more in ({}, _VECTORS, _LOOKUP, _INPUT)),
        {"merge_engine": "first-row"},
    ],
    "`rowkind": [{"rowkind__field": "v"}, {"data_file__thin_mode": "true"}],
    "`sequence.snapshot": [{key: "true"} for key in _SPECIAL],
    "`bucket=-2`": [{"bucket": "-2"}],
    "`data-evolution": [{"keyed": False, "data_evolution__enabled": "true"}],
}


def _engines(options: dict[str, Any]) -> list[str]:
    """Who does it: the built-in engine, the connector for a statement if that takes the table, or nobody."""
    table = schema(**options)

    def asked(check: Callable[..., None], connector: str, **more: Any) -> str:
        try:
            check(table, table="d.t", branch="fix", **more)
        except UnsupportedFeatureError:
            return connector
        return "yes"

    refused_there = table.options.get("bucket") == "-2" or "data-evolution.enabled" in table.options
    connector = "no" if refused_there else "connector"
    compaction = check_mergeable if table.primary_keys else check_writable
    return [
        asked(check_readable, connector),
        asked(check_writable, connector, by_buckets=True),
        asked(check_writable, "no"),
        asked(compaction, "no"),
    ]


def test_the_page_says_which_engine_does_what() -> None:
    page = (REPO_ROOT / "docs/engines.md").read_text()
    lines = page.partition("## Can I correct")[2].partition("\n\n*")[0].splitlines()
    rows = [line.removeprefix("| ").replace("[connector](#the-connector)", "connector") for line in lines[1:]]
    rows = [row for row in rows if row.startswith(tuple(_ROWS))]
    assert len(rows) == len(_ROWS)
    for start, tables in _ROWS.items():
        (row,) = (row for row in rows if row.startswith(start))
        said = ["yes", *(cell.strip() for cell in row.split("|")[1:4])]  # all can be read
        for options in tables:
            assert _engines(options) == said, (row, options)
