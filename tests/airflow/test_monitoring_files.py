"""The dashboard and the alert rules in docs/monitoring, and the page about metrics: only what the code sends."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from airflow_paimon import metrics
from airflow_paimon.cli.main import parse
from airflow_paimon.core.requests.arguments import parse_arguments
from airflow_paimon.plugin.documents import render
from tests.environment import REPO_ROOT

FOLDER = REPO_ROOT / "docs" / "monitoring"
KNOWN = {f"airflow.{name}".replace(".", "_"): tags for name, tags in metrics.names().items()}
TIMED = {f"airflow.{metrics.PREFIX}{name}".replace(".", "_") for name in metrics.TIMINGS}
SELECTED = re.compile(r"(airflow_paimon_\w+)(?:\{([^}]*)\})?")


def expressions() -> list[tuple[str, str]]:
    """Each query with where it is."""
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    found = [(f"panel {p['title']}", t["expr"]) for p in dashboard["panels"] for t in p["targets"]]
    found += [(f"variable {v['name']}", v["query"]) for v in dashboard["templating"]["list"] if v["type"] == "query"]
    return found + [(f"alert {rule['alert']}", rule["expr"]) for rule in alerts()]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def test_queries_name_only_metrics_and_tags_that_are_sent() -> None:
    for where, query in expressions():
        used = SELECTED.findall(query)
        assert used, query
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
        for name, labels in used:
            assert name in KNOWN, f"{where}: no such metric"
            tags = {*KNOWN[name], *({"quantile"} if name in TIMED else ())}
            asked = set(re.findall(r"(\w+)=", labels))
            for grouping in re.findall(r"by \(([^)]*)\)", query):
                asked |= {label.strip() for label in grouping.split(",")}
            assert asked <= tags, f"{where}: {name} has no tag {asked - tags}"


def test_alerts_tell_only_what_their_query_keeps() -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        (kept,) = re.findall(r"by \(([^)]*)\)", rule["expr"])
        told = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert told <= {label.strip() for label in kept.split(",")}, rule["alert"]
        assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()


def test_alerts_link_to_a_place_of_a_page_and_their_commands_are_taken() -> None:
    for rule in alerts():
        page, place = rule["annotations"]["runbook_url"].removeprefix("https://AIRFLOW/paimon/_docs/").split("#")
        assert f'id="{place}"' in render(page, "").body, rule["alert"]
        for words in re.findall(
            r"python -m airflow_paimon (.*?) (?:shows|lists|rebuilds)", rule["annotations"]["description"]
        ):
            given = words.replace("{{ $labels.table }}", "db.t").split()
            assert parse_arguments(given[1], given[2:]) if given[0] == "job" else parse(given)


def test_the_dashboard_has_unique_panels_that_do_not_overlap() -> None:
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    assert (
        len({p["id"] for p in panels}) == len(panels) == len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels})
    )


def test_the_page_lists_every_metric() -> None:
    page = (REPO_ROOT / "docs" / "howto" / "monitoring.md").read_text()
    found = set()
    for prefix, table in re.findall(r"^\| `paimon\.(\w+\.)` \| \|\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL):
        found |= {prefix + name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert found == {*metrics.GAUGES, *metrics.COUNTERS, *metrics.TIMINGS}
