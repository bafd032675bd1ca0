"""CHAR(n) and VARCHAR(n) as Spark and Paimon's connector store and compare them; other engines store what they get.

A length counts characters (code points). Of a text that is too long only blanks at its end may be cut off; a shorter
CHAR is filled up with blanks. Two CHARs are equal if they are so when they are filled up. Pure.
"""

from __future__ import annotations

from airflow_paimon.core.format.types import AtomicType


def stored_text(text: str, data_type: AtomicType) -> str:
    """Return a text as a CHAR, VARCHAR or STRING column stores it.

    Raises:
        ValueError: it is too long.
    """
    if data_type.root not in ("CHAR", "VARCHAR"):
        return text
    (length,) = data_type.args
    if len(text) > length:
        if len(text.rstrip(" ")) > length:
            raise ValueError(f"longer than {length} characters")
        return text[:length]
    return text.ljust(length) if data_type.root == "CHAR" else text


def compared_text(text: str, length: int) -> str:
    """Return the form of a CHAR(length) that is the same for all texts that are equal to it."""
    return text.rstrip(" ").ljust(length)
