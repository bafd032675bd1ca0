"""The grammar of SHOW BRANCHES and SHOW TAGS, without Spark."""

from __future__ import annotations

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.sql_text.call import ShowList, parse_show_list


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SHOW TAGS d.t", ShowList("TAGS", ("d", "t"))),
        ("show tags in d.t;", ShowList("TAGS", ("d", "t"))),
        ("/* a /* b */ c */ SHOW -- x\n BRANCHES FROM `d`.`t$branch_b` ; ;", ShowList("BRANCHES", ("d", "t$branch_b"))),
        ("SHOW TAGS in.t", ShowList("TAGS", ("in", "t"))),
        ("SHOW TAGS `a``b`.`c;d`", ShowList("TAGS", ("a`b", "c;d"))),
        ("SHOW TAGS t", ShowList("TAGS", ("t",))),
        ("SHOW TAGS IN", ShowList("TAGS", ("IN",))),
        ("SHOW TABLES IN d", None),
        ("SELECT 'SHOW TAGS d.t'", None),
        ("`SHOW` TAGS d.t", None),
        ("", None),
    ],
)
def test_forms(text: str, expected: ShowList | None) -> None:
    assert parse_show_list(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SHOW TAGS", r"names no table \(line 1, position 10\); write SHOW TAGS IN db\.t"),
        ("SHOW TAGS d.t; DROP TABLE d.t", r"does not take 'DROP' \(line 1, position 16\)"),
        ("SHOW TAGS\n  d.t LIKE 'x'", r"does not take 'LIKE' \(line 2, position 7\)"),
        ("SHOW BRANCHES d.", r"names no table"),
        ("SHOW BRANCHES 'd'.t", r"does not take \"'d'\""),
    ],
)
def test_what_is_wrong_is_named_with_its_position(text: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        parse_show_list(text)
