"""The options of tables that engines know (``known_options.txt``): none refuses a misspelled one, it has no effect."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache, lru_cache

from airflow_paimon.core.table.options import (
    BRANCH_CHANGELOG_OPTION,
    FOUR_EYES_OPTION,
    MASKED_OPTION,
    OWN_OPTIONS,
    RECORD_SQL_OPTION,
    REQUIRED_CHECKS_OPTION,
)

FILE = "known_options.txt"
PAIMON_VERSIONS = "1.4.2, 2.0.0 or 2.1"
"""A newer version may know more."""
OWN = (BRANCH_CHANGELOG_OPTION, FOUR_EYES_OPTION, MASKED_OPTION, RECORD_SQL_OPTION, REQUIRED_CHECKS_OPTION)
_CLOSE = 0.8
"""How alike two names have to be: a wrong letter, a missing word, another separator."""
_HEADING = re.compile(r"\[([a-z ]+)(?:: ([a-z ]+))?\] (.+)")


class OptionClass(Enum):
    """What this package does with an option."""

    HANDLED = "handled"
    REFUSED = "refused"
    NO_EFFECT = "no effect"


@dataclass(frozen=True, slots=True)
class KnownOption:
    """A line of the file, and the heading above it. ``name`` may have ``*``; ``type`` and ``default`` may be empty.

    ``option_class`` None: the line has no heading yet. ``operations``: those that refuse a table that has the option.
    """

    name: str
    type: str
    default: str
    option_class: OptionClass | None
    operations: tuple[str, ...]
    why: str


def parse_line(line: str) -> tuple[str, tuple[str, str]]:
    """Return (name, (type, default)) of a line."""
    head, _, default = line.partition("=")
    name, _, kind = head.partition(":")
    return name.strip(), (kind.strip(), default.strip())


@cache
def known_options() -> Mapping[str, KnownOption]:
    """Return the options by the names that the file has."""
    found: dict[str, KnownOption] = {}
    option_class, operations, why = None, (), ""
    data = pkgutil.get_data(__package__, FILE)  # also from an archive
    for line in (data or b"").decode().splitlines():
        if heading := _HEADING.fullmatch(line):
            option_class, operations, why = OptionClass(heading[1]), tuple((heading[2] or "").split()), heading[3]
        elif line and not line.startswith("#"):
            name, (kind, default) = parse_line(line)
            found[name] = KnownOption(name, kind, default, option_class, operations, why)
    return found


@lru_cache(maxsize=4096)
def find_option(name: str) -> KnownOption | None:
    """Return what is known of an option, this package's own ones left out; of several patterns the longest counts."""
    known = known_options()
    return known.get(name) or max(
        (option for pattern, option in known.items() if "*" in pattern and fnmatchcase(name, pattern)),
        key=lambda option: len(option.name),
        default=None,
    )


def is_known(name: str) -> bool:
    """Whether an engine may know the option."""
    return name in OWN if name.startswith(OWN_OPTIONS) else find_option(name) is not None


def meant(name: str) -> str | None:
    """Return the option that an unknown name was probably meant to be, None if none is like it."""
    known = [*known_options(), *OWN]
    if name.startswith("fields."):
        head, _, last = name.rpartition(".")
        near = get_close_matches(f"fields.*.{last}", [n for n in known if n.startswith("fields.*.")], 1, _CLOSE)
        return f"{head}.{near[0].removeprefix('fields.*.')}" if near and head != "fields" else None
    near = get_close_matches(name.lower().replace("_", "-"), [n for n in known if "*" not in n], 1, _CLOSE)
    return near[0] if near else None


def unknown_options(names: Iterable[str]) -> list[str]:
    """Say of each option that no engine knows which one may be meant. Only a warning: a newer Paimon may know more."""
    found = []
    for name in sorted(name for name in names if not is_known(name)):
        owner = "airflow-paimon" if name.startswith(OWN_OPTIONS) else f"Paimon {PAIMON_VERSIONS}"
        near = meant(name)
        hint = f": did you mean {near}?" if near else ""
        found.append(f"there is no table option {name!r} in {owner}, so it has no effect{hint}")
    return found


def unknown_text(name: str) -> str:
    """Say in a few words that an option is unknown."""
    near = meant(name)
    return f"unknown: did you mean {near}?" if near else "unknown"
