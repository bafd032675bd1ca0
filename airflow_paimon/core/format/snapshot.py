"""Snapshot files: one commit each; and tag files: a snapshot's JSON and, with a retention, two more keys.

Unknown keys survive a round trip.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError

J = TypeVar("J", dict[str, Any], list[Any])

BATCH_COMMIT_IDENTIFIER = 2**63 - 1
"""``commitIdentifier`` of a batch commit in Paimon (Long.MAX_VALUE)."""


WRITER = "airflow-paimon-"
"""What ``writerVersion`` begins with in snapshots of this package."""


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


NO_WATERMARK = -(2**63)
"""Java's Long.MIN_VALUE: a writer that has seen no watermark yet stores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot file's content, in the order of its keys. Times are epoch milliseconds, sizes bytes, counts rows.

    ``total_record_count`` and ``delta_record_count`` count physical rows before any merge; None in very old files.
    ``operation`` is kept as it was read: a later Paimon may have more constants than ``Operation``.

    See docs/contributing/format.md, Schemas and snapshots.
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
    def known_watermark(self) -> int | None:
        """The watermark, None where its writers gave none."""
        return None if self.watermark == NO_WATERMARK else self.watermark

    @property
    def identity(self) -> str:
        """Distinguishes this commit from another with the same id: the delta manifest list, whose name is unique.

        Not the uuid: engines before 2.x have none, and drop it when they copy a snapshot into a tag (1.4.2, measured).
        """
        return self.delta_manifest_list

    def number(self, name: str) -> int | None:
        """Return a property as a number; None: it is not there.

        Raises:
            FormatError: it isn't a number; another program has written it.
        """
        text = self.properties.get(name) or None
        if text is None or (text.isascii() and text.isdigit()):
            return None if text is None else int(text)
        raise FormatError(f"Snapshot {self.id}: its property {name} is not a number: {text[:100]!r}")

    def values(self, name: str, kind: type[J]) -> J:
        """Return the value of a property that is JSON of a kind, ``dict`` or ``list``; an empty one: it is not there.

        Raises:
            FormatError: it isn't; another program has written it.
        """
        text = self.properties.get(name)
        try:
            found = kind() if text is None else parse_json(text)
        except ValueError:
            found = None
        if not isinstance(found, kind):
            raise FormatError(f"Snapshot {self.id}: its property {name} is not JSON of this package: {text!r:.100}")
        return found

    @property
    def is_by_this_package(self) -> bool:
        """Whether this package has made the snapshot, and not another engine."""
        return (self.writer_version or "").startswith(WRITER)

    @property
    def repeats_properties(self) -> bool:
        """Whether properties that tell of a publish, a rollback or an erasure are those of a snapshot before it.

        Paimon's compaction of manifests copies them; none of the three is a compaction.
        """
        return self.commit_kind == CommitKind.COMPACT

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


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A branch's newest snapshot as somebody has seen it (id 0: none): another engine may roll the branch back below
    it, and other snapshots get its id. ``identity`` empty: it could not be read.
    """

    id: int = 0
    identity: str = ""
    time_millis: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot | None) -> SnapshotRef:
        return cls() if snapshot is None else cls(snapshot.id, snapshot.identity, snapshot.time_millis)

    @classmethod
    def named(cls, text: int | str) -> SnapshotRef:
        """Read the id that a request names, or id and identity as ``text`` has them."""
        number, _, identity = str(text).partition(":")
        return cls(int(number), identity)

    @property
    def text(self) -> str:
        return f"{self.id}:{self.identity}" if self.identity else str(self.id)

    def beside(self, now: int) -> str:
        """Name it in a message, in which the snapshot of the id ``now`` is named as what is there instead."""
        return f"{self.id} (another one: it was rolled back since)" if self.id == now else str(self.id)

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether it is this snapshot; without an identity, as far as the id tells."""
        return snapshot.id == self.id and self.identity in ("", snapshot.identity)


def approved_head(said: Mapping[str, Any], whose: str) -> str | None:
    """Return the head of ``branch`` or ``main`` that a diff, a plan or an approval says, with its identity."""
    number, identity = said.get(f"{whose}_snapshot"), said.get(f"{whose}_identity")
    return None if number is None else SnapshotRef(number, identity or "").text


def _java_name(attribute: str) -> str:
    head, *rest = attribute.split("_")
    return head + "".join(map(str.capitalize, rest))


_FIELDS = {f.name: f for f in fields(Snapshot) if f.name != "unknown"}
_KEYS = {_java_name(name): name for name in _FIELDS}
_TEXTS = frozenset(name for name, f in _FIELDS.items() if str(f.type).startswith("str"))
_NUMBERS = frozenset(name for name, f in _FIELDS.items() if str(f.type).startswith("int"))
_REQUIRED = [_java_name(name) for name, f in _FIELDS.items() if f.default is f.default_factory is MISSING]

RESTORE = "restore it from a backup (check_table lists all that is damaged)"
"""The way out of a damaged metadata file, for messages."""


def parse_json(data: bytes | str) -> Any:
    """Parse JSON that anybody may have written.

    Raises:
        ValueError: it is none, is nested too deeply, or has a number of too many digits.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in a property; empty: there is none, as where another program has written it."""
    try:
        found = parse_json(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


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
        raise FormatError(f"{name} does not contain a JSON object; {RESTORE}")
    return value


@lru_cache(maxsize=64)
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
    unknown: dict[str, Any] = {}
    for key, value in raw.items():
        attribute = _KEYS.get(key)
        if attribute is None:
            unknown[key] = value
        elif value is not None:
            kind = type(value)
            plain = attribute in _TEXTS if kind is str else kind is int and attribute in _NUMBERS and _fits(value)
            values[attribute] = value if plain else _checked(attribute, key, value, name)
    return Snapshot(**values, unknown=unknown)


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**63


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
    if isinstance(value, int) and not _fits(value):
        raise FormatError(f"{name}: {key} is not a number of 64 bits; {RESTORE}")
    return value


_TAG_KEYS = ("tagCreateTime", "tagTimeRetained")
_LEGAL_HOLD, _HELD_BY = "airflow-paimon.legal-hold", "airflow-paimon.held-by"
"""Properties of a tag file, beside those of its snapshot: every engine reads them, and none needs them."""
_MARKER = "\0tagTimeRetained\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A named snapshot. ``create_time`` is local time without a zone, as Paimon stores it; None without retention.

    ``legal_hold``: why it is under a legal hold, ``held_by``: by whom; they are of the tag, not of ``snapshot``.
    """

    name: str
    snapshot: Snapshot
    create_time: datetime | None = None
    time_retained: timedelta | None = None
    legal_hold: str | None = None
    held_by: str | None = None

    @property
    def legal_hold_text(self) -> str:
        """Say by whom it was set, and why."""
        by = f", set by {self.held_by}" if self.held_by else ""
        return f"is under a legal hold{by} ({self.legal_hold})"

    def expires_at(self) -> datetime | None:
        """When it may be deleted (local time); None = never."""
        if self.create_time is None or self.time_retained is None:
            return None
        try:
            return self.create_time + self.time_retained
        except OverflowError:
            return None

    def to_bytes(self) -> bytes:
        """Return the tag file. Without a retention it is a plain snapshot, so that old releases can read it."""
        values = {_LEGAL_HOLD: self.legal_hold, _HELD_BY: self.held_by}
        own = {key: text for key, text in values.items() if text is not None}
        snapshot = replace(self.snapshot, properties={**self.snapshot.properties, **own}) if own else self.snapshot
        if self.create_time is None or self.time_retained is None:
            return snapshot.to_bytes()
        t, micros = self.create_time, self.time_retained // timedelta(microseconds=1)
        out = snapshot.to_json()
        out["tagCreateTime"] = [t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond * 1000]
        out["tagTimeRetained"] = _MARKER
        text = json.dumps(out, indent=2, ensure_ascii=False)
        # Java's Duration as Jackson writes it: decimal seconds with nine digits, a number and not a string
        return text.replace(json.dumps(_MARKER), f"{micros // 1_000_000}.{micros % 1_000_000:06d}000").encode()


def parse_tag(data: bytes, name: str) -> Tag:
    """Parse a tag file; ``name`` is the tag's name.

    Raises:
        FormatError: truncated, or the two extra keys are not what Paimon writes.
    """
    where = f"Tag {name!r}"
    raw = load_json_object(data, where)
    stored = snapshot_from_json({k: v for k, v in raw.items() if k not in _TAG_KEYS}, where)
    properties = dict(stored.properties)
    legal_hold, held_by = properties.pop(_LEGAL_HOLD, None), properties.pop(_HELD_BY, None)
    try:
        return Tag(
            name=name,
            snapshot=stored if legal_hold is None else replace(stored, properties=properties),
            legal_hold=legal_hold,
            held_by=held_by,
            create_time=_create_time(raw.get("tagCreateTime")),
            time_retained=_retained(raw.get("tagTimeRetained")),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"{where} has an unreadable retention: {error}") from None


def find_legal_hold(data: bytes, name: str) -> Tag | None:
    """Parse a tag file only if it is of a tag under a legal hold; raises as ``parse_tag`` does."""
    return parse_tag(data, name) if _LEGAL_HOLD.encode() in data else None


def _create_time(value: Any) -> datetime | None:
    if value is None:
        return None
    year, month, day, hour, minute, second, nanos = [int(p) for p in value] + [0] * (7 - len(value))
    return datetime(year, month, day, hour, minute, second, nanos // 1000)


def _retained(value: Any) -> timedelta | None:
    if value is None:
        return None
    try:
        return timedelta(seconds=float(value))
    except OverflowError:
        return timedelta.max
