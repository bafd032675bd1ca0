"""What rules said about a branch, as Markdown: what the approver reads before the diff."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.shown.listing import Listing, heads
from airflow_paimon.shown.markdown import counted, escape, table_of

_OUTCOMES = {"passed": "passed", "warned": "**warns**", "failed": "**failed**", "skipped": "not compared"}
_ROWS = 3
_LONGEST_ROW = 300


def render_checks(rules: Sequence[Mapping[str, Any]]) -> str:
    """Render the ``rules`` in the details of ``check_branch_data``; an empty text without any.

    Values are escaped, so that no text of the data becomes markup.
    """
    if not rules:
        return ""
    warned = sum(rule["outcome"] == "warned" for rule in rules)
    summary = f"**{counted(len(rules), 'check')} of the branch**" + (f", {warned} with a warning" if warned else "")
    listed = [(r["name"], _OUTCOMES.get(r["outcome"], escape(r["outcome"])), r["said"]) for r in rules]
    listing = Listing(title="checks", columns=heads("check | outcome: markdown | rows"), rows=listed)
    parts = [f"{summary}:", table_of(listing)]
    return "\n\n".join([*parts, *(_samples(rule) for rule in rules if rule["rows"])])


def _samples(rule: Mapping[str, Any]) -> str:
    texts = [json.dumps(row, ensure_ascii=False) for row in rule["rows"][:_ROWS]]
    shown = [text if len(text) <= _LONGEST_ROW else f"{text[: _LONGEST_ROW - 1]}…" for text in texts]
    return f"Some rows of {escape(rule['name'])}:\n\n" + "\n".join(f"- {escape(text)}" for text in shown)
