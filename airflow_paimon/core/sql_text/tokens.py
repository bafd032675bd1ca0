"""The tokens of Spark SQL, by the rules of Spark's own lexer (``SqlBaseLexer.g4`` of Spark 4.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.masking import MASK

_PIECE = re.compile(
    r"""(?P<blank>\s+)
    |(?P<comment>--(?:\\\n|[^\r\n])*)
    |(?P<nested>/\*(?!\+))
    |(?P<text>[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |`(?P<quoted>(?:[^`]|``)*)`
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[bB][dD]|[lLsSyYfFdD])?(?!\w)|[0-9]\w*)
    |(?P<word>[^\W0-9]\w*)
    |(?P<torn>['"`].*|\$\$.*)
    |(?P<mark><=>|<=|>=|<>|!=|==|=>|->|::|\|\||/\*\+|\*/|.)""",
    re.VERBOSE | re.DOTALL,
)
# ``torn``: what begins and does not end takes all the rest, as otherwise each beginning would be followed to the end.
_BRACKET = re.compile(r"/\*(?!\+)|\*/")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[01][0-7]{2}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}
HINT, HINT_END = "/*+", "*/"

MOST_NESTED = 100
TOO_DEEP = (
    f"SQL is nested more than {MOST_NESTED} deep, by parentheses, CASE or NOT; name parts of it in a WITH, or use "
    f"IN (...) for many values"
)
_SIGNS = ("+", "-", "~", "!")


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: ``word``, ``quoted`` (a name in backquotes, ``text`` is without them), ``text``, ``number``, ``mark``,
    ``torn`` (a text or a name without an end), or ``end``: what follows the last token.

    ``start`` and ``end`` are places in the SQL. A name that begins with a digit is a ``number``.
    """

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_mark(self, *marks: str) -> bool:
        return self.kind == "mark" and self.text in marks

    @property
    def names(self) -> bool:
        return self.kind in ("word", "quoted")


def pieces_of(sql: str) -> Iterator[Token]:
    """Split SQL into all that it consists of: also ``blank`` and ``comment``, which may be nested."""
    at = 0
    while (match := _PIECE.match(sql, at)) is not None:
        start, at, kind = at, match.end(), str(match.lastgroup)
        if kind == "nested":
            kind, at = "comment", _comment_end(sql, at)
        text = match["quoted"].replace("``", "`") if kind == "quoted" else sql[start:at]
        yield Token(kind, text, start, at)


def _comment_end(sql: str, at: int) -> int:
    """Return where a comment ends, of which only the beginning was read; one without an end takes all the rest."""
    depth = 1
    while depth:
        found = _BRACKET.search(sql, at)
        if found is None:
            return len(sql)
        depth += -1 if found[0] == HINT_END else 1
        at = found.end()
    return at


def tokens_of(sql: str, *, hints: bool = False) -> list[Token]:
    """Split SQL into its words and marks, without blanks and comments; ``hints``: with those in ``/*+ */``."""
    found, in_hint = [], False
    for piece in pieces_of(sql):
        if not hints and (in_hint or piece.is_mark(HINT)):
            in_hint = not piece.is_mark(HINT_END)
        elif piece.kind not in ("blank", "comment"):
            found.append(piece)
    return found


class Cursor:
    """A place in a list of tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.at = tokens, 0
        self._end = Token("end", "", tokens[-1].end if tokens else 0, tokens[-1].end if tokens else 0)

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else self._end

    def next(self) -> Token:
        token = self.peek()
        self.at += token is not self._end
        return token

    def word(self, *words: str) -> bool:
        """Go past one of these words if it comes next."""
        found = self.peek().is_word(*words)
        self.at += found
        return found

    def mark(self, *marks: str) -> bool:
        """Go past one of these marks if it comes next."""
        found = self.peek().is_mark(*marks)
        self.at += found
        return found


def position(sql: str, at: int) -> str:
    """Name a place as Spark does, but both numbers from 1."""
    return f"line {sql.count(chr(10), 0, at) + 1}, position {at - sql.rfind(chr(10), 0, at)}"


def unquoted(text: str) -> str:
    """Return what a text in quotes says: backslashes escape, except in ``r'...'``, and a doubled quote is one.

    Raises:
        ValueError: an escape that names no character.
    """
    if text[0] in "rR":
        return text[2:-1]
    mark, inner = text[0], text[1:-1]
    return _ESCAPE.sub(lambda m: _escaped(m[1]), inner.replace(mark * 2, mark))


def _escaped(code: str) -> str:
    if code[0] in "uU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) == 3:
        return chr(int(code, 8))
    return _CONTROL.get(code, code)


def split_statements(sql: str) -> list[str]:
    """Split a file at its semicolons, except those in texts, quoted names and comments.

    Statements without words are left out. What Spark would not parse may be split anywhere.
    """
    found, start = [], 0
    for piece in pieces_of(sql):
        if piece.is_mark(";"):
            found.append(sql[start : piece.start])
            start = piece.end
    return [part.strip() for part in (*found, sql[start:]) if tokens_of(part)]


def split_at_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """Divide tokens at the commas outside of parentheses."""
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += nesting(token)
        if depth == 0 and token.is_mark(","):
            items.append([])
        else:
            items[-1].append(token)
    return items


def hide_literals(sql: str) -> str:
    """Return SQL without its texts, numbers and comments, which may hold values as well; names and hints stay."""
    instead = {"comment": " ", "number": MASK, "text": f"'{MASK}'", "torn": f"'{MASK}'"}
    return "".join(instead.get(piece.kind, sql[piece.start : piece.end]) for piece in pieces_of(sql))


def nesting(token: Token) -> int:
    """Return by how much the depth of parentheses changes after this token."""
    return token.is_mark("(", "[") - token.is_mark(")", "]")


def check_nesting(sql: str) -> None:
    """Refuse SQL that is nested so deeply that parsers, or what walks through their trees, would run out of stack.

    Raises:
        InvalidInputError: it is.
    """
    if nests_too_deeply(tokens_of(sql, hints=True)):
        raise InvalidInputError(TOO_DEEP)


def nests_too_deeply(tokens: Sequence[Token]) -> bool:
    depth = signs = 0
    for token in tokens:
        depth += nesting(token) + token.is_word("case") - token.is_word("end")
        signs = signs + 1 if token.is_word("not") or token.is_mark(*_SIGNS) else 0
        if depth + signs > MOST_NESTED:
            return True
    return False
