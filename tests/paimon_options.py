"""Renews the list of table options by a release of Paimon: ``python -m tests.paimon_options FILE``.

FILE is Paimon's sources: a folder, a jar or zip of them (``paimon-api-...-sources.jar``), or one ``*Options.java``. New
options are added to ``core/table/known_options.txt`` with types and defaults, above its first heading, types that are
unknown there are filled in, and nothing is taken away: tables of older releases keep their options.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile, is_zipfile

from airflow_paimon.core.table import known_options
from airflow_paimon.core.table.known_options import FILE, find_option, parse_line

LIST = Path(known_options.__file__).with_name(FILE)

_OF_TABLES = re.compile(
    r"(Core|Compress|FileIndex|BTreeIndex|SortedIndex|\w*GlobalIndex|\w*VectorIndex|\w*TextIndex|ESIndex|Iceberg|Orc|Csv|"
    r"Json|Text|FlinkConnector|SparkConnector|VectorSearchRefine)Options\.java"
)
_OPTION = re.compile(r"\bkey\(\s*\"([^\"]+)\"\s*\)(.*?)(?=\bkey\(|\Z)", re.DOTALL)
_OLDER = re.compile(r"with(?:Fallback|Deprecated)Keys\(([^)]*)\)")
_TYPE = re.compile(
    r"\.\s*(?:(int|long|boolean|double|float|duration|memory|map)Type\(\)|enumType\(\s*(?:\w+\.)*(\w+)\.class\s*\))"
)
_TYPES = {"memory": "size"}
_COMMENT = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|/\*.*?\*/|//[^\n]*", re.DOTALL)
"""And texts, in which there is none."""
_DEFAULT = re.compile(r"\.defaultValue\(\s*(.*?)\s*\)\s*(?:\.|;)", re.DOTALL)
_UNITS = {
    "ofMebiBytes": "mb", "ofKibiBytes": "kb", "ofBytes": "bytes", "ofMillis": "ms", "ofSeconds": "s",
    "ofMinutes": "min", "ofHours": "h", "ofDays": "d",
}  # fmt: skip


def sources(path: Path) -> dict[str, str]:
    """Return the Java sources by their files' names."""
    if path.is_dir():
        return {str(p): p.read_text() for p in sorted(path.rglob("*.java"))}
    if is_zipfile(path):
        with ZipFile(path) as archive:
            return {n: archive.read(n).decode() for n in sorted(archive.namelist()) if n.endswith(".java")}
    return {str(path): path.read_text()}


def all_declared(found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the options of tables that these sources declare."""
    everything = "\n".join(found.values())
    options: dict[str, tuple[str, str]] = {}
    for name, source in found.items():
        if len(found) == 1 or _OF_TABLES.fullmatch(Path(name).name):
            options |= declared(source, everything)
    return options


def declared(source: str, everything: str) -> dict[str, tuple[str, str]]:
    """Return (type, default) of the options that a source declares, older names included, with defaults as the
    documentation has them. ``everything``: where the types are that it names.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, rest in _OPTION.findall(source):
        default, kind = _DEFAULT.search(rest), _kind(_TYPE.search(rest), source, everything)
        found[name] = (kind, _spelled(default[1]) if default else "")
        for names in _OLDER.findall(rest):
            found |= dict.fromkeys(re.findall(r"\"([^\"]+)\"", names), (kind, ""))
    return found


def _kind(found: re.Match[str] | None, *sources: str) -> str:
    """Return an option's type; of an enumeration its values, as ``toString`` has them; "" for texts."""
    if found is None or found[2] is None:
        return "" if found is None else _TYPES.get(found[1], found[1])
    for source in sources:
        plain = _COMMENT.sub(lambda m: m[0] if m[0].startswith('"') else "", source)
        if body := re.search(rf"enum {found[2]}\b[^{{]*{{(.*?)[;}}]\s*\n", plain, re.DOTALL):
            return "|".join(_constants(body[1]))
    return ""


def _constants(body: str) -> list[str]:
    """Return the values of an enumeration's constants: the text that a constant begins with, else its name."""
    values: list[str] = []
    depth, previous = 0, ""
    for token in re.findall(r"\"(?:[^\"\\]|\\.)*\"|@?\w+|[(),]", body):
        if depth == 0 and token[0].isalpha():
            values.append(token.lower())
        elif depth == 1 and previous == "(" and token.startswith('"'):
            values[-1] = token.strip('"')
        depth += (token == "(") - (token == ")")
        previous = token
    return values


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


def renew(found: Mapping[str, tuple[str, str]], file: Path) -> list[str]:
    """Add the options that the list lacks, and the types that it doesn't know; return the names of new options."""
    lines = file.read_text().splitlines()
    listed = {n: parse_line(line) for n, line in enumerate(lines) if line and line[0] not in "#["}
    for number, (name, (kind, default)) in listed.items():
        if not kind and found.get(name, ("", ""))[0]:
            lines[number] = _line(name, found[name][0], default)
    names = {name for name, _ in listed.values()}
    new = sorted(found.keys() - names)
    first = next(number for number, line in enumerate(lines) if line.startswith("["))
    lines[first:first] = [_line(name, *found[name]) for name in new]
    file.write_text("\n".join(lines) + "\n")
    return new


def _line(name: str, kind: str, default: str) -> str:
    return f"{name}{f': {kind}' if kind else ''}{f' = {default}' if default else ''}"


def main(path: str, file: Path = LIST) -> int:
    """Renew the list; return 1 if an option has no class yet, or nothing was found."""
    found = all_declared(sources(Path(path)))
    if not found:
        print(f"make options: {path} declares no option of a table")
        return 1
    new = renew(found, file)
    print(f"make options: {len(found)} options, {len(new)} of them new: {', '.join(new) or 'none'}")
    unclassed = [name for name in found if (option := find_option(name)) is None or option.option_class is None]
    if unclassed:
        print(f"Put these below a heading of {file.name}: {', '.join(sorted(unclassed))}")
    return 1 if unclassed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
