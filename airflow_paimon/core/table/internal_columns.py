"""Names of columns that we add to a table's rows while they are read and written."""

from __future__ import annotations

INTERNAL_PREFIX = "_KEY__KEY_"
"""How they begin. Paimon refuses columns that begin with ``_KEY_``, which a file has before the names of its keys: this
would be of a key that it refuses.
"""


def internal_column(name: str) -> str:
    """Return the name of a column that neither a table nor one of its files has."""
    return INTERNAL_PREFIX + name
