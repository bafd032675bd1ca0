"""Addresses of the page: one spelling, and nothing of a name gets out of its place."""

import subprocess
import sys

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.shown.urls import TABS, table_page_url


def test_the_address_names_connection_database_and_table() -> None:
    assert table_page_url("lake", "sales.orders") == "/paimon/lake/sales/orders"
    assert table_page_url("lake", "sales.orders", tab="tags") == "/paimon/lake/sales/orders?tab=tags"
    assert table_page_url("lake", "s.o", base_url="https://x/airflow/") == "https://x/airflow/paimon/lake/s/o"


def test_a_branch_is_named_whichever_way_it_is_given() -> None:
    expected = "/paimon/lake/s/o?tab=history&branch=fix"
    assert table_page_url("lake", "s.o$branch_fix", tab="history") == expected
    assert table_page_url("lake", "s.o", tab="history", branch="fix") == expected


def test_what_has_a_meaning_in_addresses_is_escaped() -> None:
    assert table_page_url("a/b?c#d", "s.o&x") == "/paimon/a%2Fb%3Fc%23d/s/o%26x"
    assert table_page_url("lake", "s.o", branch="a&tab=b").endswith("?branch=a%26tab%3Db")


@pytest.mark.parametrize("table", ["orders", "../../x", "s./o"])
def test_what_is_not_a_table_is_refused(table: str) -> None:
    with pytest.raises(InvalidInputError, match="not of the form"):
        table_page_url("lake", table)


def test_a_tab_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no tab 'diff'; it has: " + ", ".join(TABS)):
        table_page_url("lake", "s.o", tab="diff")


def test_it_imports_neither_airflow_nor_the_app() -> None:
    code = (
        "import sys; import airflow_paimon.shown.urls; print([m for m in ('airflow', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
