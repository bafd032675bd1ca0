"""Where a comment of Spark SQL ends."""

from __future__ import annotations

import re

_BRACKET = re.compile(r"/\*(?!\+)|\*/")


def comment_end(sql: str, at: int) -> int:
    """Return where a comment ends, of which only the beginning was read; one without an end takes all the rest."""
    depth = 1
    while depth:
        found = _BRACKET.search(sql, at)
        if found is None:
            return len(sql)
        depth += -1 if found[0] == "*/" else 1
        at = found.end()
    return at
