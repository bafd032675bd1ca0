"""This package's own JSON files in a table: each is a frozen dataclass, and is read with the types of its fields.

Other engines never read them. Keys that no field has are ignored: a later version may write more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot, parse_json, snapshot_from_json

if TYPE_CHECKING:
    # Plans have records: they must not load the stores.
    from airflow_paimon.core.store.base import Store

NOT_STORED = {"stored": False}
"""Metadata of a field that is not in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """What files of one kind have in common; all are in ``core/table/record_kinds.py``.

    ``at_risk``: what one that is unreadable endangers; ``way_out``: what to do about it, for messages.
    """

    folder: str
    at_risk: str
    way_out: str

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self.folder}/{name}.json"

    def listed(self, store: Store) -> list[str]:
        """Return the paths of the files right in the folder, without those that are being written."""
        return [f"{self.folder}/{name}" for name in sorted(store.names(self.folder)) if is_record(name)]


def is_record(path: str) -> bool:
    """Whether it is a file of this package's, and none that is being written."""
    return path.endswith(".json") and not path.rpartition("/")[2].startswith(".")


class Record:
    """Base of such dataclasses. Fields are JSON values, datetimes, bytes of UTF-8, snapshots, tuples, mappings,
    dataclasses.
    """

    __slots__ = ()
    KIND: ClassVar[RecordKind]

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return record_bytes(_to_json(self))

    @classmethod
    def parse(cls, data: bytes, name: str) -> Self:
        """Parse a file. ``name``: the table's and the file's, for messages.

        Raises:
            FormatError: truncated, or not what ``to_bytes`` writes.
        """
        try:
            found: Self = _dataclass(cls, parse_json(data))
        except (FormatError, ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{name} is unreadable ({error}); {cls.KIND.way_out}") from None
        return found

    @classmethod
    def find(cls, store: Store, path: str, table: str) -> Self | None:
        """Read a file of the table of this name; None: there is none.

        Raises:
            FormatError: it is unreadable.
        """
        try:
            data = store.read(path)
        except NotFoundError:
            return None
        return cls.parse(data, f"{table}: {path}")


def record_bytes(values: Mapping[str, Any]) -> bytes:
    """Return JSON values as the content of a file."""
    return json.dumps(values, indent=2, ensure_ascii=False).encode()


def _to_json(value: Any) -> Any:
    if isinstance(value, Snapshot):
        return value.to_json()
    if is_dataclass(value):
        return {f.name: _to_json(getattr(value, f.name)) for f in _stored(type(value))}
    if isinstance(value, Mapping):
        return {str(key): _to_json(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_json(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode() if isinstance(value, bytes) else value


def _stored(kind: Any) -> list[Field[Any]]:
    return [f for f in fields(kind) if f.metadata.get("stored", True)]


@cache
def _kinds(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of a dataclass: the type of each, and whether it must be there."""
    hints = get_type_hints(kind)
    needed = {f.name: f.default is MISSING and f.default_factory is MISSING for f in _stored(kind)}
    return {name: (hints[name], is_needed) for name, is_needed in needed.items()}


def _dataclass(kind: Any, raw: Any) -> Any:
    found = _of_type(dict, raw)
    if missing := [name for name, (_, is_needed) in _kinds(kind).items() if is_needed and name not in found]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return kind(**{name: _value(field, found[name]) for name, (field, _) in _kinds(kind).items() if name in found})


def _value(kind: Any, raw: Any) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return raw
    if origin in (Union, UnionType):
        return None if raw is None and NoneType in inner else _value(inner[0], raw)
    if origin is Snapshot:
        return snapshot_from_json(_of_type(dict, raw), "its snapshot")
    if is_dataclass(origin):
        return _dataclass(origin, raw)
    if origin is tuple:
        values = _of_type(list, raw)
        kinds = inner[:1] * len(values) if inner[1:] == (...,) else inner
        return tuple(_value(one, value) for one, value in zip(kinds, values, strict=True))
    if origin is Mapping:
        return {inner[0](key): _value(inner[1], value) for key, value in _of_type(dict, raw).items()}
    if origin is datetime:
        return datetime.fromisoformat(_of_type(str, raw))
    return _of_type(str, raw).encode() if origin is bytes else _of_type(origin, raw)


def _of_type(kind: type, raw: Any) -> Any:
    if type(raw) is not kind:
        raise TypeError(f"{raw!r:.60} is not of type {kind.__name__}")
    return raw
