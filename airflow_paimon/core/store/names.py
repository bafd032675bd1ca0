"""Which paths below a store's root are valid. Names are literal: ``dt=12%3A00`` is the name of the folder as stored."""

from __future__ import annotations

from airflow_paimon.core.errors import InvalidInputError


def object_name(path: str) -> str:
    """Check the relative path of an object and give it back.

    Raises:
        InvalidInputError: it is empty, absolute, ends with ``/`` or has an empty, ``.`` or ``..`` part.
    """
    if not path:
        raise InvalidInputError("An object needs a path below the store's root, not ''")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidInputError(
            f"The path {path!r} must be relative to the store's root, without empty, '.' or '..' parts"
        )
    return path


def folder_name(path: str) -> str:
    """Check the relative path of a folder and give it back without a trailing ``/``; ``""`` is the root itself."""
    return object_name(path.removesuffix("/")) if path else ""


def inner_folder_name(path: str) -> str:
    """Check the relative path of a folder that must not be the root itself: what is deleted as a whole."""
    if not path:
        raise InvalidInputError("A store does not delete its own root; delete the folder through the store above it")
    return folder_name(path)


def join(root: str, path: str) -> str:
    """Put a checked relative path below ``root``; either may be empty."""
    return f"{root.rstrip('/')}/{path}" if root and path else root or path
