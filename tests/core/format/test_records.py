"""This package's own JSON files: read as they were written, and named where they are damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.records import NOT_STORED, Record, RecordKind


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Record):
    name: str
    number: int
    when: datetime
    data: bytes = b""
    parts: tuple[Part, ...] = ()
    pairs: tuple[tuple[int, str], ...] = ()
    by_number: Mapping[int, str] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    read_ms: int = field(default=0, metadata=NOT_STORED)
    KIND = RecordKind(folder="x", at_risk="nothing", way_out="delete it")


SAMPLE = Sample(
    name="ü",
    number=2**63,
    when=datetime(2026, 1, 2, 3, 4, 5),
    data='{"id": "ü"}'.encode(),
    parts=(Part("a"), Part("b", 2)),
    pairs=((1, "x"),),
    by_number={10: "ten", 9: "nine"},
    report={"rows": [1, None]},
    read_ms=7,
)


def test_it_is_read_as_it_was_written_but_for_what_is_not_stored() -> None:
    data = SAMPLE.to_bytes()
    assert b"read_ms" not in data
    assert Sample.parse(data, "x") == replace(SAMPLE, read_ms=0)
    later = data[:-1].rstrip() + b', "later": 1}'
    assert Sample.parse(later, "x") == replace(SAMPLE, read_ms=0), "a later version may write more"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "is not of type dict"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"name": "n", "number": 1}', "it lacks when"),
        (b'{"name": 5, "number": 1, "when": "2026-01-01"}', "5 is not of type str"),
        (b'{"name": "n", "number": true, "when": "2026-01-01"}', "True is not of type int"),
        (b'{"name": "n", "number": 1, "when": "once"}', "once"),
        (b'{"name": "n", "number": 1, "when": "2026-01-01", "pairs": [[1]]}', "shorter"),
        (b'{"name": "n", "number": 1, "when": "2026-01-01", "by_number": {"x": ""}}', "invalid literal"),
        (b'{"name": "n", "number": 1, "when": "2026-01-01", "parts": [{"size": 1}]}', "it lacks name"),
    ],
)
def test_what_is_damaged_is_named_with_a_way_out(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=rf"\Ad\.t: x\.json is unreadable \(.*{why}.*\); delete it\Z"):
        Sample.parse(data, "d.t: x.json")
