"""Tables whose files are placeholders."""

import pytest

from tests.core.tables import without_rows


@pytest.fixture(autouse=True)
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rows(monkeypatch)
