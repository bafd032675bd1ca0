"""A version of a table set as a value: its names, the snapshots that it pins, and its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.table.record_kinds import SETS

TAG_PREFIX = "set-"
VERSION_PREFIX = "set:"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


def is_set_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_set_name(name: str) -> str:
    """Return the name of a set.

    Raises:
        InvalidInputError: it can't be one.
    """
    if not isinstance(name, str) or not is_set_name(name):
        raise InvalidInputError(
            f"Table set {name!r}: a name has letters, digits, '_' and '-', does not begin with '-', and has at most "
            f"100 characters"
        )
    return name


def claim_file(number: int) -> str:
    return f"claim-{number}.json"


def pins_file(number: int) -> str:
    return f"pins-{number}.json"


def version_file(number: int) -> str:
    return f"version-{number}.json"


def set_tag(name: str, number: int) -> str:
    """Name of the tag that each table of a version has."""
    return f"{TAG_PREFIX}{name}-{number}"


def parse_set_tag(tag: str) -> tuple[str, int] | None:
    """Divide the name of a tag into that of a set and a number; None where it isn't one of a version."""
    name, _, number = tag.removeprefix(TAG_PREFIX).rpartition("-")
    if not tag.startswith(TAG_PREFIX) or not is_set_name(name) or not (number.isascii() and number.isdigit()):
        return None
    return name, int(number)


@dataclass(frozen=True, slots=True)
class SetMember:
    """The snapshot of a table's main that belongs to a version; ``identity``: ``Snapshot.identity``."""

    snapshot_id: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSet(Record):
    """One version of a set, in ``version-<N>.json``. ``tables``: by ``db.table``; ``created_ms``: epoch milliseconds by
    the publisher's clock.

    ``abandoned``: why the number was given up; None = it is a version that readers take.
    """

    name: str
    number: int
    tables: Mapping[str, SetMember] = field(default_factory=dict)
    created_ms: int = 0
    operation_id: str | None = None
    abandoned: str | None = None
    KIND = SETS

    @property
    def tag(self) -> str:
        """The tag that the snapshot of every table has, for other engines."""
        return set_tag(self.name, self.number)

    @property
    def version(self) -> str:
        """What a read takes as ``version``: ``set:nightly@7``."""
        return f"{VERSION_PREFIX}{self.name}@{self.number}"

    def pin(self, table: str) -> SetMember:
        """Return the snapshot of a table.

        Raises:
            NotFoundError: the version doesn't have the table; it names those that it has.
        """
        if table not in self.tables:
            raise NotFoundError(
                f"Version {self.number} of table set {self.name!r} has no table {table} (it has "
                f"{', '.join(sorted(self.tables))})"
            )
        return self.tables[table]

    def to_json(self) -> dict[str, Any]:
        """Return what results, sensors and look-ups say about it."""
        return {"table_set": self.name, "number": self.number, "version": self.version, "tag": self.tag,
                "created": self.created_ms, "operation_id": self.operation_id,
                "tables": {name: pin.snapshot_id for name, pin in self.tables.items()}}  # fmt: skip


def parse_set_version(text: str) -> tuple[str, int | None] | None:
    """Divide ``set:nightly@7`` into name and number, None for another text; without ``@`` it is the newest version.

    Raises:
        InvalidInputError: it begins with ``set:`` and is not of that form.
    """
    if not text.startswith(VERSION_PREFIX):
        return None
    name, at, number = text.removeprefix(VERSION_PREFIX).partition("@")
    if at and not (number.isascii() and number.isdigit()):
        raise InvalidInputError(f"The version {text!r} is not of the form set:NAME or set:NAME@NUMBER")
    return check_set_name(name), int(number) if at else None
