"""The page as a browser gets it: who sees it, what the tabs say, and what a broken table shows."""

import pytest

from airflow_paimon.plugin.urls import TABS
from tests.plugin.conftest import SECRET, Get

T = "/paimon/lake/d/t"


@pytest.mark.parametrize("path", ["/paimon/", "/paimon/lake", "/paimon/lake/d", T, f"{T}?tab=files", "/paimon/x/y/z"])
def test_without_a_token_there_is_nothing(get: Get, path: str) -> None:
    answer = get(path, None)
    assert answer.status_code == 401
    assert "wrong rate" not in answer.text


@pytest.mark.parametrize("path", ["/paimon/", "/paimon/lake", "/paimon/lake/d", T, f"{T}?tab=branches"])
def test_who_may_not_read_the_connection_sees_nothing_of_it(get: Get, path: str) -> None:
    assert get(path, "op").status_code == 200
    answer = get(path, "viewer")
    assert answer.status_code == 403
    assert "wrong rate" not in answer.text


def test_the_lists(get: Get) -> None:
    first = get("/paimon/")
    assert 'href="/paimon/lake"' in first.text
    assert "elsewhere" not in first.text
    assert 'href="/paimon/lake/d"' in get("/paimon/lake").text
    tables = get("/paimon/lake/d").text
    assert 'href="/paimon/lake/d/t"' in tables
    assert "no_table" not in tables
    assert "unreadable" in get("/paimon/lake/e").text


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_opens_and_shows_no_secret(get: Get, tab: str) -> None:
    answer = get(f"{T}?tab={tab}")
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
