"""What was parsed lately is known again, and nothing else."""

from __future__ import annotations

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.recent import Recent
from airflow_paimon.core.format.snapshot import parse_snapshot


def test_what_is_known_is_not_parsed_again() -> None:
    recent: Recent[list[bytes]] = Recent(most=2, largest=3)
    calls: list[bytes] = []

    def find(data: bytes) -> list[bytes]:
        return recent.find(data, lambda: [calls.append(data) or data])  # type: ignore[func-returns-value]

    for data in (b"a", b"b", b"a", b"long", b"long", b"b", b"c", b"c", b"a"):
        assert find(data) == [data]
    assert calls == [b"a", b"b", b"long", b"long", b"c", b"a"]


def test_what_can_not_be_parsed_names_each_file() -> None:
    for name in ("one", "two"):
        with pytest.raises(FormatError, match=name):
            parse_snapshot(b"{}", name)
