"""The estimate of a correction's time."""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import asdict

import pytest

from airflow_paimon.core.correction.estimate_plan import BYTES_PER_CORE_S, DEFAULT_CORES, FIXED_S, Timing, estimate
from airflow_paimon.core.correction.timings import MOST_TIMINGS, TIMINGS_PATH, read_timings, record_timing
from tests.core.tables import make_table

MB = 1_000_000


def timing(seconds: float, work_bytes: int, kind: str = "UPDATE", cores: int = 4) -> Timing:
    return Timing(at_ms=1, kind=kind, seconds=seconds, work_bytes=work_bytes, cores=cores)


def test_without_earlier_ones_a_default_is_named() -> None:
    found = estimate(BYTES_PER_CORE_S * DEFAULT_CORES * 10, (), "UPDATE")
    assert found.seconds == FIXED_S + 10
    assert found.source.startswith("default: ") and found.cores == DEFAULT_CORES


def test_a_long_one_tells_of_the_next() -> None:
    known = [timing(FIXED_S + 100, 1000 * MB)]
    found = estimate(3000 * MB, known, "UPDATE")
    assert 250 < found.seconds < 320 and found.source == "1 earlier UPDATE correction of this table"
    assert 125 < estimate(3000 * MB, known, "UPDATE", cores=8).seconds < 160


def test_a_small_one_says_little_of_a_large_one() -> None:
    default = estimate(6000 * MB, (), "UPDATE", cores=4).seconds
    found = estimate(6000 * MB, [timing(FIXED_S + 0.4, 10_000)], "UPDATE")
    assert default / 2 < found.seconds < default * 2
    assert "too little time" in found.source


def test_the_same_kind_counts_where_there_is_one() -> None:
    known = [timing(FIXED_S + 100, 100 * MB), timing(FIXED_S + 100, 10_000 * MB, kind="SELECT")]
    assert estimate(1000 * MB, known, "SELECT").seconds < 20 < 500 < estimate(1000 * MB, known, "UPDATE").seconds
    assert estimate(1000 * MB, known, "MERGE").source == "2 earlier corrections of this table"


def test_the_record_keeps_the_newest_and_a_damaged_one_is_none() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    assert read_timings(table) == ()
    for number in range(MOST_TIMINGS + 3):
        record_timing(table, timing(number, number))
    assert [t.work_bytes for t in read_timings(table)] == list(range(3, MOST_TIMINGS + 3))
    table.store.replace(TIMINGS_PATH, b'{"corrections": [{"seconds": 1}]}')
    assert read_timings(table) == ()


@pytest.mark.parametrize("wrong", [{"cores": 0}, {"cores": "4"}, {"seconds": None}, {"seconds": math.nan}])
def test_a_record_of_impossible_numbers_is_none(wrong: dict[str, object]) -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    data = json.dumps({"corrections": [asdict(timing(9, MB)) | wrong]})
    table.store.replace(TIMINGS_PATH, data.encode())
    assert read_timings(table) == ()
    record_timing(table, timing(9, MB))
    assert read_timings(table) == (timing(9, MB),)
