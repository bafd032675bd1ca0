"""Snapshot files: one commit each. Unknown keys survive a round trip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.json_value import parse_json

BATCH_COMMIT_IDENTIFIER = 2**63 - 1
"""``commitIdentifier`` of a batch commit in Paimon (Long.MAX_VALUE)."""


class CommitKind(StrEnum):
    """``commitKind``. Java fails on any other text; streaming readers skip COMPACT and, by default, OVERWRITE."""

    APPEND = "APPEND"
    COMPACT = "COMPACT"
    OVERWRITE = "OVERWRITE"
    ANALYZE = "ANALYZE"


class Operation(StrEnum):
    """``operation``: what made the snapshot. Paimon 2.0 can't read a snapshot with any other text.

    A compaction has none, except one that follows a write: it has the write's (Paimon's ``Snapshot.Operation``).
    """

    WRITE = "WRITE"
    OVERWRITE = "OVERWRITE"
    DELETE = "DELETE"
    TRUNCATE = "TRUNCATE"
    UPDATE = "UPDATE"
    MERGE = "MERGE"
    CREATE_TABLE_AS_SELECT = "CREATE_TABLE_AS_SELECT"
    REPLACE_TABLE_AS_SELECT = "REPLACE_TABLE_AS_SELECT"
    CREATE_OR_REPLACE_TABLE_AS_SELECT = "CREATE_OR_REPLACE_TABLE_AS_SELECT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot file's content, in the order of its keys. Times are epoch milliseconds, sizes bytes, counts rows.

    ``total_record_count`` and ``delta_record_count`` count physical rows before any merge; None in very old files.
    ``operation`` is kept as it was read: a later Paimon may have more constants than ``Operation``.

    See docs/format.md, Schemas and snapshots.
    """

    version: int = 3
    uuid: str | None = None
    id: int
    schema_id: int
    base_manifest_list: str
    base_manifest_list_size: int | None = None
    delta_manifest_list: str
    delta_manifest_list_size: int | None = None
    changelog_manifest_list: str | None = None
    changelog_manifest_list_size: int | None = None
    index_manifest: str | None = None
    commit_user: str
    writer_version: str | None = None
    commit_identifier: int
    commit_kind: CommitKind
    time_millis: int
    total_record_count: int | None = None
    delta_record_count: int | None = None
    changelog_record_count: int | None = None
    watermark: int | None = None
    statistics: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    next_row_id: int | None = None
    operation: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Distinguishes this commit from another with the same id: the delta manifest list, whose name is unique.

        Not the uuid: engines before 2.x have none, and drop it when they copy a snapshot into a tag (1.4.2, measured).
        """
        return self.delta_manifest_list

    def to_json(self) -> dict[str, Any]:
        """Return the file's keys in Java's order, without nulls."""
        out: dict[str, Any] = {}
        for key, attribute in _KEYS.items():
            value = getattr(self, attribute)
            if attribute == "commit_kind":
                value = value.value
            if value is None or (attribute == "properties" and not value):
                continue
            out[key] = dict(value) if attribute == "properties" else value
        out.update(self.unknown)
        return out

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False).encode()


def _java_name(attribute: str) -> str:
    head, *rest = attribute.split("_")
    return head + "".join(map(str.capitalize, rest))


_FIELDS = {f.name: f for f in fields(Snapshot) if f.name != "unknown"}
_KEYS = {_java_name(name): name for name in _FIELDS}
_TEXTS = frozenset(name for name, f in _FIELDS.items() if str(f.type).startswith("str"))
_REQUIRED = [_java_name(name) for name, f in _FIELDS.items() if f.default is f.default_factory is MISSING]

RESTORE = "restore it from a backup (check_table lists all that is damaged)"
"""The way out of a damaged metadata file, for messages."""


def load_json_object(data: bytes, name: str) -> dict[str, Any]:
    """Parse a metadata file that must hold one JSON object.

    Raises:
        FormatError: truncated or not JSON. The message names the file.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        raise FormatError(f"{name} is truncated or not JSON ({error}); {RESTORE}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{name} does not hold a JSON object; {RESTORE}")
    return value


def parse_snapshot(data: bytes, name: str) -> Snapshot:
    """Parse a snapshot file (or the snapshot part of a tag file); ``name`` is for messages.

    Raises:
        FormatError: corrupt. UnsupportedFeatureError: a version this release does not know.
    """
    return snapshot_from_json(load_json_object(data, name), name)


def snapshot_from_json(raw: Mapping[str, Any], name: str) -> Snapshot:
    """Build a snapshot from parsed JSON; unknown keys are kept in ``unknown``."""
    missing = [key for key in _REQUIRED if raw.get(key) is None]
    if missing:
        raise FormatError(f"{name} is corrupt: it lacks {', '.join(missing)}; {RESTORE}")
    version = raw.get("version")
    if version is not None and (not isinstance(version, int) or version > 3):
        raise UnsupportedFeatureError(
            f"{name} has version {version}; this release reads up to 3: upgrade airflow-paimon"
        )
    values: dict[str, Any] = {}
    for key, attribute in _KEYS.items():
        value = raw.get(key)
        if value is not None:
            values[attribute] = _checked(attribute, key, value, name)
    unknown = {k: v for k, v in raw.items() if k not in _KEYS}
    return Snapshot(**values, unknown=unknown)


def _checked(attribute: str, key: str, value: Any, name: str) -> Any:
    if attribute == "commit_kind":
        if value not in CommitKind.__members__:
            raise FormatError(f"{name} has the unknown commitKind {value!r}; {RESTORE}")
        return CommitKind(value)
    if attribute == "properties":
        expected: type = dict
    else:
        expected = str if attribute in _TEXTS else int
    if not isinstance(value, expected) or isinstance(value, bool):
        raise FormatError(f"{name}: {key} should be {expected.__name__}, it is {value!r}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise FormatError(f"{name}: {key} is no number of 64 bits; {RESTORE}")
    return value
