"""What a correction's SQL asks for, by its words: the rows of ``branch`` that it concerns, and what else it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_paimon.core.correction.sql_condition import Read, read_condition
from airflow_paimon.core.correction.sql_words import STATEMENTS, Token, kind_of, nesting, tokens_of, without_comments
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.predicate import Predicate

BRANCH, MAIN_VIEW = "branch", "main"
SELECT, UPDATE, DELETE, MERGE, INSERT, INSERT_OVERWRITE, FUNCTION = (
    "SELECT", "UPDATE", "DELETE", "MERGE", "INSERT", "INSERT OVERWRITE", "FUNCTION",
)  # fmt: skip
_AFTER_CONDITION = ("group", "having", "order", "limit", "union", "intersect", "except", "minus", "window", "sort",
                    "cluster", "distribute", "offset", "qualify", "lateral")  # fmt: skip
_JOINED = ("join", "union", "intersect", "except", "minus")
_BEFORE_RELATION = ("from", "join", "using", "table", "into", "update")
_NO_ALIAS = frozenset({"from", "set", "using", "where", "on", "when", "as", "join", "inner", "left", "right", "full",
                       "cross", "natural", *_AFTER_CONDITION})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``predicate`` holds for every row of the branch that may change, of a SELECT for every row that it reads; None:
    any. ``whole``: it is the whole condition. ``relations``: the views and tables that are read, besides the target.
    ``partition``: of an INSERT OVERWRITE, the text of its PARTITION with values.
    """

    kind: str
    predicate: Predicate | None = None
    whole: bool = False
    relations: tuple[str, ...] = ()
    partition: str = ""


def read_sql(sql: str, schema: TableSchema) -> Asked:
    """Read one statement or query on the view ``branch``, whose columns are those of ``schema``."""
    tokens = tokens_of(without_comments(sql))
    kind, relations = kind_of(tokens) or SELECT, _relations(tokens)
    if kind in (UPDATE, DELETE):
        found = _condition(tokens, schema, "where", _names(tokens))
        return Asked(kind=kind, predicate=found.predicate, whole=found.whole, relations=_without(relations, BRANCH))
    if kind == MERGE:
        found = _condition(tokens, schema, "on", _names(tokens), ends=("when",), bare=False)
        by_source = any(_are_words(tokens[at : at + 4], "not", "matched", "by", "source") for at in range(len(tokens)))
        predicate = None if by_source else found.predicate
        return Asked(kind=kind, predicate=predicate, relations=_without(relations, BRANCH))
    if kind == INSERT and _are_words(_after(tokens, "insert"), "overwrite"):
        return Asked(kind=INSERT_OVERWRITE, relations=_without(relations, BRANCH, once=True), partition=_fixed(tokens))
    if kind == INSERT:
        return Asked(kind=kind, relations=_without(relations, BRANCH, once=True))
    if _reads_only_the_branch(tokens, relations):
        found = _condition(tokens, schema, "where", _names(tokens), ends=_AFTER_CONDITION)
        return Asked(kind=SELECT, predicate=found.predicate, whole=found.whole, relations=relations)
    return Asked(kind=SELECT, relations=relations)


def target_of(sql: str) -> str | None:
    """Return the name that a statement changes, one without a dot in lower case; None of a query, or if unclear."""
    tokens = tokens_of(without_comments(sql))
    if not tokens or not tokens[0].is_word(*STATEMENTS):
        return None
    return next(iter(_relations(tokens)), None)


def _without(relations: Sequence[str], name: str, *, once: bool = False) -> tuple[str, ...]:
    """Leave the target out; ``once``: an INSERT may read it as well."""
    if once and name in relations:
        at = relations.index(name)
        return (*relations[:at], *relations[at + 1 :])
    return tuple(r for r in relations if r != name)


def _condition(
    tokens: Sequence[Token],
    schema: TableSchema,
    word: str,
    names: Sequence[str],
    *,
    ends: Sequence[str] = (),
    bare: bool = True,
) -> Read:
    """Read the condition after a word outside of parentheses; without one every row is meant."""
    depth, cases, start, end = 0, 0, None, len(tokens)
    for at, token in enumerate(tokens):
        depth += nesting(token)
        cases += token.is_word("case") - (token.is_word("end") and cases > 0)
        if depth == 0 and start is None and token.is_word(word):
            start = at + 1
        elif depth == 0 and cases == 0 and start is not None and (token.is_word(*ends) or token.text == ";"):
            end = at
            break
    if start is None:
        return Read(predicate=None, whole=True)
    return read_condition(tokens[start:end], schema, names, bare=bare)


def _names(tokens: Sequence[Token]) -> list[str]:
    """Return the names that qualify the branch's columns: its own, and the alias that follows it."""
    at = next((i for i, t in enumerate(tokens) if t.names and t.text.lower() == BRANCH), len(tokens))
    rest = [t for t in tokens[at + 1 : at + 3] if not t.is_word("as")]
    alias = rest[0] if rest and rest[0].names and rest[0].text.lower() not in _NO_ALIAS else None
    return [BRANCH] if alias is None else [alias.text.lower()]


def _relations(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return the lower-case names after FROM, JOIN, USING, INTO, TABLE, UPDATE and a comma between them."""
    found: list[str] = []
    for at, token in enumerate(tokens):
        if token.is_word(*_BEFORE_RELATION) or (token.is_word("overwrite") and at):
            found += _listed(tokens, at + 1)
    return tuple(found)


def _listed(tokens: Sequence[Token], at: int) -> list[str]:
    """Return the names of relations that are listed from here on; what stands in parentheses follows by itself."""
    found = []
    while at < len(tokens) and tokens[at].names and not tokens[at].is_word("table", "into"):
        parts = [tokens[at].text]
        at += 1
        while at + 1 < len(tokens) and tokens[at].text == "." and tokens[at + 1].names:
            parts.append(tokens[at + 1].text)
            at += 2
        found.append(".".join(parts).lower() if len(parts) < 2 else ".".join(parts))
        at += at < len(tokens) and tokens[at].is_word("as")
        at += at < len(tokens) and tokens[at].names and tokens[at].text.lower() not in _NO_ALIAS
        if at >= len(tokens) or tokens[at].text != ",":
            break
        at += 1
    return found


def _after(tokens: Sequence[Token], word: str) -> Sequence[Token]:
    at = next((i for i, t in enumerate(tokens) if t.is_word(word)), len(tokens))
    return tokens[at + 1 :]


def _are_words(tokens: Sequence[Token], *words: str) -> bool:
    return len(tokens) >= len(words) and all(t.is_word(w) for t, w in zip(tokens, words, strict=False))


def _reads_only_the_branch(tokens: Sequence[Token], relations: Sequence[str]) -> bool:
    """Whether a query is one SELECT from the branch itself, so that its condition is on the branch's columns."""
    if not tokens or not tokens[0].is_word("select") or tuple(relations) != (BRANCH,):
        return False
    depth = 0
    for at, token in enumerate(tokens):
        depth += nesting(token)
        if depth == 0 and token.is_word("from"):
            return tokens[at + 1].text.lower() == BRANCH and not any(t.is_word(*_JOINED) for t in tokens)
    return False


def _fixed(tokens: Sequence[Token]) -> str:
    """Return ``dt='a',h=1`` of PARTITION (dt = 'a', h = 1); columns without a value are left out."""
    at = next((i for i, t in enumerate(tokens) if t.is_word("partition")), None)
    if at is None or at + 1 >= len(tokens) or tokens[at + 1].text != "(":
        return ""
    end = next((i for i in range(at, len(tokens)) if tokens[i].text == ")"), len(tokens))
    pairs, item = [], list[Token]()
    for token in (*tokens[at + 2 : end], Token("mark", ",")):
        if token.text != ",":
            item.append(token)
            continue
        if len(item) == 3 and item[1].text == "=" and _is_read_the_same(item[2]):
            pairs.append(f"{item[0].text}={item[2].text}")
        item = []
    return ",".join(pairs)


def _is_read_the_same(value: Token) -> bool:
    """Whether a literal means in the text of a partition what it means in SQL: there nothing escapes."""
    return value.kind == "number" or (value.kind == "text" and value.text[0] in "'\"" and "\\" not in value.text)
