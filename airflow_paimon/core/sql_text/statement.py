"""What the words of SQL say of a statement on rows: its kind, its target, what it reads, and which rows it concerns.

Whatever this can't tell for sure is left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.sql_text.condition import Read, read_condition
from airflow_paimon.core.sql_text.tokens import Token, nesting, split_at_commas, tokens_of
from airflow_paimon.core.table.predicate import Predicate

BRANCH, MAIN_VIEW = "branch", "main"
SELECT, UPDATE, DELETE, MERGE, INSERT, INSERT_OVERWRITE, FUNCTION = (
    "SELECT", "UPDATE", "DELETE", "MERGE", "INSERT", "INSERT OVERWRITE", "FUNCTION",
)  # fmt: skip
QUERIES = ("select", "with", "from", "values", "table", "map", "reduce")
"""Words that begin a query."""
STATEMENTS = ("update", "delete", "merge", "insert")
"""Words that begin a statement which changes rows by itself."""
AFTER_FROM = frozenset({"where", "group", "having", "order", "limit", "union", "intersect", "except", "minus", "window",
                        "sort", "cluster", "distribute", "offset", "qualify", "lateral"})  # fmt: skip
"""Words that begin what follows the tables of a query."""
_AFTER_WHERE = tuple(AFTER_FROM - {"where"})
_JOINED = ("join", "union", "intersect", "except", "minus", "pivot", "unpivot", "lateral")
_BEFORE_RELATION = ("from", "join", "using", "into", "update", "overwrite")
_WRITES = ("into", "overwrite", "update")
NO_ALIAS = AFTER_FROM | {
    "set", "using", "on", "when", "as", "join", "inner", "left", "right", "full", "cross", "natural", "semi", "anti",
    "select", "partition", "by", "values", "table", "from", "with", "tablesample", "pivot", "unpivot", "for",
    "version", "timestamp", "then", "if", "replace",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table where the SQL reads or writes it. ``start`` and ``end``: its tokens, the alias included. ``alias``: the
    name that qualifies its columns, in lower case. ``renames``: its columns may have other names than the table's.
    """

    parts: tuple[str, ...]
    alias: str
    start: int
    end: int
    written: bool
    renames: bool

    @property
    def name(self) -> str:
        """One without a dot in lower case."""
        return ".".join(self.parts) if len(self.parts) > 1 else self.parts[0].lower()

    @property
    def view(self) -> str:
        """The name in lower case, under which its columns may be known; empty where they have other names here."""
        return "" if self.renames else ".".join(self.parts).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementScope:
    """``predicate`` holds for every row of the branch that may change, of a SELECT for every row that it reads; None:
    any. ``whole``: it is the whole condition. ``relations``: the views and tables that are read, besides the target.
    ``partition``: of an INSERT OVERWRITE, the text of its PARTITION with values.
    """

    kind: str
    predicate: Predicate | None = None
    whole: bool = False
    relations: tuple[str, ...] = ()
    partition: str = ""


def statement_kind(sql: str) -> str | None:
    """Return UPDATE, DELETE, MERGE or INSERT for SQL that changes rows by itself; None for a SELECT or unclear SQL.

    Only the words outside of parentheses are looked at: ``WITH x AS (SELECT ...) UPDATE branch ...`` is an UPDATE.
    """
    return kind_of(tokens_of(sql))


def kind_of(tokens: Sequence[Token]) -> str | None:
    """Return what ``statement_kind`` does, of words."""
    if not tokens or not tokens[0].is_word("with", *STATEMENTS):
        return None
    for token in outside_parentheses(tokens):
        if token.is_word(*STATEMENTS):
            return token.text.upper()
        if token.is_word(*QUERIES) and not token.is_word("with"):
            return None
    return None


def outside_parentheses(tokens: Sequence[Token]) -> list[Token]:
    found, depth = [], 0
    for token in tokens:
        depth += nesting(token)
        if depth == 0:
            found.append(token)
    return found


def target_of(sql: str) -> str | None:
    """Return the name that a statement changes, one without a dot in lower case; None of a query, or if unclear."""
    tokens = tokens_of(sql)
    if not tokens or not tokens[0].is_word(*STATEMENTS):
        return None
    return next((relation.name for relation in relations_of(tokens)), None)


def read_sql(sql: str, schema: TableSchema) -> StatementScope:
    """Read one statement or query on the view ``branch``, whose columns are those of ``schema``."""
    tokens = tokens_of(sql)
    kind, relations = kind_of(tokens) or SELECT, relations_of(tokens)
    target = next((r for r in relations if r.written), None)
    names = tuple(r.name for r in relations)
    read = tuple(r.name for r in relations if r is not target)
    if kind in (UPDATE, DELETE, MERGE):
        target = target or next((r for r in relations if r.name == BRANCH), None)
        found = _condition(sql, tokens, schema, target, is_merge=kind == MERGE)
        rest = tuple(name for name in names if name != BRANCH)
        return StatementScope(kind=kind, predicate=found.predicate, whole=found.whole and kind != MERGE, relations=rest)
    if kind == INSERT and _after(tokens, "insert")[:1] and _after(tokens, "insert")[0].is_word("overwrite"):
        return StatementScope(kind=INSERT_OVERWRITE, relations=read, partition=_fixed(tokens))
    if kind == INSERT:
        return StatementScope(kind=kind, relations=read)
    if _reads_only_the_branch(tokens, relations):
        found = _condition(sql, tokens, schema, relations[0])
        return StatementScope(kind=SELECT, predicate=found.predicate, whole=found.whole, relations=names)
    return StatementScope(kind=SELECT, relations=names)


def _condition(
    sql: str, tokens: Sequence[Token], schema: TableSchema, target: Relation | None, *, is_merge: bool = False
) -> Read:
    """Read the condition after WHERE, or ON of a MERGE, outside of parentheses; without one every row is meant."""
    word, ends = ("on", ("when",)) if is_merge else ("where", _AFTER_WHERE)
    depth, cases, start, end = 0, 0, None, len(tokens)
    for at, token in enumerate(tokens):
        depth += nesting(token)
        cases += token.is_word("case") - (token.is_word("end") and cases > 0)
        if depth == 0 and start is None and token.is_word(word):
            start = at + 1
        elif depth == 0 and cases == 0 and start is not None and (token.is_word(*ends) or token.is_mark(";")):
            end = at
            break
    if start is None:
        return Read(predicate=None, whole=True)
    by_source = is_merge and any(a.is_word("by") and b.is_word("source") for a, b in pairwise(tokens))
    if by_source or "${" in sql:  # Spark puts any text in the place of a variable
        return Read(predicate=None, whole=False)
    names = {BRANCH if target is None else target.alias}
    return read_condition(tokens[start:end], schema, names, bare=not is_merge)


def relations_of(tokens: Sequence[Token]) -> list[Relation]:
    """Return the tables after FROM, JOIN, USING, INTO, OVERWRITE, UPDATE or TABLE, and after commas between them."""
    found: list[Relation] = []
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else None
        introduces = token.is_word(*_BEFORE_RELATION) and not (before and before.is_word("distinct", "then"))
        if not introduces and (not token.is_word("table") or (before and before.is_word(*_BEFORE_RELATION))):
            continue
        written = token.is_word(*_WRITES)
        at += introduces and at + 1 < len(tokens) and tokens[at + 1].is_word("table")
        while (relation := _relation(tokens, at + 1, written=written)) is not None:
            found.append(relation)
            at = relation.end
            if written or at >= len(tokens) or not tokens[at].is_mark(","):
                break
    return found


def _relation(tokens: Sequence[Token], start: int, *, written: bool) -> Relation | None:
    def token(at: int) -> Token:
        return tokens[at] if at < len(tokens) else Token("end", "", 0, 0)

    if not token(start).names or token(start).text.lower() in NO_ALIAS:
        return None
    at, parts = start + 1, [token(start).text]
    while token(at).is_mark(".") and token(at + 1).names:
        parts.append(token(at + 1).text)
        at += 2
    alias, has_list = parts[-1], written
    named = at + token(at).is_word("as")
    if token(named).names and (named > at or token(named).text.lower() not in NO_ALIAS):
        alias, at, has_list = token(named).text, named + 1, False
    renames = (token(at).is_mark("(") and not has_list) or token(at).is_word("version", "timestamp", "for")
    return Relation(
        parts=tuple(parts), alias=alias.lower(), start=start, end=at, written=written, renames=renames
    )  # fmt: skip


def _reads_only_the_branch(tokens: Sequence[Token], relations: Sequence[Relation]) -> bool:
    """Whether a query is one SELECT from the branch itself, so that its condition is on the branch's columns."""
    if not tokens or not tokens[0].is_word("select") or [r.name for r in relations] != [BRANCH]:
        return False
    outside = outside_parentheses(tokens)
    at = next((at for at, token in enumerate(outside) if token.is_word("from")), len(outside))
    following = outside[at + 1 : at + 2]
    is_branch = bool(following) and following[0].text.lower() == BRANCH and not relations[0].renames
    return is_branch and not any(t.is_word(*_JOINED) for t in tokens)


def _after(tokens: Sequence[Token], word: str) -> Sequence[Token]:
    at = next((i for i, t in enumerate(tokens) if t.is_word(word)), len(tokens))
    return tokens[at + 1 :]


def _fixed(tokens: Sequence[Token]) -> str:
    """Return ``dt='a',h=1`` of PARTITION (dt = 'a', h = 1); columns without a value are left out."""
    following = _after(tokens, "partition")
    if not following or not following[0].is_mark("("):
        return ""
    end = next((i for i, t in enumerate(following) if t.is_mark(")")), len(following))
    found = []
    for item in split_at_commas(following[1:end]):
        if len(item) == 3 and item[1].is_mark("="):
            key, _, value = item
            # a literal that means the same in the text of a partition, where nothing escapes
            plain = value.kind == "text" and value.text[0] in "'\"" and "\\" not in value.text
            found += [f"{key.text}={value.text}"] if plain or value.kind == "number" else []
    return ",".join(found)


def named_tables(
    flag: str, texts: Iterable[str], taken: Iterable[str] = (), *, versions: bool = False
) -> dict[str, str]:
    """Read ``name=db.table[$branch_b]``, as tables by name. ``versions``: with ``@VERSION`` as well.

    Raises:
        InvalidInputError: not of that form, a name used twice, or one of ours.
    """
    found: dict[str, str] = {}
    used = {BRANCH, MAIN_VIEW, *(name.lower() for name in taken)}
    form = "name=db.table, or name=db.table@version" if versions else "name=db.table or name=db.table$branch_b"
    for text in texts:
        name, equals, table = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or not table or (table.endswith("@") if versions else "@" in table):
            raise InvalidInputError(f"{flag} {text!r} is not of the form {form}")
        if name.lower() in used:
            raise InvalidInputError(f"{flag} {text!r}: the name {name!r} is taken already; give another name")
        used.add(name.lower())
        found[name] = table
    return found
