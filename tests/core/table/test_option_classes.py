"""Every option of Paimon has one class, and the class is true."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import airflow_paimon
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table import known_options
from airflow_paimon.core.table.features import check_compactable, check_readable, check_unclustered, check_writable
from airflow_paimon.core.table.known_options import DEFAULTS
from airflow_paimon.core.table.option_classes import GROUPS, OptionClass, class_of
from airflow_paimon.core.table.option_names import _OF_ENGINES, _PER_FIELD, _PREFIXES, OWN
from airflow_paimon.core.table.options import FALLBACK_KEYS, TableOptions
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


def every_name() -> list[str]:
    per_field = [f"fields.a.{suffix}" for suffix in _PER_FIELD]
    return [*DEFAULTS, *per_field, *(f"{prefix}x" for prefix in _PREFIXES), *_OF_ENGINES, *OWN]


def test_every_option_has_one_class() -> None:
    assert [name for name in every_name() if class_of(name) is None] == []
    assert class_of("nope") is None
    names = [name for group in GROUPS for name in group.names]
    assert sorted(names) == sorted(set(names))
    assert [name for name in names if not any(fnmatchcase(option, name) for option in every_name())] == []
    assert all(group.why and bool(group.operations) == (group.kind is OptionClass.REFUSED) for group in GROUPS)


def test_the_most_exact_name_decides() -> None:
    found = {name: class_of(name) for name in ("clustering.columns", "clustering.strategy", "commit.callbacks")}
    assert found["clustering.columns"] is not None and found["clustering.columns"].kind is OptionClass.HANDLED
    assert found["clustering.strategy"] is not None and found["clustering.strategy"].kind is OptionClass.NO_EFFECT
    assert found["commit.callbacks"] is not None and "Java classes" in found["commit.callbacks"].why


def test_handled_options_are_in_the_code() -> None:
    modules = [p for p in Path(airflow_paimon.__file__).parent.rglob("*.py") if p.name not in ("known_options.py",
               "option_classes.py", "option_names.py")]  # fmt: skip
    code = "\n".join(p.read_text() for p in modules)
    handled = [name for group in GROUPS if group.kind is OptionClass.HANDLED for name in group.names]
    parts = [name.replace("fields.*", "").replace("airflow-paimon.", "") for name in handled]
    assert [p for p in parts if p.strip("*").lstrip(".") not in code] == []


@pytest.mark.parametrize("operation", CHECKS)
@pytest.mark.parametrize("name", [n for g in GROUPS if g.kind is OptionClass.REFUSED for n in g.names])
def test_refused_options_are_refused(name: str, operation: str) -> None:
    group = class_of(name)
    assert group is not None
    start = name.startswith(("scan.", "log.", "incremental-"))
    options = {name.replace("*", "v"): VALUES.get(name, "1" if start else "true")}
    if name in ("postpone.batch-write-fixed-bucket", "index-file-in-data-file-dir"):
        options["bucket"] = "-2" if name.startswith("postpone") else "-1"
    table = schema(**options)
    if operation in group.operations:
        with pytest.raises(UnsupportedFeatureError):
            CHECKS[operation](table)
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


def test_the_list_is_renewed_by_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "known_options.py"
    module.write_text(Path(known_options.__file__).read_text())
    monkeypatch.setattr(known_options, "__file__", str(module))
    (tmp_path / "CoreOptions.java").write_text(SOURCE)
    (tmp_path / "Elsewhere.java").write_text(NAMED)
    (tmp_path / "CatalogOptions.java").write_text('key("warehouse")')
    assert paimon_options.main(str(tmp_path)) == 1  # no class yet
    added = set(module.read_text().splitlines())
    assert {
        "a.size: size = 8 mb",
        "b-mode: full-scan|short = full-scan",
        "b.older: full-scan|short =",
        "b.oldest: full-scan|short =",
        "d.rows: long = 2000000",
        "e: first|second_one =",
    } <= added
    assert len(module.read_text().splitlines()) == len(DEFAULTS) + 6 + _lines_around(module)
    assert paimon_options.main(str(tmp_path / "CatalogOptions.java")) == 1


def _lines_around(module: Path) -> int:
    head, _, rest = module.read_text().partition('_TABLE = r"""\n')
    return head.count("\n") + 1 + rest.partition('"""\n')[2].count("\n") + 1
