"""How a file of statements is divided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.correction.sql_words import split_statements

_PLAIN = st.sampled_from(["UPDATE branch", "SET v = 1", "k", "=", "(", ")", "7", "par", "\n", "*", "/", "-"])
_INSIDE = st.text(st.sampled_from(";'\"`-/*ab \\\n"), max_size=8)
_TEXT = st.builds(lambda t, q: q + t.replace("\\", "\\\\").replace(q, q * 2) + q, _INSIDE, st.sampled_from("'\""))
_ESCAPED = st.builds(lambda t: "'" + t.replace("\\", "\\\\").replace("'", "\\'") + "'", _INSIDE)
_RAW = st.builds(lambda t: "r'" + t.replace("'", "") + "'", _INSIDE)
_NAME = st.builds(lambda t: "`" + t.replace("`", "``") + "`", _INSIDE.filter(bool))
_LINE = st.builds(lambda t: "--" + t.replace("\n", "").replace("\\", "") + "\n", _INSIDE)
_BLOCK = st.builds(lambda t: "/* " + t.replace("/", "").replace("*", "") + " */", _INSIDE)
_NESTED = st.builds(lambda a, b: f"/* {a} {b} */", _BLOCK, _BLOCK)
_STATEMENT = st.lists(
    st.one_of(_PLAIN, _TEXT, _ESCAPED, _RAW, _NAME, _LINE, _BLOCK, _NESTED), min_size=1, max_size=8
).map(lambda parts: "DELETE " + " ".join(parts))


@given(st.lists(_STATEMENT, max_size=5), st.sampled_from([";", " ; ", ";\n;", "\n;"]))
def test_only_semicolons_between_statements_divide(statements: list[str], between: str) -> None:
    ended = [s if "--" not in s else f"{s}\n" for s in statements]
    assert split_statements(between.join(ended)) == [s.strip() for s in statements]
    assert split_statements(between.join([*ended, ""])) == [s.strip() for s in statements]


def test_what_has_no_words_is_no_statement() -> None:
    assert split_statements(" ;-- a;\n; /* b; */ ;") == []
    assert split_statements("a \\; b") == ["a \\", "b"]
    assert split_statements("SELECT /*+ hint */ 1; 2") == ["SELECT /*+ hint */ 1", "2"]
    assert split_statements("-- goes on \\\n; here\nDELETE") == ["-- goes on \\\n; here\nDELETE"]
    assert split_statements("a /* never ends; b") == ["a /* never ends; b"]
