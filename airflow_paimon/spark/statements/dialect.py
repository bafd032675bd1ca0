"""Forms of Flink's and Paimon's SQL that Spark's parser doesn't know, put into those that it does.

``ALTER TABLE t SET (...)`` and ``RESET (...)``; ``t /*+ OPTIONS('scan.branch' = 'b') */``; ``VERSION AS OF b.tag``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.sql_text.tokens import HINT, HINT_END, Token, split_at_commas, tokens_of
from airflow_paimon.core.table.paths import MAIN

_VERSION = re.compile(r"[A-Za-z_](?:[\w.@:]|-(?!-))*")
_PLAIN = re.compile(r"[^`$'\\\s]+")
_BEFORE_TABLE = ("from", "into", "join", "overwrite", "table", "update", "using")
_BRANCH, _STATE = ("scan.branch", "branch"), ("scan.tag-name", "scan.snapshot-id", "scan.version")


def spark_text(text: str) -> str:
    """Return a statement as Spark parses it; what is not of these forms stays as it is.

    Raises:
        InvalidInputError: an OPTIONS that stands behind no table, or says more than a branch and a state of it.
    """
    parts = tokens_of(text, hints=True)
    edits = [*_of_alter(parts), *_of_versions(parts, text), *_of_hints(parts)]
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


_Edit = tuple[int, int, str]
"""From where to where a text stands, and what takes its place."""


def _of_alter(parts: Sequence[Token]) -> Iterator[_Edit]:
    if len(parts) < 4 or not (parts[0].is_word("alter") and parts[1].is_word("table")):
        return
    at = 3
    while at + 1 < len(parts) and parts[at].is_mark(".") and parts[at + 1].names:
        at += 2
    following = parts[at + 1 : at + 2]
    if parts[at : at + 1] and parts[at].is_word("set", "reset") and following and following[0].is_mark("("):
        word = "SET" if parts[at].is_word("set") else "UNSET"
        yield parts[at].start, parts[at].end, f"{word} TBLPROPERTIES"


def _of_versions(parts: Sequence[Token], text: str) -> Iterator[_Edit]:
    for before, word, last in zip(parts, parts[1:], parts[2:], strict=False):
        if before.is_word("version", "system_version") and word.is_word("as") and last.is_word("of"):
            following = next((p for p in parts if p.start >= last.end), None)
            name = _VERSION.match(text, following.start) if following is not None and following.names else None
            if name is not None and following is not None and not following.is_word("from"):
                found = name[0].rstrip(".")
                yield name.start(), name.start() + len(found), f"'{found}'"


def _of_hints(parts: Sequence[Token]) -> Iterator[_Edit]:
    for at, begin in enumerate(parts):
        if not begin.is_mark(HINT) or not parts[at + 1 : at + 2] or not parts[at + 1].is_word("options"):
            continue
        end = next((i for i in range(at, len(parts)) if parts[i].is_mark(HINT_END)), None)
        if end is None:
            continue
        table = parts[at - 1] if at else None
        if table is None or not _names_a_table(parts, at - 1):
            raise InvalidInputError(
                "OPTIONS(...) must follow the name of a table: FROM db.t /*+ OPTIONS('scan.branch' = 'b') */"
            )
        branch, version = _asked(parts[at + 2 : end], table.text)
        if branch is not None:
            name = table.text.replace("`", "``")
            yield table.start, table.end, f"`{name}$branch_{branch}`"
        yield begin.start, parts[end].end, "" if version is None else f"VERSION AS OF '{version}'"


def _names_a_table(parts: Sequence[Token], at: int) -> bool:
    """Whether a name is that of a table, with its database or without, and no alias: Spark takes one for a new name."""
    if not parts[at].names:
        return False
    while at > 1 and parts[at - 1].is_mark(".") and parts[at - 2].names:
        at -= 2
    before = parts[at - 1] if at else None
    return before is not None and (before.is_word(*_BEFORE_TABLE) or before.is_mark(",", "("))


def _asked(hint: Sequence[Token], table: str) -> tuple[str | None, str | None]:
    """Return the branch and the version that the parentheses of an OPTIONS name."""
    found = {}
    for pair in split_at_commas(hint[1:-1]):
        is_pair = [token.kind for token in pair] == ["text", "mark", "text"] and pair[1].is_mark("=")
        if not is_pair or not hint[0].is_mark("(") or not hint[-1].is_mark(")"):
            raise InvalidInputError(f"{table}: OPTIONS is not of the form OPTIONS('key' = 'value', ...)")
        found[pair[0].text[1:-1].strip().lower()] = pair[2].text[1:-1].strip()
    if unknown := sorted(found.keys() - {*_BRANCH, *_STATE}):
        raise InvalidInputError(
            f"{table}: OPTIONS({unknown[0]!r}) has no meaning here: a statement can name a branch (scan.branch) and a "
            f"state of it (scan.tag-name, scan.snapshot-id, scan.version); ALTER TABLE sets options of a table"
        )
    branches, versions = ([found[key] for key in keys if key in found] for keys in (_BRANCH, _STATE))
    if len(branches) > 1 or len(versions) > 1:
        raise InvalidInputError(f"{table}: OPTIONS names two branches or two states; give one")
    for name in (*branches, *versions):
        if not _PLAIN.fullmatch(name):
            raise InvalidInputError(f"{table}: OPTIONS: {name!r} is not the name of a branch or a state")
    return next((name for name in branches if name != MAIN), None), next(iter(versions), None)
