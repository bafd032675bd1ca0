"""Schema files: one version of a table's columns, keys and options. Unknown keys survive a round trip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.option_lists import split_names
from airflow_paimon.core.format.snapshot import RESTORE, load_json_object
from airflow_paimon.core.format.types import DataField, DataType, field_to_json, max_field_id, parse_field

_KEYS = frozenset(
    ["version", "id", "fields", "highestFieldId", "partitionKeys", "primaryKeys", "options", "comment", "timeMillis"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One schema version. ``options`` are the stored ones: never ``path`` or an injected branch.

    See docs/contributing/format.md, Schemas and snapshots.
    """

    id: int
    fields: tuple[DataField, ...]
    highest_field_id: int
    partition_keys: tuple[str, ...] = ()
    primary_keys: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    time_millis: int = 0
    version: int = 3
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> object:
        """What tells this version from one that a table made anew gives the same id. A writer may set other options and
        defaults for itself.
        """
        columns = tuple((f.id, f.name, f.type) for f in self.fields)
        return self.id, self.time_millis, self.highest_field_id, columns, self.partition_keys, self.primary_keys

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    def field(self, name: str) -> DataField:
        """Find a column by name; ``FormatError`` if there is none, as when a key names a missing column."""
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        raise FormatError(f"Schema {self.id} has no column {name!r}")

    def without_defaults(self) -> TableSchema:
        """Return the schema without default values: a statement that says NULL means it."""
        return replace(self, fields=tuple(replace(f, default_value=None) for f in self.fields))

    @property
    def partition_fields(self) -> tuple[DataField, ...]:
        return tuple(self.field(name) for name in self.partition_keys)

    @property
    def partition_types(self) -> tuple[DataType, ...]:
        return tuple(f.type for f in self.partition_fields)

    @property
    def trimmed_primary_keys(self) -> tuple[str, ...]:
        """The primary key without partition columns; all of it if that leaves nothing."""
        rest = tuple(k for k in self.primary_keys if k not in self.partition_keys)
        return rest or self.primary_keys

    @property
    def crosses_partitions(self) -> bool:
        """Whether the primary key lacks partition columns, so that it does not tell a row's partition."""
        return bool(self.primary_keys) and not set(self.partition_keys) <= set(self.primary_keys)

    @property
    def key_fields(self) -> tuple[DataField, ...]:
        return tuple(self.field(name) for name in self.trimmed_primary_keys)

    @property
    def bucket_keys(self) -> tuple[str, ...]:
        """Columns that determine the bucket: option ``bucket-key``, else the trimmed primary key."""
        text = self.options.get("bucket-key", "")
        return split_names("bucket-key", text) if text.strip() else self.trimmed_primary_keys

    @property
    def has_keyless_bucket(self) -> bool:
        """Whether this is an append table of Paimon 0.7 with one bucket and no bucket key. Paimon opens none of a later
        version without.
        """
        one = self.options.get("bucket", "").strip() == "1"
        return one and self.version == _VERSION_OF_0_7 and not self.bucket_keys

    @property
    def next_version(self) -> int:
        """The version of the file format that a schema after this one is written in."""
        return self.version if self.has_keyless_bucket else _NEWEST_VERSION

    @property
    def content(self) -> tuple[Any, ...]:
        """The part of a schema that matters to data files: columns and keys, not options or comments."""
        fields = tuple((f.id, f.name, f.type) for f in self.fields)
        return fields, self.partition_keys, self.primary_keys

    def means_same(self, other: TableSchema) -> bool:
        """Whether two versions mean the same, whatever their ids and times."""
        return (self.fields, self.partition_keys, self.primary_keys, self.options, self.comment or "") == (
            (other.fields, other.partition_keys, other.primary_keys, other.options, other.comment or "")
        )

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "version": self.version,
            "id": self.id,
            "fields": [field_to_json(f) for f in self.fields],
            "highestFieldId": self.highest_field_id,
            "partitionKeys": list(self.partition_keys),
            "primaryKeys": list(self.primary_keys),
            "options": dict(self.options),
        }
        if self.comment is not None:
            out["comment"] = self.comment
        out["timeMillis"] = self.time_millis
        out.update(self.unknown)
        return out

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False).encode()


_VERSION_OF_0_7, _VERSION_OF_0_8, _NEWEST_VERSION = 1, 2, 3


def _field(value: Any, name: str) -> DataField:
    try:
        return parse_field(value)
    except UnsupportedFeatureError as error:
        raise UnsupportedFeatureError(
            f"{name}: column {value['name']!r} has a type of a later Paimon release ({error.message}); upgrade "
            f"airflow-paimon, or use Paimon's own Spark connector"
        ) from None


@lru_cache(maxsize=16)
def parse_schema(data: bytes, name: str) -> TableSchema:
    """Parse a schema file of version 1 to 3; ``name`` is for messages.

    Where options are absent, version 1 (Paimon <= 0.7) means bucket 1, and versions 1 and 2 (<= 0.8) mean format orc.

    Raises:
        FormatError: corrupt. UnsupportedFeatureError: a later version, or a type of one.
    """
    raw = load_json_object(data, name)
    version = raw.get("version", _VERSION_OF_0_7)
    if not isinstance(version, int) or version > _NEWEST_VERSION:
        raise UnsupportedFeatureError(
            f"{name} has version {version}; this release reads up to {_NEWEST_VERSION}: upgrade airflow-paimon"
        )
    missing = [key for key in ("id", "fields") if raw.get(key) is None]
    if missing:
        raise FormatError(f"{name} is corrupt: it lacks {', '.join(missing)}; {RESTORE}")
    try:
        fields = tuple(_field(f, name) for f in raw["fields"])
        options = {str(k): str(v) for k, v in (raw.get("options") or {}).items()}
        schema_id = int(raw["id"])
        highest = raw.get("highestFieldId")
        keys = tuple(raw.get("partitionKeys") or ()), tuple(raw.get("primaryKeys") or ())
        if not 0 <= schema_id < 2**63:
            raise ValueError("its id is out of range")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"{name} is corrupt ({type(error).__name__}: {error}); {RESTORE}") from None
    if version <= _VERSION_OF_0_7:
        options.setdefault("bucket", "1")
    if version <= _VERSION_OF_0_8:
        options.setdefault("file.format", "orc")
    return TableSchema(
        id=schema_id,
        fields=fields,
        highest_field_id=max_field_id(fields) if highest is None else int(highest),
        partition_keys=keys[0],
        primary_keys=keys[1],
        options=options,
        comment=raw.get("comment"),
        time_millis=int(raw.get("timeMillis") or 0),
        version=version,
        unknown={k: v for k, v in raw.items() if k not in _KEYS},
    )
