"""Renews the list of table options by a release of Paimon: ``python -m tests.paimon_options FILE``.

FILE is Paimon's sources: a folder, a jar or zip of them (``paimon-api-...-sources.jar``), or one ``*Options.java``. New
options are added to ``core/table/known_options.py``, those that have no class yet are named, and nothing is taken away:
tables of older releases keep their options.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile, is_zipfile

from airflow_paimon.core.table import known_options
from airflow_paimon.core.table.known_options import DEFAULTS
from airflow_paimon.core.table.option_classes import class_of

_OF_TABLES = re.compile(
    r"(Core|Compress|FileIndex|BTreeIndex|SortedIndex|\w*GlobalIndex|\w*VectorIndex|\w*TextIndex|ESIndex|Iceberg|Orc|Csv|"
    r"Json|Text|FlinkConnector|SparkConnector|VectorSearchRefine)Options\.java"
)
_OPTION = re.compile(r"\bkey\(\s*\"([^\"]+)\"\s*\)(.*?)(?=\bkey\(|\Z)", re.DOTALL)
_OLDER = re.compile(r"with(?:Fallback|Deprecated)Keys\(([^)]*)\)")
_DEFAULT = re.compile(r"\.defaultValue\(\s*(.*?)\s*\)\s*(?:\.|;)", re.DOTALL)
_UNITS = {
    "ofMebiBytes": "mb", "ofKibiBytes": "kb", "ofBytes": "bytes", "ofMillis": "ms", "ofSeconds": "s",
    "ofMinutes": "min", "ofHours": "h", "ofDays": "d",
}  # fmt: skip


def sources(path: Path) -> Iterator[str]:
    """Yield the Java sources that declare options of tables."""
    if path.is_dir():
        yield from (p.read_text() for p in sorted(path.rglob("*.java")) if _OF_TABLES.fullmatch(p.name))
    elif is_zipfile(path):
        with ZipFile(path) as archive:
            names = [n for n in sorted(archive.namelist()) if _OF_TABLES.fullmatch(n.rpartition("/")[2])]
            yield from (archive.read(n).decode() for n in names)
    else:
        yield path.read_text()


def declared(source: str) -> dict[str, str]:
    """Return the options that a source declares, older names included, with defaults as the documentation has them."""
    found: dict[str, str] = {}
    for name, rest in _OPTION.findall(source):
        default = _DEFAULT.search(rest)
        found[name] = _spelled(default[1]) if default else ""
        for names in _OLDER.findall(rest):
            found |= dict.fromkeys(re.findall(r"\"([^\"]+)\"", names), "")
    return found


def _spelled(java: str) -> str:
    """Return a default as text, empty for an expression that only Java can tell."""
    if call := re.fullmatch(r"(?:MemorySize|Duration)\.(\w+)\((\d+)\w?\)", java):
        return f"{call[2]} {_UNITS[call[1]]}" if call[1] in _UNITS else ""
    if size := re.fullmatch(r"(?:MemorySize\.)?VALUE_(\d+)_([A-Z]+)", java):
        return f"{size[1]} {size[2].lower()}"
    if member := re.fullmatch(r"(?:\w+\.)+([A-Z_0-9]+)", java):
        return "" if member[1] in ("MAX_VALUE", "MIN_VALUE") else member[1].lower().replace("_", "-")
    plain = java.strip('"')
    return re.sub(r"(?<=\d)[_L]", "", plain) if re.fullmatch(r"[\w .,:/()-]+", plain) else ""


def renew(found: Mapping[str, str], module: Path) -> list[str]:
    """Add the options that the list lacks; return their names."""
    new = {name: default for name, default in found.items() if name not in DEFAULTS}
    if new:
        head, mark, rest = module.read_text().partition('_TABLE = r"""\n')
        lines, end, tail = rest.partition('"""\n')
        every = {**dict(line.split(" =", 1) for line in lines.splitlines()), **{n: f" {d}" for n, d in new.items()}}
        body = "".join(f"{name} ={every[name].rstrip()}\n" for name in sorted(every))
        module.write_text(head + mark + body + end + tail)
    return sorted(new)


def main(path: str) -> int:
    """Renew the list; return 1 if an option has no class yet, or nothing was found."""
    found: dict[str, str] = {}
    for source in sources(Path(path)):
        found |= declared(source)
    if not found:
        print(f"make options: {path} declares no option of a table")
        return 1
    new = renew(found, Path(known_options.__file__))
    unclassed = [name for name in found if class_of(name) is None]
    print(f"make options: {len(found)} options, {len(new)} of them new: {', '.join(new) or 'none'}")
    if unclassed:
        print(f"Give these a class in core/table/option_classes.py: {', '.join(sorted(unclassed))}")
    return 1 if unclassed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
