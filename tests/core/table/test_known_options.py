"""Every option of Paimon has one class, and the class is true; of unknown ones it is said which one was meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import airflow_paimon
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table import options
from airflow_paimon.core.table.features import check_compactable, check_readable, check_unclustered, check_writable
from airflow_paimon.core.table.known_options import (
    OWN,
    KnownOption,
    OptionClass,
    find_option,
    is_known,
    known_options,
    meant,
    unknown_options,
)
from airflow_paimon.core.table.options import FALLBACK_KEYS, PROTECTIVE_OPTIONS, TableOptions
from tests import paimon_options
from tests.data.test_features import schema

CHECKS: dict[str, Callable[[TableSchema], None]] = {
    "read": lambda s: check_readable(s, table="d.t"),
    "write": lambda s: check_writable(s, table="d.t"),
    "compact": lambda s: check_compactable(s, table="d.t", branch="main"),
}
VALUES = {
    "branch": "b", "type": "format-table", "manifest.format": "orc", "parquet.crypto.factory.class": "a.B",
    "data-file.external-paths": "s3://b/t", "write.sequence-number-init-mode": "timestamp",
    "fields.*.map.storage-layout": "shared-shredding", "fields.*.default-value": "1",
}  # fmt: skip
"""Values with which an option counts; others take ``true`` or, for a starting point, ``1``."""


def test_every_option_has_one_class() -> None:
    known = known_options()
    lines = paimon_options.LIST.read_text().splitlines()
    assert len([line for line in lines if line and line[0] not in "#["]) == len(known) > 500, "each is there once"
    assert [option.name for option in known.values() if option.option_class is None or not option.why] == []
    assert all(bool(o.operations) == (o.option_class is OptionClass.REFUSED) for o in known.values())
    assert all(name == name.strip() and " " not in name for name in known)


def test_the_most_exact_name_decides() -> None:
    found = {n: find_option(n) for n in ("parquet.crypto.factory.class", "parquet.x", "fields.a.map.storage-layout")}
    assert [option and option.name for option in found.values()] == [
        "parquet.crypto.factory.class", "parquet.*", "fields.*.map.storage-layout",
    ]  # fmt: skip


def test_handled_options_are_in_the_code() -> None:
    code = "\n".join(p.read_text() for p in Path(airflow_paimon.__file__).parent.rglob("*.py"))
    handled = [o.name for o in known_options().values() if o.option_class is OptionClass.HANDLED]
    assert [n for n in handled if n.replace("fields.*", "").lstrip(".") not in code] == []


@pytest.mark.parametrize("operation", CHECKS)
def test_refused_options_are_refused(operation: str) -> None:
    for name, option in known_options().items():
        if option.option_class is OptionClass.REFUSED:
            _is_refused_where_it_says(name, option, operation)


def _is_refused_where_it_says(name: str, option: KnownOption, operation: str) -> None:
    start = name.startswith(("scan.", "log.", "incremental-"))
    options = {name.replace("*", "v"): VALUES.get(name, "1" if start else "true")}
    if name in ("postpone.batch-write-fixed-bucket", "index-file-in-data-file-dir"):
        options["bucket"] = "-2" if name.startswith("postpone") else "-1"
    table = schema(**options)
    if operation in option.operations:
        with pytest.raises(UnsupportedFeatureError):
            CHECKS[operation](table)
            pytest.fail(f"{operation} takes {options}")
    elif options.keys() == {name} and name != "branch":
        CHECKS[operation](table)


@pytest.mark.parametrize("name", ["clustering.incremental", "clustering.columns", "sink.clustering.by-columns"])
def test_clustered_tables_are_not_compacted(name: str) -> None:
    table = schema(**{name: "true" if name.endswith("incremental") else "v"})
    with pytest.raises(UnsupportedFeatureError, match="clusters them"):
        check_unclustered(table, table="d.t")
    check_unclustered(schema(**{"clustering.incremental": "false"}), table="d.t")


@pytest.mark.parametrize(("name", "older"), [(n, o) for n, names in FALLBACK_KEYS.items() for o in names])
def test_older_names_count_where_the_option_is_not_set(name: str, older: str) -> None:
    assert TableOptions({older: "true"}).flag(name) is True
    assert TableOptions({older: "true", name: "false"}).flag(name) is False


SOURCE = """
    public static final ConfigOption<MemorySize> A =
            key("a.size").memoryType().defaultValue(MemorySize.ofMebiBytes(8)).withDescription("x");
    public static final ConfigOption<Mode> B =
            ConfigOptions.key("b-mode").enumType(Mode.class).defaultValue(Mode.FULL_SCAN)
                    .withFallbackKeys("b.older", "b.oldest");
    public static final ConfigOption<String> C = key("bucket").stringType().noDefaultValue();
    public static final ConfigOption<Long> D = key("d.rows").longType().defaultValue(2_000_000L).withDescription("");
    public static final ConfigOption<Named> E = key("e").enumType(Elsewhere.Named.class).noDefaultValue();

    /** What is read; of {@link Mode}. */
    public enum Mode implements DescribedEnum {
        FULL_SCAN("full-scan", "Reads all, http://x; more than"
                        + " once (or not)."),
        /* the other */ SHORT("short", "Reads, and stops.");

        private final String value;
    }
"""
NAMED = "enum Named {\n    FIRST, // one\n    SECOND_ONE\n}\n"


def test_the_list_is_renewed_by_sources(tmp_path: Path) -> None:
    before = paimon_options.LIST.read_text().splitlines()
    renewed = tmp_path / "list.txt"
    renewed.write_text("\n".join(before))
    (tmp_path / "CoreOptions.java").write_text(SOURCE)
    (tmp_path / "Elsewhere.java").write_text(NAMED)
    (tmp_path / "CatalogOptions.java").write_text('key("warehouse")')
    assert paimon_options.main(str(tmp_path), renewed) == 1  # no class yet
    assert sorted(set(renewed.read_text().splitlines()) - {*before}) == [
        "a.size: size = 8 mb", "b-mode: full-scan|short = full-scan", "b.older: full-scan|short",
        "b.oldest: full-scan|short", "d.rows: long = 2000000", "e: first|second_one",
    ]  # fmt: skip
    assert len(renewed.read_text().splitlines()) == len(before) + 6
    assert paimon_options.main(str(tmp_path / "CatalogOptions.java"), renewed) == 1


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("snapshot.tme-retained", "snapshot.time-retained"),
        ("merge-engin", "merge-engine"),
        ("merge_engine", "merge-engine"),
        ("Bucket", "bucket"),
        ("deletion-vector.enabled", "deletion-vectors.enabled"),
        ("fields.total.aggregate-functon", "fields.total.aggregate-function"),
        ("airflow-paimon.four-eye", "airflow-paimon.four-eyes"),
        ("something.else.entirely", None),
        ("x", None),
    ],
)
def test_an_unknown_option_and_what_was_meant(written: str, right: str | None) -> None:
    assert (is_known(written), meant(written)) == (False, right)
    (sentence,) = unknown_options([written, "bucket"])
    assert repr(written) in sentence and (right is None) != (f"did you mean {right}?" in sentence)


@pytest.mark.parametrize("name", ["fields.a.b.sequence-group", "parquet.enable.dictionary", *OWN, *PROTECTIVE_OPTIONS])
def test_options_that_are_not_in_the_table_itself(name: str) -> None:
    assert is_known(name)


def test_every_option_of_ours_is_known() -> None:
    ours = {v for name, v in vars(options).items() if name.endswith("_OPTION") and v.startswith(options.OWN_OPTIONS)}
    assert len(ours) >= 4 and set(OWN) == ours


def test_options_of_tables_of_other_engines_are_known(golden: Callable[[str], Path]) -> None:
    names: set[str] = set()
    for archive in ("paimon-2.0.0", "paimon-0.9.0"):
        for file in golden(archive).rglob("schema/schema-*"):
            names |= json.loads(file.read_text())["options"].keys()
    assert len(names) > 10
    assert unknown_options(names) == []


def test_defaults_are_paimons() -> None:
    known = known_options()
    assert (known["merge-engine"].default, known["snapshot.num-retained.min"].default) == ("deduplicate", "10")
    assert known["sequence.field"].default == "" and find_option("nope") is None
