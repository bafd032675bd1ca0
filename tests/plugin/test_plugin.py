"""The plugin in Airflow: found by its entry point, listed in the navigation, and cheap for who doesn't show pages."""

import re
import subprocess
import sys
from importlib import metadata
from typing import Any

PROBE = """
import sys
from airflow.plugins_manager import AirflowPlugin
before = set(sys.modules)
import airflow_paimon.plugin.paimon_plugin
new = set(sys.modules) - before
heavy = ("fastapi", "jinja2", "pyarrow", "numpy", "fastavro", "sqlalchemy", "airflow_paimon.core.table.table",
         "airflow_paimon.hooks", "airflow_paimon.plugin.app")
print(sorted(m for m in new if m.startswith(heavy)))
"""


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_the_entry_point_leads_to_it() -> None:
    from airflow_paimon.plugin.paimon_plugin import PaimonPlugin

    points = metadata.distribution("airflow-paimon").entry_points.select(group="airflow.plugins")
    assert [point.load() for point in points] == [PaimonPlugin], "installed before the entry point: pip install -e ."


def test_airflow_shows_it_in_the_navigation(server: Any) -> None:
    from tests.plugin.conftest import token

    answer = server.get("/api/v2/plugins?limit=100", headers=token("admin")).json()
    (plugin,) = [p for p in answer["plugins"] if p["name"] == "paimon"]
    (view,) = plugin["external_views"]
    assert (view["href"], view["url_route"], view["destination"]) == ("paimon/", "paimon", "nav")
    assert [app["url_prefix"] for app in plugin["fastapi_apps"]] == ["/paimon"]
    errors = server.get("/api/v2/plugins/importErrors", headers=token("admin")).json()
    assert errors["total_entries"] == 0


def test_its_links_stay_below_airflows_base_url(server: Any) -> None:
    from fastapi.testclient import TestClient

    from tests.plugin.conftest import token

    client = TestClient(server.app, base_url="http://localhost", root_path="/airflow")
    page = client.get("/airflow/paimon/lake/d/t", headers=token("op")).text
    links = [link for link in re.findall(r' (?:href|src)="([^"]*)"', page) if not link.startswith(("?", "#", "data:"))]
    assert {"/airflow/", "/airflow/paimon/", "/airflow/paimon/lake/d/t"} <= set(links)
    assert all(link.startswith("/airflow/") for link in links), links
