"""Success files: Paimon's marks that a partition is complete (``_SUCCESS``), or that a tag was made."""

from __future__ import annotations

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import load_json_object

_CREATED, _MODIFIED = "creationTime", "modificationTime"


def success_file(before: bytes | None, now_ms: int, name: str) -> bytes:
    """Return the file as Java writes it. ``before``: what is there, whose creation time stays; ``name``: for messages.

    Raises:
        FormatError: ``before`` is no such file.
    """
    made = None if before is None else load_json_object(before, name).get(_CREATED)
    created = made if isinstance(made, int) else now_ms
    return f'{{\n  "{_CREATED}" : {created},\n  "{_MODIFIED}" : {now_ms}\n}}'.encode()


def modified_ms(data: bytes, name: str) -> int:
    """Return when the file was last written (epoch milliseconds).

    Raises:
        FormatError: it is no such file.
    """
    found = load_json_object(data, name).get(_MODIFIED)
    if not isinstance(found, int):
        raise FormatError(f"{name} is not a success file: it lacks {_MODIFIED}")
    return found
