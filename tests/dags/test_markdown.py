"""What approvers read: everything of the form and of the data is shown, and nothing of it is markup."""

from typing import Any

import pytest

from airflow_paimon.runbooks import report
from airflow_paimon.shown.diff_markdown import render_markdown
from airflow_paimon.shown.markdown import code_block, counted, escape, sql_block

HOSTILE = "a|b `c` <img src=x> [click](http://x) **bold** ~~no~~ $x$\r\n\n| forged | row |\n# heading"


def request(**form: Any) -> dict[str, Any]:
    values = {"reason": None, "sql": None, "function": None, "partitions": None, "views": None}
    return {**values, "mode": "overwrite", "engine": "embedded", **form}


def test_no_text_of_a_form_becomes_markup() -> None:
    shown = escape(HOSTILE)
    assert "\n" not in shown and "\r" not in shown
    assert "<" not in shown
    for active in ("|", "`", "[", "]", "*", "~", "$"):
        assert shown.count(active) == shown.count("\\" + active) == HOSTILE.count(active)


def test_a_code_block_cannot_be_ended_from_within() -> None:
    sql = "SELECT '```' AS a,\n'````' AS b"
    assert code_block(sql, "sql") == f"`````sql\n{sql}\n`````"


def test_the_approver_sees_who_asks_for_what_and_why() -> None:
    sql = "SELECT dt, amount / 100 AS amount\nFROM branch"
    asked = request(sql=sql, reason=HOSTILE, partitions=["dt=2026-11-17"], views=["n=sales.names"])
    assert report.request_lines(asked, "ann|<b>") == [
        "- Requested by: ann\\|&lt;b&gt;",
        f"- Reason: {escape(HOSTILE)}",
    ]
    shown = report.what_ran(asked, {})
    assert "- Partitions: dt=2026-11-17\n" in shown
    assert "- Additional input table: n=sales.names" in shown
    assert shown.endswith(f"```sql\n{sql}\n```")
    by_function = request(function="fixes:cents")
    assert "- Function: fixes:cents" in report.what_ran(by_function, {})
    assert report.request_lines(by_function, None) == ["- Requested by: *unknown*", "- Reason: *none given*"]


@pytest.mark.parametrize(("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12345, "12,345 rows")])
def test_numbers_agree_with_their_nouns(count: int, text: str) -> None:
    assert counted(count, "row") == text


def diff(samples: dict[str, Any], key: list[str]) -> dict[str, Any]:
    counts = {"added": 1, "changed": 0, "deleted": 1, "unchanged": 0, "unchanged_exact": True}
    return {
        "branch": "fix_it",
        "branch_snapshot": 2,
        "against": "base",
        "against_snapshot": 1,
        "different": True,
        "total": counts,
        "buckets": {"compared": 1, "skipped": 0},
        "partitions": [{"partition": "dt=a|b", **counts, "samples": samples}],
        "partitions_differing": 1,
        "partitions_unchanged": 0,
        "key": key,
    }


def test_sample_rows_show_every_column_and_repeat_the_key() -> None:
    row = {"k1": 1, "k2": 2, **{f"c{n}": f"value {n}" for n in range(20)}}
    shown = render_markdown(diff({"deleted": [row, {**row, "c19": "x|y"}]}, ["k1", "k2"]))
    assert all(f"value {n}" in shown for n in range(20))
    assert "x\\|y" in shown
    headers = [line for line in shown.splitlines() if line.startswith("| k1 | k2 | c")]
    assert len(headers) == 4
    assert all(line.count(" | ") <= 7 for line in headers)
    assert "1 row added" in shown and "1 bucket compared" in shown


def test_a_key_wider_than_a_table_still_shows_the_rest() -> None:
    key = [f"k{n}" for n in range(9)]
    shown = render_markdown(diff({"added": [dict.fromkeys(key, 1) | {"v": "the value"}]}, key))
    assert "the value" in shown
    only_key = render_markdown(diff({"added": [dict.fromkeys(key, 1)]}, key))
    assert "| k0 | k1 |" in only_key


def test_changed_rows_show_each_value_and_what_is_left_out_is_counted() -> None:
    pair = {"before": {"k": 1, "v": None, "w": "y" * 80}, "after": {"k": 1, "v": "", "w": "z"}}
    details = diff({"changed": [pair]}, ["k"])
    details["partitions"][0]["unchanged_exact"] = False
    shown = render_markdown({**details, "partitions_differing": 61}).splitlines()
    head = shown.index("| Partition | Added | Changed | Deleted | Unchanged |")
    assert shown[head + 2 : head + 4] == ["| dt=a\\|b | 1 | 0 | 1 | at most 0 |", "| and 60 more |  |  |  |  |"]
    head = shown.index("| Key | Column | Before | After |")
    assert shown[head + 2 : head + 4] == ["| k=1 | v | *null* | *empty* |", f"| k=1 | w | {'y' * 59}… | z |"]


def test_a_diff_says_whose_branch_it_is_and_who_protects_it() -> None:
    details = {
        "branch": "fix", "branch_snapshot": 3, "against": "base", "against_snapshot": 2, "different": False,
        "buckets": {"compared": 0, "skipped": 1}, "partitions": [],
    }  # fmt: skip
    about = {"owner": "ann", "reason": HOSTILE, "retention": "14 d", "protected": True, "protected_by": None}
    shown = render_markdown({**details, "about": about})
    said = f"Owner: ann; reason: {escape(HOSTILE)}; retention: 14 d; protected by: unknown."
    assert shown.split("\n\n")[1] == said
    nothing = {"owner": None, "reason": None, "retention": None, "protected": False, "protected_by": None}
    assert render_markdown({**details, "about": nothing}) == render_markdown(details)
    assert "wner" not in render_markdown(details)


def test_long_sql_is_broken_at_blanks_outside_of_quotes() -> None:
    text = "a text with many blanks that stays as it is, however long it may be, as nobody may change it for a page"
    remark = f"-- a remark {'and more ' * 12}"
    sql = f"UPDATE branch SET note = '{text}', amount = amount / 100 WHERE dt = '2026-11-18' {remark}"
    block = sql_block(sql)
    lines = block.splitlines()[1:-1]
    assert len(lines) > 3 and f"'{text}'," in block
    assert all(len(line) <= 84 or text in line for line in lines)
    assert "".join(block.splitlines()[1:-1]).replace(" ", "").replace("--", "") == sql.replace(" ", "").replace(
        "--", ""
    )
    first = next(i for i, line in enumerate(lines) if "--" in line)
    assert all(line.lstrip().startswith("--") for line in lines[first + 1 :]), "a comment stays one"
    assert sql_block("SELECT 1\nFROM branch") == "```sql\nSELECT 1\nFROM branch\n```"
    assert "\n" not in sql_block(f"SELECT 'it {'goes on ' * 20}")[6:-4].strip(), "a text may go on in the next line"
