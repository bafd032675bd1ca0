"""Whether Paimon can parse the value of a table option, by the type that it declares for the option (pure).

No type takes blanks around a value but durations, sizes and fractions, and none takes an empty one but texts and maps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.option_lists import split_names
from airflow_paimon.core.table.known_options import find_option
from airflow_paimon.core.table.options import (
    BRANCH_CHANGELOG_OPTION,
    FOUR_EYES_OPTION,
    RECORD_SQL_OPTION,
    parse_duration,
    parse_size,
)

_MORE_TYPES = {
    "file.format": "parquet|orc|avro|csv|json|text|row|lance|vortex|mosaic|blob",
    "changelog-file.format": "parquet|orc|avro|csv|json|text|row|lance|vortex|mosaic|blob",
    "changelog-file.stats-mode": "stats",
    "manifest.format": "avro",
    "metadata.stats-mode": "stats",
    "spill-compression": "none|lz4|lzo|zstd",
    BRANCH_CHANGELOG_OPTION: "boolean",
    FOUR_EYES_OPTION: "boolean",
    RECORD_SQL_OPTION: "full|masked|none",
}
"""Types of options that Paimon declares as texts, and of ours."""
_BY_LEVEL = {
    "file.compression.per.level": "",
    "file.format.per.level": "file.format",
    "metadata.stats-mode.per.level": "metadata.stats-mode",
}
"""Maps from a level to a value of another option."""
_EXAMPLES = {
    "file.compression.per.level": "0:lz4,5:zstd",
    "file.format.per.level": "0:avro,5:parquet",
    "metadata.stats-mode.per.level": "0:none",
}
_STATS = re.compile(r"none|counts|full|truncate\(0*[1-9][0-9]{0,8}\)", re.IGNORECASE)
MARK_ACTIONS = ("success-file", "done-partition", "mark-event", "http-report", "custom")
"""Of ``partition.mark-done-action``, which lists some; underscores are as good as dashes."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,99}")
_FRACTION = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_LONGEST = 2**63


def type_of(key: str) -> str:
    """Return an option's type as ``known_options.txt`` has them; "" for texts and unknown options."""
    found = find_option(key)
    return _MORE_TYPES.get(key) or ("" if found is None else found.type)


def value_faults(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options whose values Paimon can't parse, with a sentence for each."""
    wanted = {key: _wanted(key, value) for key, value in options.items()}
    return {key: f"{key}={options[key]!r} is not {text}" for key, text in wanted.items() if text is not None}


def _wanted(key: str, value: str) -> str | None:
    """Return what the option takes; None: this value is one."""
    kind = type_of(key)
    if key == "partition.mark-done-action":
        fine = all(name.lower().replace("_", "-") in MARK_ACTIONS for name in split_names(key, value))
        return None if fine else f"some of {', '.join(MARK_ACTIONS)}, with commas and without blanks"
    if kind and kind not in _CHECKS:
        return None if value.lower() in kind.split("|") else f"one of {', '.join(kind.split('|'))}"
    check, text = _CHECKS.get(kind, (None, ""))
    if key in _BY_LEVEL:
        pairs = map_of(value).items()
        fine = _pairs(value) is not None
        fine = fine and all(_is_whole(level, 31) and _wanted(_BY_LEVEL[key], one) is None for level, one in pairs)
        return None if fine else f"a list of levels with values, such as {_EXAMPLES[key]}"
    return None if check is None or check(value) else text


def map_of(text: str) -> dict[str, str]:
    """Parse ``key:value,key:value``; a part, a key or a value may be in quotes. Empty where it is malformed."""
    return {pair[0]: pair[1] for pair in _pairs(text) or ()}


def _pairs(text: str) -> list[list[str]] | None:
    pairs = [_divided(part, ":") for part in _divided(text, ",")]
    return pairs if all(len(pair) == 2 for pair in pairs) else None


def _divided(text: str, at: str) -> list[str]:
    """Divide a text as Paimon's ``StructuredOptionsSplitter`` does."""
    pattern = re.compile(rf"\s*('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[^'\"\s{at}][^{at}]*|)\s*({at}|\Z)")
    parts, end, mark = [], 0, at
    while mark:
        found = pattern.match(text, end)
        if found is None:
            return [text]
        part = found[1].strip()
        parts.append(part[1:-1].replace(part[0] * 2, part[0]) if part[:1] in ("'", '"') else part)
        end, mark = found.end(), found[2]
    return parts[not parts[0] : len(parts) - (len(parts) > 1 and not parts[-1])]


def _is_whole(text: str, bits: int) -> bool:
    return _INTEGER.fullmatch(text) is not None and -(2**bits) <= int(text) < 2**bits


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except InvalidInputError:
        return False
    return True


_CHECKS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "int": (lambda text: _is_whole(text, 31), "a whole number below 2^31"),
    "long": (lambda text: _is_whole(text, 63), "a whole number below 2^63"),
    "double": (lambda text: _FRACTION.fullmatch(text.strip()) is not None, "a number"),
    "float": (lambda text: _FRACTION.fullmatch(text.strip()) is not None, "a number"),
    "boolean": (lambda text: text.lower() in ("true", "false"), "true or false"),
    "duration": (lambda text: _parses(parse_duration, text), "a duration, such as '7 d' or '90 min'"),
    "size": (lambda text: _parses(parse_size, text) and parse_size(text) < _LONGEST, "a size, such as '128 mb'"),
    "stats": (lambda text: _STATS.fullmatch(text) is not None, "none, counts, full or truncate(16)"),
    "map": (lambda text: _pairs(text) is not None, "a list of key:value pairs"),
}
