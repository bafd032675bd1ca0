"""Formats of partition times, held against what Java 17's ``DateTimeFormatter`` answered (measured)."""

from __future__ import annotations

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.java_time import parse_format

REFUSED = "-"
MEASURED = [
    ("yyyyMMdd", "20250810", "2025-08-10T00:00|20250810"),
    ("yyyyMMdd", "20250230", "2025-02-28T00:00|20250228"),
    ("yyyyMMdd", "20250431", "2025-04-30T00:00|20250430"),
    ("yyyyMMdd", "20250432", "-"),
    ("yyyyMMdd", "20251310", "-"),
    ("yyyyMMdd", "120250810", "-"),
    ("yyyyMMdd", "2025081", "-"),
    ("yyyyMMdd", "00000101", "-"),
    ("yyyyMMdd", " 20250810", "-"),
    ("yyyyMMdd", "", "-"),
    ("yyyy-MM-dd", "2025-08-10", "2025-08-10T00:00|2025-08-10"),
    ("yyyy-MM-dd", "2025-8-10", "-"),
    ("yyyy-M-d", "2025-8-1", "2025-08-01T00:00|2025-8-1"),
    ("yyyy-M-d", "2025-08-01", "2025-08-01T00:00|2025-8-1"),
    ("yyyy-M-d", "2025-008-01", "2025-08-01T00:00|2025-8-1"),
    ("d-M-yyyy", "1-12-2025", "2025-12-01T00:00|1-12-2025"),
    ("yMMdd", "20250810", "2025-08-10T00:00|20250810"),
    ("yMMdd", "50810", "0005-08-10T00:00|50810"),
    ("yyMMdd", "250810", "2025-08-10T00:00|250810"),
    ("yyMMdd", "990810", "2099-08-10T00:00|990810"),
    ("yyy-MM-dd", "2025-08-10", "2025-08-10T00:00|2025-08-10"),
    ("uuuuMMdd", "20250810", "2025-08-10T00:00|20250810"),
    ("yyyyLLdd", "20250810", "2025-08-10T00:00|20250810"),
    ("yyyyDDD", "2025032", "2025-02-01T00:00|2025032"),
    ("yyyyDDD", "2024366", "2024-12-31T00:00|2024366"),
    ("yyyyDDD", "2025366", "-"),
    ("yyyy-DD", "2025-32", "2025-02-01T00:00|2025-32"),
    ("yyyy-DD", "2025-132", "2025-05-12T00:00|2025-132"),
    ("yyyy-D", "2025-5", "2025-01-05T00:00|2025-5"),
    ("yyyy-MM-dd DDD", "2025-02-01 032", "2025-02-01T00:00|2025-02-01 032"),
    ("yyyy-MM-dd DDD", "2025-02-01 033", "-"),
    ("yyyyMMddHH", "2025081023", "2025-08-10T23:00|2025081023"),
    ("yyyyMMddHH", "2025081024", "2025-08-11T00:00|2025081100"),
    ("yyyyMMddHH", "2025081025", "-"),
    ("yyyyMMddkk", "2025081024", "2025-08-10T00:00|2025081024"),
    ("yyyyMMddkk", "2025081001", "2025-08-10T01:00|2025081001"),
    ("yyyyMMddkk", "2025081000", "2025-08-10T00:00|2025081024"),
    ("yyyyMMddkk", "2025081025", "-"),
    ("yyyyMMdd H", "20250810 5", "2025-08-10T05:00|20250810 5"),
    ("yyyyMMdd H", "20250810 05", "2025-08-10T05:00|20250810 5"),
    ("yyyyMMdd HH", "20250810 5", "-"),
    ("yyyyMMdd HH:mm:ss", "20250810 23:59:59", "2025-08-10T23:59:59|20250810 23:59:59"),
    ("yyyyMMdd HH:mm:ss", "20250810 24:00:00", "2025-08-11T00:00|20250811 00:00:00"),
    ("yyyyMMdd HH:mm:ss", "20250810 24:00:01", "-"),
    ("yyyyMMdd HH:mm:ss", "20250810 23:60:00", "-"),
    ("yyyyMMdd'T'HHmmss", "20250810T010203", "2025-08-10T01:02:03|20250810T010203"),
    ("yyyyMMdd'T'HHmmss", "20250810t010203", "-"),
    ("yyyy''MM''dd", "2025'08'10", "2025-08-10T00:00|2025'08'10"),
    ("yyyyMMddHmm", "20250810512", "-"),
    ("yyyyMMddHmm", "202508101512", "-"),
    ("yyyyMMddHm", "202508101512", "-"),
    ("yyyyMMddHHmmss", "20250810010203", "2025-08-10T01:02:03|20250810010203"),
    ("dMMyyyy", "1082025", "-"),
    ("HH:mm:ss yyyyMMdd", "01:02:03 20250810", "2025-08-10T01:02:03|01:02:03 20250810"),
    ("yyyyMMddHH", "99991231 4", "-"),
    ("yMMH d", "2025081 5", "-"),
]
"""Formatter, text, and what Java makes of it: time|the time written again."""


@pytest.mark.parametrize(("formatter", "text", "expected"), MEASURED)
def test_reads_and_writes_as_java_does(formatter: str, text: str, expected: str) -> None:
    form = parse_format(formatter)
    if expected == REFUSED:
        with pytest.raises(ValueError, match=r".*"):
            form.parse(text)
        return
    moment = form.parse(text)
    shown = moment.isoformat(timespec="seconds" if moment.second else "minutes")
    assert f"{shown}|{form.format(moment)}" == expected


def test_years_of_five_digits_are_no_partition_values() -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_format("yyyyMMddHH").parse("9999123124")  # Java: 10000-01-01


@pytest.mark.parametrize(
    ("formatter", "problem"),
    [
        ("yyyy", "complete date"),
        ("yyyyMM", "complete date"),
        ("MMdd", "complete date"),
        ("yyyyMMdd Q", "letter 'Q'"),
        ("yyyyMMdd hh a", "letter 'h'"),
        ("YYYY-ww", "letter 'Y'"),
        ("yyyyMMdd SSS", "letter 'S'"),
        ("yyyyMMddXXX", "letter 'X'"),
        ("yyyy-MMM-dd", "MMM"),
        ("yyyyMMddd", "ddd"),
        ("yyyyMMdd[HH]", r"'\['"),
        ("yyyyMMdd'T", "quote"),
        ("yyyyMMdd mm", "without the unit above"),
        ("yyyyMMddHHss", "without the unit above"),
    ],
)
def test_what_is_not_a_time_of_digits_is_refused(formatter: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        parse_format(formatter)
