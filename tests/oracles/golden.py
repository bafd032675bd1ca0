"""The golden tables: written by Apache Paimon's Spark connector, with the rows that its engine reads from them.

The archives lie in `../shared/golden` beside the repository, or where the environment variable AIRFLOW_PAIMON_GOLDEN
says. They are read or unpacked into a scratch folder, never written to.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.archives import unpack as extract
from tests.oracles.layout import REPO_ROOT

ARCHIVES = ("paimon-2.0.0", "paimon-0.9.0", "table-fuzz", "chain-fuzz")

Filter = tuple[str, str, Any]
"""Column, operator (= < > <= >= in), value or tuple of values."""

_SELECT = re.compile(
    r"select (?P<columns>.+?) from `?(?P<table>[\w$]+)`?(?: version as of '\w+')?(?: where (?P<where>.+))?$"
)
_CONDITION = re.compile(r"(?P<column>\w+)\s*(?P<operator>=|<=|>=|<|>|in)\s*(?P<value>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One read of a golden table."""

    archive: str
    name: str
    """Unique within its archive."""
    table: str
    """`d.name`."""
    branch: str
    version: int | str | None
    """A snapshot id, a tag's name, or None for the latest."""
    as_stored: bool
    """Whether the table, as it lies there, still gives these rows."""
    columns: tuple[str, ...] | None
    """What was selected, None for `*`; `("*", "_ROW_ID")` is all columns and one more."""
    system_table: str | None
    """`snapshots` when `t$snapshots` was read."""
    where: tuple[Filter, ...]
    schema: str
    """Spark's types of the columns; empty where the index does not tell them."""
    note: str
    expected: str
    """The path of the expected rows in the archive."""

    @property
    def id(self) -> str:
        return f"{self.archive}:{self.name}"

    @property
    def plain(self) -> bool:
        """Whether it is a read of the whole table: all columns, no filter, no system table."""
        return self.columns is None and self.system_table is None and not self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenArchive:
    """One archive, unpacked."""

    name: str
    root: Path

    @property
    def warehouse(self) -> Path:
        return self.root / "wh"

    def expected(self, case: GoldenCase) -> pa.Table:
        """The rows that the connector read; their order means nothing."""
        return self.table(case.expected)

    def table(self, path: str) -> pa.Table:
        """A parquet file of the archive, by its path there."""
        return pq.read_table(self.root / path).replace_schema_metadata(None)


def golden_folder() -> Path | None:
    """Where the archives lie, None when they are not here."""
    folder = Path(os.environ.get("AIRFLOW_PAIMON_GOLDEN") or REPO_ROOT.parent / "shared" / "golden")
    return folder if all((folder / f"{name}.tar.gz").is_file() for name in ARCHIVES) else None


@functools.cache
def golden_index(archive: str) -> tuple[dict[str, Any], ...]:
    """The archive's index.json, read without unpacking; empty when there are no golden tables here."""
    folder = golden_folder()
    if folder is None:
        return ()
    with tarfile.open(folder / f"{archive}.tar.gz") as tar:
        for member in tar:
            if Path(member.name).name == "index.json" and (content := tar.extractfile(member)) is not None:
                return tuple(json.load(content))
    raise FileNotFoundError(f"{archive}.tar.gz has no index.json")


def golden_cases(archive: str) -> list[GoldenCase]:
    """Every read that the archive tells of, those not `as_stored` too.

    Of chain-fuzz: main, `snapshot` and `delta` of each table before compaction; golden_index says what was compacted.
    """
    if archive in ("table-fuzz", "row-tracking-fuzz"):
        return [_fuzz_case(archive, entry, read) for entry in golden_index(archive) for read in entry["reads"]]
    if archive == "chain-fuzz":
        branches = (("main", "expected"), ("snapshot", "snapshot"), ("delta", "delta"))
        return [
            _fuzz_case(archive, entry, {"branch": branch, "version": None, "expected": entry[key]})
            for entry in golden_index(archive)
            for branch, key in branches
        ]
    return [_case(archive, entry) for entry in golden_index(archive)]


def _case(archive: str, entry: Mapping[str, Any]) -> GoldenCase:
    selected = _SELECT.match(entry["sql"])
    if selected is None:
        raise ValueError(f"{archive} {entry['case']}: can't tell what is selected: {entry['sql']}")
    columns = tuple(name.strip(" `") for name in selected["columns"].split(","))
    system = selected["table"].rpartition("$")[2] if "$" in selected["table"] else ""
    return GoldenCase(
        archive=archive,
        name=entry["case"],
        table=entry["table"],
        branch=entry["branch"],
        version=_version(entry["version"]),
        as_stored=entry["as_stored"],
        columns=None if columns == ("*",) else columns,
        system_table=None if not system or system.startswith("branch_") else system,
        where=_filters(selected["where"]),
        schema=entry["schema"],
        note=entry["note"],
        expected=entry["expected"],
    )


def _fuzz_case(archive: str, entry: Mapping[str, Any], read: Mapping[str, Any]) -> GoldenCase:
    return GoldenCase(
        archive=archive,
        name=f"{entry['table'].partition('.')[2]}-{read['branch']}-{read['version'] or 'latest'}",
        table=entry["table"],
        branch=read["branch"],
        version=_version(read["version"]),
        as_stored=True,
        columns=("*", "_ROW_ID", "_SEQUENCE_NUMBER") if archive == "row-tracking-fuzz" else None,
        system_table=None,
        where=(),
        schema="",
        note="",
        expected=read["expected"],
    )


def _version(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


def _filters(where: str | None) -> tuple[Filter, ...]:
    if where is None:
        return ()
    found = [_CONDITION.match(one.strip()) for one in where.split(" and ")]
    return tuple((one["column"], one["operator"], _literal(one["value"])) for one in found if one is not None)


def _literal(text: str) -> Any:
    if text.startswith("("):
        return tuple(_literal(one.strip()) for one in text.strip("()").split(","))
    return text.strip("'") if text.startswith("'") else int(text)


def unpack(archive: str, scratch: Path) -> GoldenArchive:
    """Unpacks an archive under `scratch`; one that lies there already is taken as it is."""
    folder = golden_folder()
    if folder is None:
        raise FileNotFoundError("no golden tables: set AIRFLOW_PAIMON_GOLDEN to the folder with the archives")
    target = scratch / archive
    if not target.is_dir():
        extract(folder / f"{archive}.tar.gz", target)
    return GoldenArchive(name=archive, root=target)
