"""What is printed: values and names come from tables, and must not steer the terminal that shows them."""

from __future__ import annotations

import re

_STEERS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
"""Controls but for line feed and tab, marks that turn the direction of what follows, and halves of characters."""


def printable(text: str) -> str:
    """Return a text with such characters spelled out, as JSON does: ``\\u001b``. JSON stays the same JSON."""
    return _STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
