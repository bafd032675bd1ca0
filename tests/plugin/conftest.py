"""The page in Airflow's real API server app, in this process: its routing, its auth manager, its metadata database."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.core.chain.tables import make_stale_chain
from tests.core.tables import append, make_table
from tests.core.tables import run as operate
from tests.strict_metadata import damaged_on_purpose

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

SECRET = "hunter2-very-secret"
Get = Callable[..., Any]


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse: d.t with a branch and a publish, d.c a chain table, e for damaged ones, a folder without a table."""
    folder = tmp_path_factory.mktemp("page") / "wh"
    table = make_table(folder)
    append(table, "1", rows=1200)
    append(table, "2", bucket=1)
    operate(table, "create_tag", tag="before", time_retained="7 d")
    who = {"owner": "me", "reason": "wrong rate", "retention": "2 h", "protected": True}
    operate(table, "create_branch", branch="fix", tag="before", **who)
    operate(table, "create_branch", branch="done", tag="before", owner="own_fix/published", reason="wrong day")
    append(table.branch("done"), "1", rows=7)
    operate(table, "merge_branch", branch="done", approved_by="ann", operation_id="publish-1")
    append(table, "3", rows=5)
    append(table.branch("fix"), "1", rows=30)
    make_stale_chain(folder)
    broken = make_table(folder, "e.broken")
    append(broken, "1")
    broken.store.replace("snapshot/snapshot-1", b"{")
    (folder / "d.db" / "no_table").mkdir()
    damaged_on_purpose(folder / "e.db")  # other tests damage tables in there as well
    return folder


@pytest.fixture(scope="session")
def server(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[TestClient]":
    """Airflow's app with the plugin that its entry point names, and three users: admin, op and viewer."""
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from airflow.utils import db
    from fastapi.testclient import TestClient

    db.initdb()
    secrets = {"storage_options": json.dumps({"client_secret": SECRET})}
    os.environ["AIRFLOW_CONN_LAKE"] = json.dumps(
        {"conn_type": "paimon", "password": SECRET, "extra": {"warehouse": str(lake), **secrets}}
    )
    os.environ["AIRFLOW_CONN_ELSEWHERE"] = json.dumps({"conn_type": "http", "host": "example.org"})
    os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = "a secret that is only for tests, and long enough for sha512 of jwt"
    purge_cached_app()
    with TestClient(create_app(apps="core"), base_url="http://localhost", follow_redirects=False) as client:
        yield client
    for name in ("AIRFLOW_CONN_LAKE", "AIRFLOW_CONN_ELSEWHERE", "AIRFLOW__API_AUTH__JWT_SECRET"):
        del os.environ[name]
    purge_cached_app()


def token(role: str | None) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    if role is None:
        return {}
    made = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"the-{role}", role=role))
    return {"Authorization": f"Bearer {made}"}


@pytest.fixture
def get(server: "TestClient") -> Get:
    """Ask for an address as a user of a role; waits while the page says that it is still reading."""

    def ask(path: str, role: str | None = "op") -> Any:
        answer = server.get(path, headers=token(role))
        until = time.monotonic() + 300
        while 'http-equiv="refresh"' in answer.text and time.monotonic() < until:
            answer = server.get(path, headers=token(role))
        return answer

    return ask
