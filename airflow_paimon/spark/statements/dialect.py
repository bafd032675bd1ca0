"""Forms of Flink's and Paimon's SQL that Spark's parser doesn't know, put into those that it does.

``ALTER TABLE t SET (...)`` and ``RESET (...)``; ``t /*+ OPTIONS('scan.branch' = 'b') */``; ``VERSION AS OF b.tag``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.sql_comments import comment_end

_PART = re.compile(
    r"""(?P<skip>\s+|--[^\r\n]*)
    |/\*\+\s*OPTIONS\s*\((?P<hint>(?:[^*]|\*(?!/))*)\)\s*\*/
    |(?P<comment>/\*)
    |(?P<text>[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |`(?P<quoted>(?:[^`]|``)+)`
    |(?P<word>\w+)
    |(?P<torn>['"`].*)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_PAIR = re.compile(r"""\s*(['"])(?P<key>[^'"]+)\1\s*=\s*(['"])(?P<value>[^'"]*)\3\s*(?:,|$)""")
_VERSION = re.compile(r"[A-Za-z_](?:[\w.@:]|-(?!-))*")
_PLAIN = re.compile(r"[^`$'\\\s]+")
_BEFORE_TABLE = ("from", "into", "join", "overwrite", "table", "update", "using")
_BRANCH, _STATE = ("scan.branch", "branch"), ("scan.tag-name", "scan.snapshot-id", "scan.version")


@dataclass(frozen=True, slots=True)
class _Part:
    """``text``: of a name without its backquotes, of a hint what stands in its parentheses."""

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    @property
    def names(self) -> bool:
        return self.kind in ("word", "quoted")


def spark_text(text: str) -> str:
    """Return a statement as Spark parses it; what is not of these forms stays as it is.

    Raises:
        InvalidInputError: an OPTIONS that stands behind no table, or says more than a branch and a state of it.
    """
    parts = list(_parts(text))
    edits = [*_of_alter(parts), *_of_versions(parts, text), *_of_hints(parts)]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


_Edit = tuple[int, int, str]
"""From where to where a text stands, and what takes its place."""


def _parts(text: str) -> Iterator[_Part]:
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        assert found is not None
        start, at = at, found.end()
        kind = str(found.lastgroup)
        if kind == "comment":
            at = comment_end(text, at)
        elif kind != "skip":
            yield _Part(kind, found[kind].replace("``", "`") if kind == "quoted" else found[kind], start, at)


def _of_alter(parts: Sequence[_Part]) -> Iterator[_Edit]:
    if len(parts) < 4 or not (parts[0].is_word("alter") and parts[1].is_word("table")):
        return
    at = 3
    while at + 1 < len(parts) and parts[at].text == "." and parts[at + 1].names:
        at += 2
    following = parts[at + 1 : at + 2]
    if parts[at : at + 1] and parts[at].is_word("set", "reset") and following and following[0].text == "(":
        word = "SET" if parts[at].is_word("set") else "UNSET"
        yield parts[at].start, parts[at].end, f"{word} TBLPROPERTIES"


def _of_versions(parts: Sequence[_Part], text: str) -> Iterator[_Edit]:
    for before, word, last in zip(parts, parts[1:], parts[2:], strict=False):
        if before.is_word("version", "system_version") and word.is_word("as") and last.is_word("of"):
            following = next((p for p in parts if p.start >= last.end), None)
            name = _VERSION.match(text, following.start) if following is not None and following.names else None
            if name is not None and following is not None and not following.is_word("from"):
                found = name[0].rstrip(".")
                yield name.start(), name.start() + len(found), f"'{found}'"


def _of_hints(parts: Sequence[_Part]) -> Iterator[_Edit]:
    for at, hint in enumerate(parts):
        if hint.kind != "hint":
            continue
        table = parts[at - 1] if at else None
        if table is None or not _names_a_table(parts, at - 1):
            raise InvalidInputError(
                "OPTIONS(...) stands behind the name of a table: FROM db.t /*+ OPTIONS('scan.branch' = 'b') */"
            )
        branch, version = _asked(hint.text, table.text)
        if branch is not None:
            yield table.start, table.end, f"`{table.text}$branch_{branch}`"
        yield hint.start, hint.end, "" if version is None else f"VERSION AS OF '{version}'"


def _names_a_table(parts: Sequence[_Part], at: int) -> bool:
    """Whether a name is that of a table, with its database or without, and no alias: Spark takes one for a new name."""
    if not parts[at].names:
        return False
    while at > 1 and parts[at - 1].text == "." and parts[at - 2].names:
        at -= 2
    before = parts[at - 1] if at else None
    return before is not None and (before.is_word(*_BEFORE_TABLE) or (before.kind == "mark" and before.text in ",("))


def _asked(hint: str, table: str) -> tuple[str | None, str | None]:
    """Return the branch and the version that an OPTIONS names."""
    found, at = {}, 0
    while at < len(hint.rstrip()):
        pair = _PAIR.match(hint, at)
        if pair is None:
            raise InvalidInputError(f"{table}: OPTIONS({hint}) is not of the form 'key' = 'value', ...")
        found[pair["key"].strip().lower()] = pair["value"].strip()
        at = pair.end()
    if unknown := sorted(found.keys() - {*_BRANCH, *_STATE}):
        raise InvalidInputError(
            f"{table}: OPTIONS({unknown[0]!r}) has no meaning here: a statement can name a branch (scan.branch) and a "
            f"state of it (scan.tag-name, scan.snapshot-id, scan.version); ALTER TABLE sets options of a table"
        )
    branches, versions = ([found[key] for key in keys if key in found] for keys in (_BRANCH, _STATE))
    if len(branches) > 1 or len(versions) > 1:
        raise InvalidInputError(f"{table}: OPTIONS({hint}) names two branches or two states; give one")
    for name in (*branches, *versions):
        if not _PLAIN.fullmatch(name):
            raise InvalidInputError(f"{table}: OPTIONS({hint}): {name!r} is no name of a branch or a state")
    return next((name for name in branches if name != MAIN), None), next(iter(versions), None)
