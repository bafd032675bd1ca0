"""The one grammar for partitions in text: ``dt=2026-11-18/region=eu`` and ``dt=2026-11-18,region=eu``.

Pairs ``key=value``, separated by ``/`` or ``,``. A value ends at the next separator followed by another ``key=``, so
``path=a/b`` and ``size=1,5`` are one pair each. Any value can be written in quotes, doubled inside: ``path='a/b=c'``;
so can a key, in backticks. Outside of quotes ``__DEFAULT_PARTITION__`` is null, blanks around a value are not part of
it, and where no comma separates pairs, values may be percent-escaped as in Paimon's folder names: ``path=a%2Fb%3Dc``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from airflow_paimon.core.errors import InvalidInputError

DEFAULT_PARTITION = "__DEFAULT_PARTITION__"

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")
_QUOTED = re.compile(r"""\s*("(?:[^"]|"")*"|'(?:[^']|'')*')\s*(?:([,/])|$)""")
_COLUMN = r"(?:`(?:[^`]|``)+`|[^\s=,/`][^\s=,/]*)"
_KEY = re.compile(rf"\s*({_COLUMN})\s*=")
_NEXT = re.compile(rf"([,/])\s*{_COLUMN}\s*=")
_ONE_OF_SEVERAL = re.compile(r"""(?:(?<![^\s,/;])`(?:[^`]|``)+`(?=\s*=)|=\s*(?:"(?:[^"]|"")*"|'(?:[^']|'')*')|[^;])+""")
_BLANKS = " \t\n\r\v\f"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NEVER_BARE = re.compile(
    rf"""^$|^\s|\s$|;|(?:^|=\s*)['"]|[\s,/]`|{_ESCAPE.pattern}|{_CONTROL.pattern}|^{DEFAULT_PARTITION}$"""
)
_BARE_KEY = re.compile(r"""[^\s=,/;'"`%]+""")


def escape_path_name(text: str) -> str:
    """Percent-escape the characters that Paimon escapes in folder names (blanks and non-ASCII are not among them)."""
    return _ESCAPED.sub(lambda m: f"%{ord(m[0]):02X}", text)


def parse_partition_text(text: str) -> dict[str, str | None]:
    """Split the text of a partition into keys and values; None is null.

    Raises:
        InvalidInputError: the text is malformed, or a key occurs twice.
    """
    found: dict[str, str | None] = {}
    bare: dict[str, str] = {}
    by_comma = False
    rest = text
    while rest.strip():
        match = _KEY.match(rest)
        text_of_key = "" if match is None else match[1]
        key = text_of_key[1:-1].replace("``", "`") if text_of_key[:1] == "`" else text_of_key
        if match is None or key in found:
            raise InvalidInputError(
                f"Partition {text!r} is not of the form key=value/key=value or key=value,key=value, each key once. A "
                f"value that contains such a character goes in quotes: key='a/b=c'"
            )
        rest = rest[match.end() :]
        quoted = _QUOTED.match(rest)
        if quoted is not None:
            mark = quoted[1][0]
            found[key], separator = quoted[1][1:-1].replace(mark * 2, mark), quoted[2]
            rest = rest[quoted.end() :]
        else:
            following = _NEXT.search(rest)
            end, separator = (len(rest), None) if following is None else (following.start(), following[1])
            found[key] = bare[key] = rest[:end].strip(_BLANKS)
            rest = rest[end + 1 :]
        by_comma = by_comma or separator == ","
    if not found:
        raise InvalidInputError("A partition needs at least one key=value")
    for key, value in bare.items():
        plain = value if by_comma else _ESCAPE.sub(lambda m: chr(int(m[1], 16)), value)
        found[key] = None if value == DEFAULT_PARTITION else plain
    return found


def split_partitions(text: str) -> list[str]:
    """Divide ``dt=1,hh=08;dt=2``, as Paimon's procedures take several, at the semicolons outside of quoted values."""
    return [part.strip() for part in _ONE_OF_SEVERAL.findall(text) if part.strip()]


def partition_text(values: Mapping[str, str | None]) -> str:
    """Return the slash form, which ``parse_partition_text`` parses; None is null. Quoted only where necessary."""
    return _joined("/", values, lambda v: _quoted(v) if _NEVER_BARE.search(v) or _NEXT.search(v) else v)


def quoted_partition(values: Mapping[str, str | None]) -> str:
    """Return the comma form with every value in quotes, as Paimon's procedures expect it; None is null."""
    return _joined(",", values, _in_quotes)


def _joined(separator: str, values: Mapping[str, str | None], shown: Callable[[str], str]) -> str:
    pairs = ((k, DEFAULT_PARTITION if v is None else shown(v)) for k, v in values.items())
    keyed = ((k if _BARE_KEY.fullmatch(k) else "`" + k.replace("`", "``") + "`", v) for k, v in pairs)
    return separator.join(f"{key}={value}" for key, value in keyed)


def _quoted(value: str) -> str:
    """Control characters are escaped: they would break lines, or reach a terminal."""
    if _CONTROL.search(value) is None:
        return _in_quotes(value)
    escaped = "".join(c if c.isalnum() or ord(c) > 255 else f"%{ord(c):02X}" for c in value)
    return escaped if escaped == escaped.strip() else _in_quotes(value)


def _in_quotes(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
