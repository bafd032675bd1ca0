from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let processes leave each other notes in a folder of the test's own, which is returned."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"airflow-paimon-{os.getuid()}"
