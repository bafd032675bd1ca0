"""Tokens of SQL: how statements are divided, what is nested too deeply, and what hides the values in a text."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.sql_text.call import parse_call
from airflow_paimon.core.sql_text.columns import check_columns
from airflow_paimon.core.sql_text.condition import parse_condition
from airflow_paimon.core.sql_text.statement import read_sql
from airflow_paimon.core.sql_text.tokens import (
    check_nesting,
    hide_literals,
    pieces_of,
    split_statements,
    tokens_of,
    unquoted,
)
from tests.core.tables import make_table

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


LONG = 2_000
TORN = ["'" + "\\'" * LONG, '"' + '\\"' * LONG, "/*" * LONG, "`" + "``" * LONG, "r'" * LONG, "'" + "''" * LONG + "\\"]


@pytest.mark.timeout(60)  # each of them took minutes
@pytest.mark.parametrize("torn", TORN, ids=range(len(TORN)))
def test_what_begins_and_does_not_end_is_read_once(torn: str) -> None:
    sql = f"DELETE FROM branch WHERE {torn}"
    split_statements(sql)
    tokens_of(sql)
    assert "secret" not in hide_literals(f"DELETE FROM branch WHERE v = 'secret{torn}")


def test_raw_texts_have_no_escapes() -> None:
    sql = "DELETE FROM branch WHERE v = r'a\\' AND w = R\"b\\\" -- it's ; gone"
    assert [unquoted(t.text) for t in tokens_of(sql) if t.kind == "text"] == ["a\\", "b\\"]


@pytest.mark.parametrize(
    ("sql", "texts"),
    [
        ("a /* b /* c */ d */ e", "a e"),
        ("WHERE v = '/*' OR v = '*/'", "WHERE v = '/*' OR v = '*/'"),
        ("`a--b` = 'it''s --' -- end", "a--b = 'it''s --'"),
        ("x /* open", "x"),
        ("a -- b\rAND c", "a AND c"),
        ("a -- goes on \\\n here\nAND c", "a AND c"),
        ("SELECT /*+ HINT('x') */ 2*/*c*/3", "SELECT 2 */ * c */ 3"),
        ("k<=-1.5e-3+.5 OR t.c1<=>1.e5", "k <= - 1.5e-3 + .5 OR t . c1 <=> 1.e5"),
        ("7L 1.5BD 0x1F 1and 5.and t.1st $$x y", "7L 1.5BD 0x1F 1and 5 . and t . 1st $$x y"),
        ("``` a` = ``", "` a = "),
    ],
)
def test_what_words_a_text_has(sql: str, texts: str) -> None:
    assert " ".join(token.text for token in tokens_of(sql)) == texts


@given(st.text(st.sampled_from(";'\"`-/*+$ab \\\n(1.e"), max_size=30))
def test_nothing_of_a_text_is_lost(sql: str) -> None:
    assert "".join(sql[piece.start : piece.end] for piece in pieces_of(sql)) == sql


@pytest.mark.parametrize(
    ("sql", "hidden"),
    [
        ("UPDATE branch SET v = 'a''b\\'c' WHERE k = 17", "UPDATE branch SET v = '***' WHERE k = ***"),
        ("SELECT \"o'x\" AS `it's 5`, t1.c2 FROM t1", "SELECT '***' AS `it's 5`, t1.c2 FROM t1"),
        ("SELECT r'\\' , R\"x\", 'z'", "SELECT '***' , '***', '***'"),
        ("SELECT 1.5e-3, .5, 0x1F, 7L, DATE'2025-01-01', X'1F'", "SELECT ***, ***, ***, ***, DATE'***', X'***'"),
        (
            "DELETE FROM branch -- ann@x.org\nWHERE /* 'bob' \n */ k IN (-4)",
            "DELETE FROM branch  \nWHERE   k IN (-***)",
        ),
        ("SELECT v /* a /* b */ ann's */ , 'ann'", "SELECT v   , '***'"),
        ("SELECT v -- not \\\n ann's\n, 'ann'", "SELECT v  \n, '***'"),
        ("SELECT v -- a\r, 'ann'", "SELECT v  \r, '***'"),
        ("SELECT /*+ REPARTITION('*/') */ 'ann'", "SELECT /*+ REPARTITION('***') */ '***'"),
        ("SELECT v /* a /*+ b */ , 'ann'", "SELECT v   , '***'"),
        ("SELECT v /* a /* b */ ann", "SELECT v  "),
        ("SELECT 'no end", "SELECT '***'"),
        ("SELECT `no end 17", "SELECT '***'"),
        ("SELECT $$secret$$", "SELECT '***'"),
        ("SELECT `a``b 5`, '`', 'x'", "SELECT `a``b 5`, '***', '***'"),
        ("SELECT /* no end 'x'", "SELECT  "),
    ],
)
def test_literals_and_comments_are_hidden_and_names_stay(sql: str, hidden: str) -> None:
    assert hide_literals(sql) == hidden


DEEP = [
    "DELETE FROM branch WHERE " + "(" * LONG + "k = 1" + ")" * LONG, "DELETE FROM branch WHERE " + "(" * LONG,
    "DELETE FROM branch WHERE " + "NOT " * LONG + "k = 1", "UPDATE branch SET k = " + "- " * LONG + "1",
    "UPDATE branch SET v = " + "CASE WHEN k = 1 THEN " * LONG + "'a'" + " END" * LONG,
    "SELECT * FROM " + "(SELECT * FROM " * LONG + "branch" + ")" * LONG,
    "MERGE INTO branch USING main s ON " + "(" * LONG, "CALL sys.x(" + "array(" * LONG,
]  # fmt: skip


@pytest.mark.parametrize("sql", DEEP, ids=range(len(DEEP)))
def test_what_is_nested_too_deeply_is_refused_or_left(sql: str) -> None:
    schema = make_table(f"memory://{uuid.uuid4()}/wh").schema()
    with pytest.raises(InvalidInputError, match="nested more than 100 deep"):
        check_nesting(sql)
    read_sql(sql, schema)
    check_columns(sql, {"branch": schema.field_names})
    with pytest.raises(InvalidInputError):
        parse_call(sql)
    with pytest.raises(InvalidInputError) as refused:
        parse_condition(sql.partition("WHERE ")[2] or sql, schema)
    assert len(refused.value.message) < 1000
