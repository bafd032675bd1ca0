"""What the DAG ``row_erasure`` checks, plans and reports; no function here changes a table or says the condition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow_paimon.core.erasure.report import report_markdown
from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.runbooks import advice
from airflow_paimon.runbooks.form import open_main, request_for
from airflow_paimon.runbooks.report import request_lines
from airflow_paimon.shown.markdown import code_block, counted, escape, titled_table, where_it_ran

_LISTED = 50
_PLANNED = (
    "condition_sha256", "branches", "ends", "stays", "conflicts", "consumers", "rows", "files", "unchecked",
    "unchecked_left_out",
)  # fmt: skip
_MARGIN = timedelta(minutes=1)
"""Clocks of the storage and of Airflow differ a little."""


def erasure_values(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the form asks of ``erase_rows``, by the names of its fields."""
    names = ("where", "expire_tags", "expire_history", "grace", "orphans_older_than", "writers_stopped", "skip_checks")
    return {name: params[name] for name in names}


def check_erasure(params: Mapping[str, Any]) -> dict[str, Any]:
    """Find the table: ``{"table", "condition", "skipped"}``, the condition without its values, and the names of the
    required checks that are skipped.

    Raises:
        NotFoundError: no such table. UnsafeOperationError: the table requires checks, and they are not to be skipped.
    """
    from airflow_paimon.core.publish.required_checks import refuse_without_checks
    from airflow_paimon.core.requests.requests import EraseRows
    from airflow_paimon.core.rules.required import required_rules
    from airflow_paimon.core.sql_text.tokens import hide_literals

    main = open_main(params).require()
    request = request_for(params, "erase_rows", **erasure_values(params))
    assert isinstance(request, EraseRows)
    refuse_without_checks(request, main, "erased")
    skipped = [rule.name for rule in required_rules(main)]
    return {"table": main.name, "condition": hide_literals(params["where"]), "skipped": skipped}


def plan_erasure(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a dry run, without its list of files.

    Raises:
        UnsafeOperationError, UnsupportedError: what the erasure would refuse, too.
    """
    from airflow_paimon.execution import run_here

    details = run_here(request_for(params, "erase_rows", dry_run=True, limit=1, **erasure_values(params))).details
    return {name: details[name] for name in _PLANNED}


def describe_plan(
    params: Mapping[str, Any], checked: Mapping[str, Any], found: Mapping[str, Any], asked_by: str | None
) -> dict[str, str]:
    """Render the plan for the approver: ``{"subject", "markdown"}``.

    Raises:
        UnsafeOperationError: a legal hold is on such rows: names the tags.
    """
    held = [h for h in (*found["stays"], *found["ends"]) if h["hold"] is not None]
    if held:
        names = "; ".join(
            f"tag {h['name']} of {h['branch']}: {h['hold']}" + (f", set by {h['held_by']}" if h["held_by"] else "")
            for h in held
        )
        raise UnsafeOperationError(
            f"{checked['table']}: such rows are under a legal hold, which wins ({names}); nothing was erased",
            details={"holds": [h["name"] for h in held]},
        )
    files = counted(found["files"]["with_rows"], "file")
    about = [
        f"{escape(checked['table'])}: {counted(found['rows'], 'stored row')} in {files}",
        f"Condition, without its values: {escape(checked['condition'])}; SHA-256 `{found['condition_sha256']}`",
    ]
    if checked["skipped"]:
        about.append(f"**Required checks are skipped**: {escape(', '.join(checked['skipped']))}")
    about += [f"**Not searched**: {one['path']}: {escape(one['reason'])}" for one in found["unchecked"][:_LISTED]]
    parts = ["\n".join([*(f"- {line}" for line in about), *request_lines(params, asked_by)])]
    branches = [(b["branch"], b["files"], b["rows"]) for b in found["branches"]]
    ends = [(_holder(h), h["lost"]) for h in found["ends"]]
    stays = [(_holder(h), h["way"]) for h in found["stays"]]
    conflicts = [(c["branch"], c["way"]) for c in found["conflicts"]]
    for title, columns, rows in (
        ("Files are rewritten without these rows", "branch | files: number | stored rows: number", branches),
        ("What ends, and what can't be read afterwards", "what | lost", ends),
        ("**What stays and keeps such rows: there is no proof until it has ended**", "what | way out", stays),
        ("Open branches whose publish will be a conflict", "branch | way out", conflicts),
    ):
        parts += titled_table(title, columns, rows, _LISTED)
    return {
        "subject": f"Erase {counted(found['rows'], 'stored row')} of {checked['table']} for good?",
        "markdown": "\n\n".join(parts),
    }


def _holder(holder: Mapping[str, Any]) -> str:
    first, last = holder["first_snapshot"], holder["last_snapshot"]
    span = f"snapshot {first}" if first == last else f"snapshots {first} to {last}"
    return f"{holder['kind']} {holder['name'] or ''} of {holder['branch']} ({span})".replace("  ", " ")


def check_approved(params: Mapping[str, Any], approved: Mapping[str, Any]) -> None:
    """Refuse if the erasure would end more than the approver has seen.

    Raises:
        ConflictError: names the tags.
    """
    more = _ends(plan_erasure(params)) - _ends(approved)
    if more:
        names = ", ".join(sorted(f"{name} of {branch}" for branch, name in more))
        raise ConflictError(
            f"{params['table']}: since it was approved, tags have come that the erasure would end, too: {names}; "
            f"nothing was erased. Clear task plan with its downstream, and have it approved again"
        )


def _ends(details: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(h["branch"], h["name"]) for h in details["ends"] if h["name"]}


def due(params: Mapping[str, Any], result: Mapping[str, Any]) -> datetime | None:
    """Return when what waits for its grace time, or for an age, can go; None: nothing does."""
    found = result["details"]
    began = datetime.fromisoformat(found["time"]) + timedelta(seconds=result["duration_s"])
    waits: list[timedelta] = []
    if any(h["kind"] == "trash" for h in found["references"]):
        waits.append(_duration(params, "grace"))
    if found["files"]["unreached"]:
        waits.append(_duration(params, "orphans_older_than"))
    return began + max(waits) + _MARGIN if waits else None


def _duration(params: Mapping[str, Any], name: str) -> timedelta:
    from airflow_paimon.core.table.options import requested_duration

    return requested_duration(params[name], name)


def certificate(
    params: Mapping[str, Any],
    checked: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    answer: Mapping[str, Any],
    asked_by: str | None,
) -> dict[str, Any]:
    """Return what an auditor keeps: ``{"complete", "subject", "record", "markdown"}``.

    ``runs``: the results of the erasures, the last one with the proof.
    """
    last = runs[-1]
    details = last["details"]
    record = {
        "table": checked["table"],
        "condition": checked["condition"],
        "condition_sha256": details["condition_sha256"],
        "reason": params["reason"],
        "requested_by": asked_by,
        "approved_by": answer["approved_by"],
        "approved_at": answer["answered_at"],
        "ran_on": [r.get("ran_on") for r in runs],
        "erased": [{"time": r["details"]["time"], **one} for r in runs for one in r["details"].get("erased", ())],
        "proven": details["proven"],
        "proven_at": details["time"],
        "state": details["state"],
        "files": details["files"],
        "references": details["references"],
        "unchecked": details["unchecked"],
        "not_searched": details["not_searched"],
        "version": last["version"],
    }
    complete = bool(details["complete"])
    rows = sum(one["rows"] for one in record["erased"])
    said = f"{counted(rows, 'row')} of {checked['table']} erased"
    subject = f"{said}: no stored file contains them any more" if complete else f"{said}, not complete yet"
    about = [
        *request_lines(params, asked_by),
        f"- Approved by: {escape(answer['approved_by']) if answer['approved_by'] else '*no approval was requested*'}",
        *(f"- {ran}" for ran in [where_it_ran(dict(zip(("erase", "prove"), runs, strict=False)))] if ran),
    ]
    markdown = "\n\n".join(
        (
            report_markdown(last).rstrip(),
            "## Who\n\n" + "\n".join(about),
            "## Record\n\n" + code_block(json.dumps(record, indent=2, ensure_ascii=False), "json"),
        )
    )
    return {"complete": complete, "subject": subject, "record": record, "markdown": markdown}


def message_of(found: Mapping[str, Any], checked: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return what notifiers hear at the end, with the keys that the message of an approval has."""
    empty = dict.fromkeys(("approved", "approved_by", "until"))
    return {**empty, "event": "erasure", "subject": found["subject"], "url": url, "table": checked["table"],
            "text": f"{found['subject']}. {url}"}  # fmt: skip


def advice_for(failed: str, error: Mapping[str, Any] | None) -> list[str]:
    """Say what helps when a task failed."""
    kind = error["kind"] if error else "error"
    match kind:
        case "conflict":
            return advice.advice_for("follow the message; then clear the task that failed with its downstream")
        case "unsafe" if error and error.get("holds"):
            return advice.advice_for("the hold has to end first. Then clear plan with its downstream")
        case "invalid-input" | "not-found" | "unsupported" | "unsafe" | "corrupt":
            return advice.advice_for(advice.against(error, failed))
        case _:
            return advice.advice_for(
                f"read the log of task {failed}. When its cause is over, clear it with its downstream: an erasure "
                f"continues where it stopped"
            )
