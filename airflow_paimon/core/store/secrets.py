"""Which storage options are secrets, so that whoever prints can blot them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = ("key", "secret", "token", "password", "credential", "sas")
_SHORTEST = 6
"""Characters; blotting out shorter values would garble ordinary text."""


def is_secret_name(name: str) -> bool:
    """Tell from an option's name whether its value must not be shown."""
    return any(word in name.lower() for word in _WORDS)


def secret_values(options: Mapping[str, Any] | None) -> list[str]:
    """Give the secret texts in storage options, nested ones too, the longest first."""
    found: list[str] = []
    for name, value in (options or {}).items():
        if isinstance(value, Mapping):
            found += secret_values(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST and is_secret_name(name):
            found.append(value)
    return sorted(set(found), key=len, reverse=True)
