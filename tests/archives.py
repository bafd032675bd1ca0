"""Unpacks the archives of the tests, with any Python that the package supports."""

import tarfile
from pathlib import Path
from typing import Any


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder; Pythons older than 3.11.4 know no filter, and these archives are ours."""
    filtered: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **filtered)
