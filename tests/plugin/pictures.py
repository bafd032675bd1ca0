"""What the pictures of the documentation show of a page: tabs, columns and legends, fields of the form and lines of the
approval, as of when they were taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tests.environment import REPO_ROOT

PATH = REPO_ROOT / "tests" / "plugin" / "pictures.json"
PICTURES = {
    "page": "flights?tab=history",
    "page-corrections": "flights?tab=corrections",
    "page-health": "flights?tab=health",
    "page-storage": "flights?tab=storage",
    "page-grid": "last_flights?tab=grid",
}
"""The table and tab of each picture of a table's page."""
SELECTOR = "nav.tabs a, main table:not(.grid) th, .legend, .meanings li"
"""What a picture shows of a page, whatever the table: tabs, columns, legends."""


def shown_in_airflow(name: str) -> list[str]:
    """Return what Airflow's own page shows: of the form its open fields and its sections, of the approval the tasks,
    and the lines and tables above the buttons.
    """
    from airflow_paimon.dags import correction_dag
    from airflow_paimon.runbooks.report import request_lines, what_ran
    from airflow_paimon.shown.diff_lists import counts, samples

    dag = correction_dag("pictures")
    if name == "form":
        fields = [dag.params.get_param(field).schema for field in dag.params]
        return list(dict.fromkeys(field.get("section") or field["title"] for field in fields))
    form = {"reason": "why", "partitions": ["p=1"], "sql": "SELECT 1", "engine": "embedded", "mode": "overwrite",
            "views": (), "function": None}  # fmt: skip
    rows = {"changed": [{"before": {"k": 1, "v": 1}, "after": {"k": 1, "v": 2}}]}
    partition = {"partition": "p=1", "added": 0, "changed": 1, "deleted": 0, "unchanged": 0, "unchanged_exact": True,
                 "samples": rows}  # fmt: skip
    details = {"partitions": [partition], "partitions_differing": 1, "key": ["k"]}
    lists = [counts(details), *(listing for _, _, listing in samples(details))]
    heads = [column[0].capitalize() for listing in lists for column in listing.columns]
    lines = re.findall(r"^- ([^:\n]+):", "\n".join([*request_lines(form, "ann"), what_ran(form, {})]), re.MULTILINE)
    return [*dag.task_ids, *lines, *heads]


def plain(texts: Sequence[str]) -> list[str]:
    return list(filter(None, (" ".join(text.split()) for text in texts)))


def record_picture(name: str, texts: Sequence[str]) -> None:
    """Keep what a new picture shows. ``make screenshots`` does."""
    known = json.loads(PATH.read_text())
    PATH.write_text(json.dumps(known | {name: plain(texts)}, indent=1, ensure_ascii=False) + "\n")
