"""The page over a warehouse on S3: the API server reads it with the connection's keys, which no page shows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.shown.urls import TABS
from tests.core.tables import COLUMNS, append, overwrite
from tests.core.tables import run as operate
from tests.plugin.conftest import Get
from tests.plugin.test_page import texts
from tests.s3_server import KEY, REGION, SECRET, make_bucket, require_keys, s3_server, storage_options

pytestmark = pytest.mark.airflow

T = "/paimon/s3lake/d/t"


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[str, str]]:
    """A warehouse with d.t on an S3 server, and the server's endpoint."""
    with s3_server() as endpoint:
        warehouse, options = f"s3://{make_bucket(endpoint)}/lake", storage_options(endpoint)
        table = create_table(warehouse, "d.t", COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"],
                             options={"bucket": "2"}, storage_options=options)  # fmt: skip
        append(table, "1", rows=1200)
        append(table, "2", rows=3)
        operate(table, "create_tag", tag="before", storage_options=options)
        operate(table, "create_branch", branch="fix", tag="before", owner="me", storage_options=options)
        overwrite(table, "2", rows=7)
        yield warehouse, endpoint


@pytest.fixture(autouse=True)
def connection(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    extra = {"warehouse": place[0], "endpoint": place[1], "region": REGION}
    connect(monkeypatch, "S3LAKE", SECRET, extra)
    return extra


def connect(monkeypatch: pytest.MonkeyPatch, name: str, secret: str, extra: dict[str, Any]) -> None:
    value = {"conn_type": "paimon", "login": KEY, "password": secret, "extra": extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(value))


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.every(3)
def test_every_tab_opens_and_shows_no_key(get: Get, tab: str) -> None:
    answer = get(f"{T}?tab={tab}")
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    assert KEY not in answer.text


def test_it_shows_what_the_table_on_s3_holds(get: Get) -> None:
    assert "d" in texts(get("/paimon/s3lake").text).split()
    listed = texts(get("/paimon/s3lake/d").text)
    assert " t " in listed
    assert "1,207" in listed
    shown = texts(get(f"{T}?tab=partitions").text)
    assert "dt=1 1,200 1 11 B" in shown
    assert "dt=2 7 1 11 B" in shown
    assert "dt=2 3 1 11 B" in texts(get(f"{T}?tab=partitions&branch=fix").text)
    assert "fix nothing new me" in texts(get(f"{T}?tab=branches").text)


def test_a_bucket_that_is_not_there_is_named(
    get: Get, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any]
) -> None:
    connect(monkeypatch, "S3WRONG", SECRET, {**connection, "warehouse": "s3://no-such-bucket/lake"})
    answer = get("/paimon/s3wrong/d/t")
    assert answer.status_code == 404
    assert "The bucket 'no-such-bucket'" in texts(answer.text)
    assert "does not exist" in texts(answer.text)
    assert SECRET not in answer.text


def test_a_connection_sees_only_what_its_own_keys_and_endpoint_give(
    get: Get, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any]
) -> None:
    """The same bucket and path, which the first connection has just read: on another server, then with wrong keys."""
    with s3_server() as elsewhere:
        make_bucket(elsewhere, connection["warehouse"].split("/")[2])
        connect(monkeypatch, "S3ELSEWHERE", SECRET, {**connection, "endpoint": elsewhere})
        assert "1,200" in get(f"{T}?tab=partitions").text
        answer = get("/paimon/s3elsewhere/d/t?tab=partitions")
        assert answer.status_code == 404
        assert "1,200" not in answer.text
        assert "1,207" not in texts(get("/paimon/s3elsewhere").text)
    assert "1,200" in get(f"{T}?tab=partitions").text
    require_keys(connection["endpoint"])  # the last test here: the server refuses every key from now on
    connect(monkeypatch, "S3WRONG", "another-secret-value", connection)
    answer = get("/paimon/s3wrong/d/t?tab=partitions")
    assert "1,200" not in answer.text
    assert "another-secret-value" not in answer.text
    assert "key" in texts(answer.text).lower()
