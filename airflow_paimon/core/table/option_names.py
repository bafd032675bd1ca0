"""Whether a table option is one that an engine knows: no engine refuses a misspelled one, it only has no effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from airflow_paimon.core.table.known_options import DEFAULTS, PAIMON_VERSIONS
from airflow_paimon.core.table.options import (
    FOUR_EYES_OPTION,
    MASKED_OPTION,
    OWN_OPTIONS,
    RECORD_SQL_OPTION,
    REQUIRED_CHECKS_OPTION,
)

OWN = (FOUR_EYES_OPTION, MASKED_OPTION, RECORD_SQL_OPTION, REQUIRED_CHECKS_OPTION)
_OF_ENGINES = ("comment", "connector", "location", "owner", "provider")
"""What Spark and Flink store beside Paimon's own."""
_PER_FIELD = (
    "aggregate-function", "count-limit", "default-value", "distinct", "ignore-retract", "list-agg-delimiter",
    "map.shared-shredding.column-placement-policy", "map.shared-shredding.max-columns", "map.storage-layout",
    "nested-key", "nested-key-null-strategy", "nested-sequence-field", "sequence-group", "stats-mode", "ts-field",
)  # fmt: skip
"""``fields.<column>.<one of these>``; a column's name may have dots."""
_PREFIXES = (
    "avro.", "blob-descriptor.", "file-index.", "flink.", "fs.", "hadoop.", "hive.", "kafka.", "orc.", "oss.",
    "parquet.", "s3.", "spark.",
)  # fmt: skip
"""Options that a format, an index, a file system or an engine gets as they are: Paimon has no list of them."""
_CLOSE = 0.8
"""How alike two names have to be: a wrong letter, a missing word, another separator."""


def default_of(name: str) -> str | None:
    """Return a known option's default, empty where it has none; None: nothing is known of the option."""
    return DEFAULTS.get(name)


def is_known(name: str) -> bool:
    """Whether an engine may know the option."""
    if name.startswith(OWN_OPTIONS):
        return name in OWN
    if name in DEFAULTS or name in _OF_ENGINES:
        return True
    if name.startswith("fields."):
        return name.endswith(tuple(f".{suffix}" for suffix in _PER_FIELD))
    return name.startswith(_PREFIXES)


def meant(name: str) -> str | None:
    """Return the option that an unknown name was probably meant to be, None if none is like it."""
    if name.startswith("fields."):
        head, _, last = name.rpartition(".")
        near = get_close_matches(last, _PER_FIELD, 1, _CLOSE)
        return f"{head}.{near[0]}" if near and head != "fields" else None
    near = get_close_matches(name.lower().replace("_", "-"), (*DEFAULTS, *OWN), 1, _CLOSE)
    return near[0] if near else None


def unknown_options(names: Iterable[str]) -> list[str]:
    """Say of each option that no engine knows which one may be meant. Only a warning: a newer Paimon may know more."""
    return [_sentence(name) for name in sorted(names) if not is_known(name)]


def unknown_text(name: str) -> str:
    """Say in a few words that an option is unknown."""
    near = meant(name)
    return f"unknown: did you mean {near}?" if near else "unknown"


def _sentence(name: str) -> str:
    owner = "airflow-paimon" if name.startswith(OWN_OPTIONS) else f"Paimon {_listed(PAIMON_VERSIONS)}"
    near = meant(name)
    hint = f": did you mean {near}?" if near else ""
    return f"there is no table option {name!r} in {owner}, so it has no effect{hint}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
