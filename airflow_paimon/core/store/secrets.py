"""Which storage options are secrets, so that they can be masked wherever something is printed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_WORDS = ("key", "secret", "token", "password", "credential", "sas", "authorization")
_PLAIN = frozenset({"catalog-key", "lock-key-max-length"})
_SHORTEST = 6
"""Characters; masking shorter values would garble ordinary text."""


def is_secret_name(name: str) -> bool:
    """Whether an option's value must not be shown, judged by its name."""
    return name not in _PLAIN and any(word in name.lower() for word in _WORDS)


def secret_values(options: Mapping[str, Any] | None) -> list[str]:
    """Return the secret texts in storage options, nested ones too, the longest first."""
    found: list[str] = []
    for name, value in (options or {}).items():
        if isinstance(value, Mapping):
            found += secret_values(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST and is_secret_name(name):
            found.append(value)
            found += re.findall(r"\bsig=([^&\s]+)", value)  # a signed address is shown with other parameters around it
    return sorted(set(found), key=len, reverse=True)


def without_secrets(text: str, options: str) -> str:
    """Mask the secrets of storage options, given as JSON, in a text."""
    for secret in secret_values(json.loads(options)):
        text = text.replace(secret, "***")
    return text
