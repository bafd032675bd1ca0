"""The one grammar for partitions in text: ``dt=2026-11-18/region=eu`` and ``dt=2026-11-18,region=eu``.

Pairs ``key=value``, separated by ``/`` or ``,``. A value ends at the next separator followed by another ``key=``, so
``path=a/b`` and ``size=1,5`` are one pair each. Any value can be written in quotes, doubled inside: ``path='a/b=c'``.
Where no comma separates pairs, values may be percent-escaped as in Paimon's folder names: ``path=a%2Fb%3Dc``. Blanks
around an unquoted value are not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_paimon.core.errors import InvalidInputError

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")
_QUOTED = re.compile(r"""\s*("(?:[^"]|"")*"|'(?:[^']|'')*')\s*(?:([,/])|$)""")
_KEY = re.compile(r"\s*([^\s=,/]+)\s*=")
_NEXT = re.compile(r"([,/])\s*[^\s=,/]+\s*=")
_ONE_OF_SEVERAL = re.compile(r"""(?:=\s*(?:"(?:[^"]|"")*"|'(?:[^']|'')*')|[^;])+""")
_PLAIN = re.compile(r"[^\s%,/='\"]+")
_BLANKS = " \t\n\r\v\f"
_EDGE = re.compile(f"^[{_BLANKS}]+|[{_BLANKS}]+$")


def escape_path_name(text: str) -> str:
    """Percent-escape the characters that Paimon escapes in folder names (blanks and non-ASCII are not among them)."""
    return _ESCAPED.sub(lambda m: f"%{ord(m[0]):02X}", text)


def parse_partition_text(text: str) -> dict[str, str]:
    """Split the text of a partition into keys and values.

    Raises:
        InvalidInputError: the text is malformed, or a key occurs twice.
    """
    found: dict[str, str] = {}
    bare: set[str] = set()
    by_comma = False
    rest = text
    while rest.strip():
        match = _KEY.match(rest)
        if match is None or match[1] in found:
            raise InvalidInputError(
                f"Partition {text!r} is not of the form key=value/key=value or key=value,key=value, each key once. A "
                f"value that contains such a character goes in quotes: key='a/b=c'"
            )
        key, rest = match[1], rest[match.end() :]
        quoted = _QUOTED.match(rest)
        if quoted is not None:
            mark = quoted[1][0]
            found[key], separator = quoted[1][1:-1].replace(mark * 2, mark), quoted[2]
            rest = rest[quoted.end() :]
        else:
            following = _NEXT.search(rest)
            end, separator = (len(rest), None) if following is None else (following.start(), following[1])
            found[key], rest = rest[:end].strip(_BLANKS), rest[end + 1 :]
            bare.add(key)
        by_comma = by_comma or separator == ","
    if not found:
        raise InvalidInputError("A partition needs at least one key=value")
    if by_comma:
        return found
    return {k: _ESCAPE.sub(lambda m: chr(int(m[1], 16)), v) if k in bare else v for k, v in found.items()}


def split_partitions(text: str) -> list[str]:
    """Divide ``dt=1,hh=08;dt=2``, as Paimon's procedures take several, at the semicolons outside of quoted values."""
    return [part.strip() for part in _ONE_OF_SEVERAL.findall(text) if part.strip()]


def partition_text(values: Mapping[str, str]) -> str:
    """Return the slash form, which ``parse_partition_text`` parses; escaped only where necessary."""
    plain = "/".join(f"{k}={v}" for k, v in values.items())
    if all(_PLAIN.fullmatch(v) for v in values.values()):
        return plain
    try:
        if parse_partition_text(plain) == dict(values):
            return plain
    except InvalidInputError:
        pass
    return "/".join(f"{k}={_escaped(v)}" for k, v in values.items())


def quoted_partition(values: Mapping[str, str]) -> str:
    """Return the comma form with every value in quotes, as Paimon's procedures expect it."""
    return ",".join("{}='{}'".format(k, v.replace("'", "''")) for k, v in values.items())


def _escaped(value: str) -> str:
    return _EDGE.sub(lambda m: "".join(f"%{ord(c):02X}" for c in m[0]), escape_path_name(value))
