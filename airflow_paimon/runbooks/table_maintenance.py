"""What ``table_maintenance`` chooses and reports; no function here changes a table."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import conf
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.metrics import send_health
from airflow_paimon.runbooks.form import check_policy, request_for
from airflow_paimon.runbooks.maintenance_plan import (
    NOT_DUE,
    MaintenancePlan,
    group_small_jobs,
    parse_budget,
    plan_maintenance,
)
from airflow_paimon.shown.markdown import counted, escape, titled_table
from airflow_paimon.task_run import ERROR_KEY

if TYPE_CHECKING:
    from airflow_paimon.core.table.table import Table

STEPS = (
    "compact", "expire_partitions", "expire_branches", "trigger_tag_automatic_creation", "expire_tags",
    "expire_snapshots", "remove_orphan_files",
)  # fmt: skip
"""The tasks of each table, in their order."""
NO_EXPIRY = "the table has no option partition.expiration-time"
NO_AUTOMATIC_TAGS = "the table has no option tag.automatic-creation"
SKIPPED = "skipped"
"""XCom key of a skipped task: the reason."""
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
EVERY_DAY, NEVER = "every day", "never"

_WILD = re.compile(r"[*?\[]")
_LISTED = 200
_TOLD = 10
_UNHEALTHY = 60
_DATABASES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """What became of a table's steps; a step that is in none of the three was not reached.

    ``failed``: the error object, None where only the task's log says why.
    """

    table: str
    done: Mapping[str, Mapping[str, Any]]
    skipped: Mapping[str, str]
    failed: Mapping[str, Mapping[str, Any] | None]


def choose_tables(params: Mapping[str, Any], locked: Collection[str] = ()) -> dict[str, Any]:
    """Return the ``tables`` that the form names or whose names match, and the patterns that ``missed``.

    A name without ``*``, ``?`` and ``[`` is taken as it is, also when there is no such table: its own tasks say so.

    Raises:
        InvalidInputError: no name, one that is not ``db.table``, or more tables than Airflow maps.
        NotFoundError: no table matches.
    """
    given, exclude = _lines(params["tables"]), _lines(params["exclude"])
    if not given:
        raise InvalidInputError(
            "Tables is empty: write one name or pattern a line, such as sales.orders, sales.* or * for all tables"
        )
    patterns = [text for text in given if _WILD.search(text)]
    named = [_checked(text) for text in given if text not in patterns]
    check_policy(params, locked)
    hook = PaimonHook(params["paimon_conn_id"])
    found = _matching(hook, patterns, exclude) if patterns else []
    chosen = sorted({*found, *(name for name in named if not any(fnmatchcase(name, one) for one in exclude))})
    if not chosen:
        raise NotFoundError(_nothing(hook, given, exclude))
    if parse_budget(params["budget"]) is None:
        check_number(len(chosen), "match")
    missed = [p for p in patterns if not any(fnmatchcase(name, p) for name in found)]
    return {"tables": chosen, "missed": missed}


def check_number(tables: int, verb: str) -> None:
    """Refuse more tables than Airflow maps.

    Raises:
        InvalidInputError: there are more.
    """
    most = conf.getint("core", "max_map_length", fallback=1024)
    if tables > most:
        raise InvalidInputError(
            f"{tables:,} tables {verb}, and Airflow maps at most {most:,}: divide them among several DAGs by "
            f"patterns, or raise [core] max_map_length"
        )


def measure(params: Mapping[str, Any], names: Sequence[str], when: datetime) -> MaintenancePlan | None:
    """Judge the tables, side by side, and plan the night by it; None without a budget: all steps of all tables.

    Raises:
        InvalidInputError: a budget or an age is none, or more tables have something to do than Airflow maps.
    """
    from airflow_paimon.core.health.gather import HealthRules
    from airflow_paimon.core.health.table_health import read_healths
    from airflow_paimon.core.metadata_expiry.ages import time_before

    budget = parse_budget(params["budget"])
    if budget is None:
        return None
    now_ms = int(time.time() * 1000)
    rules = HealthRules(
        min_files=params["min_files"],
        most_runs=params["max_sorted_runs"],
        older_than_ms=time_before(params["older_than"] or None, now_ms, "older_than"),
        retain_min=params["retain_min"],
        retain_max=params["retain_max"],
    )
    reports = read_healths(open_tables(params["paimon_conn_id"], names), now_ms, rules)
    for report in reports:
        send_health(params["paimon_conn_id"], report.table, report.to_json())
    orphans = why_no_orphan_cleaning(params["orphan_day"], when) is None
    night = plan_maintenance(reports, budget, params, STEPS, orphans=orphans)
    check_number(len(night.tables), "have something to do")
    return night


def open_tables(paimon_conn_id: str, names: Sequence[str]) -> list[Table]:
    """Open tables by their names, those of a database at once; reads nothing of them."""
    from airflow_paimon.core.store.none import NoStore
    from airflow_paimon.core.table.table import Table

    catalog = PaimonHook(paimon_conn_id).get_catalog()
    found = []
    for database, pairs in groupby(sorted(name.split(".", 1) for name in names), key=itemgetter(0)):
        short = [name for _, name in pairs]
        for name, store in zip(short, catalog.locate(database, short), strict=True):
            where = NoStore(catalog.label) if store is None else store
            found.append(Table(where, f"{database}.{name}", catalog=catalog))
    return found


def why_not_planned(night: Mapping[str, Any] | None, step: str, name: str) -> str | None:
    """Say why a step of a table is left out of a night with a budget; ``night``: the plan as JSON, None without."""
    reason: str | None = night["skipped"].get(name, {}).get(step) if night else None
    return reason


def why_out_of_time(params: Mapping[str, Any], started: datetime | None, now: datetime) -> str | None:
    """Say that the time of the budget is over; None while it isn't, and with any other budget."""
    budget = parse_budget(params["budget"])
    if budget is None or budget.time is None or started is None or now - started < budget.time:
        return None
    return f"the budget of {params['budget'].strip()} since the run's start is used up; it waits for another night"


def plan_to_json(night: MaintenancePlan) -> dict[str, Any]:
    """Return a plan as JSON values for the tasks of the tables and the summary."""
    return {
        "measured": night.measured,
        "scores": {plan.table: plan.score for plan in night.tables},
        "skipped": {plan.table: dict(plan.skipped) for plan in night.tables},
        "waiting": [
            {"table": p.table, "score": p.score, "bytes": p.compact_bytes, "why": p.skipped["compact"]}
            for p in night.waiting
        ],
    }


def describe_maintenance(night: MaintenancePlan) -> list[str]:
    """Say what a night with a budget will do, a summary first."""
    lines = [f"{counted(night.measured, 'table')} measured, {len(night.tables):,} with something to do"]
    for plan in night.tables[:_LISTED]:
        steps = ", ".join(step for step in STEPS if step not in plan.skipped)
        lines.append(f"{plan.table}: {'unreadable' if plan.score is None else f'score {plan.score}'}: {steps}")
    return lines + [f"{plan.table}: no compaction: {plan.skipped['compact']}" for plan in night.waiting[:_LISTED]]


def _lines(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(text.strip() for text in texts if text.strip()))


def _checked(name: str) -> str:
    from airflow_paimon.core.table.paths import parse_identifier

    found = parse_identifier(name)
    if str(found) != f"{found.database}.{found.table}":
        raise InvalidInputError(f"{name!r} is not a table: write database.table, without a branch")
    return str(found)


def _matching(hook: PaimonHook, patterns: Sequence[str], exclude: Sequence[str]) -> list[str]:
    from airflow_paimon.core.table.table import matching_tables

    return [t.name for t in matching_tables(hook.get_catalog(), patterns, exclude)]


def _nothing(hook: PaimonHook, given: Sequence[str], exclude: Sequence[str]) -> str:
    from airflow_paimon.core.table.table import find_databases

    names = find_databases(hook.get_catalog())
    listed = ", ".join([*names[:_DATABASES], *(["..."] if len(names) > _DATABASES else [])])
    but = f" and is not excluded by {', '.join(exclude)}" if exclude else ""
    return (
        f"No table of connection {hook.paimon_conn_id!r} matches {', '.join(given)}{but}. Its databases are {listed}; "
        f"a pattern covers the whole name, such as {names[0]}.* or *"
    )


def why_not_compacted(params: Mapping[str, Any], name: str, *, retried: bool) -> str | None:
    """Say why no compaction is submitted for a table: by the form, by its kind, or as there is nothing to do.

    ``retried``: an earlier try may have compacted; the job counts what it did.

    Raises:
        PaimonError: the table is missing, or can't be read.
    """
    if not params["compact"]:
        return "switched off in the form"
    try:
        planned = _planned_compaction(params, name)
    except UnsupportedFeatureError as error:
        return error.message
    if params["dry_run"]:
        return (
            f"dry run: {counted(planned['files_before'], 'file')} in {counted(planned['partitions'], 'partition')} "
            f"would be rewritten"
        )
    return (
        None
        if planned["files_before"] or retried
        else "no partition has enough small files, and no bucket enough sorted runs"
    )


def _planned_compaction(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    from airflow_paimon.execution import run_here

    limits = {"min_files": params["min_files"], "max_sorted_runs": params["max_sorted_runs"]}
    return run_here(request_for({**params, "table": name}, "compact", **limits, dry_run=True)).details


def small_groups(params: Mapping[str, Any], names: Sequence[str], plan: Mapping[str, Any] | None) -> list[str]:
    """Return groups of tables whose compaction is small, each as names with commas; ``plan``: see ``plan_to_json``.

    A table alone in its group is left to its own task, and so is one that can't be planned, which says why. Where
    small work runs beside its task there are none.
    """
    from airflow_paimon.core.errors import PaimonError
    from airflow_paimon.core.requests.local_execution import ALL

    local = PaimonHook(params["paimon_conn_id"]).local_execution == ALL and not params["in_spark"]
    if local or params["dry_run"] or not params["compact"]:
        return []
    sizes: dict[str, int] = {}
    for name in names:
        if why_not_planned(plan, "compact", name) is not None:
            continue
        with suppress(PaimonError):
            sizes[name] = int(_planned_compaction(params, name)["bytes_before"])
    found = group_small_jobs({name: size for name, size in sizes.items() if size})
    return [",".join(members) for members in found if len(members) > 1]


def done_together(context: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the result of a table that was compacted with others, on the task's first try; None: it was not."""
    ti = context["ti"]
    if ti.try_number > 1:
        return None
    for index, group in enumerate(ti.xcom_pull(task_ids="group_small_tables") or ()):
        if name in group.split(","):
            found = ti.xcom_pull(task_ids="compact_together", map_indexes=index)
            failed = ti.xcom_pull(task_ids="compact_together", map_indexes=index, key=ERROR_KEY) or {}
            results = found["details"]["tables"] if found else failed.get("tables", ())
            return next((one for one in results if one["table"] == name and "error" not in one), None)
    return None


def why_no_automatic_tags(params: Mapping[str, Any], name: str) -> str | None:
    """Say why a table gets no automatic tags: it has no such option, or one that can't be followed.

    Raises:
        PaimonError: the table is missing, or can't be read.
    """
    from airflow_paimon.core.metadata_expiry.automatic_tags import automatic_tag_rules
    from airflow_paimon.core.table.options import TableOptions
    from airflow_paimon.core.table.tag_periods import NONE

    table = PaimonHook(params["paimon_conn_id"]).get_table(name)
    try:
        rules = automatic_tag_rules(TableOptions(table.schema().options), name)
    except (InvalidInputError, UnsupportedFeatureError) as error:
        return error.message
    return NO_AUTOMATIC_TAGS if rules.mode == NONE else None


def why_kept_by_server(params: Mapping[str, Any], name: str) -> str | None:
    """Say that a catalog's server keeps a table's metadata, and has to expire it; None: the table's storage has it.

    Raises:
        PaimonError: the table is missing.
    """
    keeper = PaimonHook(params["paimon_conn_id"]).get_table(name).store.keeper
    return None if keeper is None else f"{keeper} keeps the metadata of this table"


def why_no_partition_expiry(params: Mapping[str, Any], name: str) -> str | None:
    """Say why no partition of a table expires: its own options decide, and nobody has to approve that.

    Raises:
        PaimonError: the table is missing, or can't be read.
    """
    from airflow_paimon.core.partition_expiry.partition_expiry_plan import EXPIRATION_TIME

    schema = PaimonHook(params["paimon_conn_id"]).get_table(name).schema()
    if not schema.options.get(EXPIRATION_TIME, "").strip():
        return NO_EXPIRY
    return None if schema.partition_keys else "the table has no partitions"


def why_no_orphan_cleaning(day: str, when: datetime) -> str | None:
    """Say why orphan files stay on this day; None: they are removed."""
    today = DAYS[when.weekday()]
    if day in (EVERY_DAY, today):
        return None
    return "set to never in the form" if day == NEVER else f"orphan files are removed on {day.title()}"


def gather_outcomes(context: Mapping[str, Any], group: str, tables: Sequence[str]) -> list[TableOutcome]:
    """Read what became of each table's tasks in the mapped group."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})

    def found(key: str, state: str, index: int) -> dict[str, Any]:
        steps = [step for step in STEPS if states.get(f"{group}.{step}_{index}") == state]
        return {step: ti.xcom_pull(task_ids=f"{group}.{step}", key=key, map_indexes=index) for step in steps}

    return [
        TableOutcome(
            table=name,
            done=found("return_value", "success", index),
            skipped={step: why or "" for step, why in found(SKIPPED, "skipped", index).items()},
            failed=found(ERROR_KEY, "failed", index),
        )
        for index, name in enumerate(tables)
    ]


def summarize(
    nights: Sequence[TableOutcome], missed: Sequence[str], *, dry_run: bool, plan: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Sum up the run, as plain JSON values for the asset event: totals, each table, and what ``failed``, in words.

    ``freed_files`` and ``freed_bytes`` were deleted; ``waiting``: entries of the trash whose files go in a later run;
    ``expiring_soon``: branches, the first ones first. ``plan``: of a night with a budget (``plan_to_json``):
    ``measured`` tables, ``waiting_for_budget``, those whose compaction didn't fit, and the names of ``unhealthy`` ones
    among those with something to do (a score below 60, or unreadable).
    """
    rows = sorted((_figures(night) for night in nights), key=lambda row: (not row["failed"], -row["freed_bytes"]))
    summed = ("partitions", "snapshots", "tags", "branches", "compacted_files", "freed_files", "freed_bytes", "waiting")
    failed = [f"{row['table']}: {step}: {why}" for row in rows for step, why in row["failed"].items()]
    failed += [f"No table matches {pattern}" for pattern in missed]
    soon = [
        {"table": night.table, **{name: one[name] for name in ("branch", "owner", "expires_at")}}
        for night in nights
        for one in night.done.get("expire_branches", {}).get("details", {}).get("expiring_soon", ())
    ]
    soon.sort(key=lambda one: str(one["expires_at"]))
    return {
        "dry_run": dry_run,
        "tables": len(rows),
        "tables_failed": sum(bool(row["failed"]) for row in rows),
        **{name: sum(row[name] for row in rows) for name in summed},
        "by_table": rows[:_LISTED],
        "expiring_soon": soon[:_LISTED],
        "failed": failed[:_LISTED],
        **({} if plan is None else _measured(plan)),
    }


def _measured(plan: Mapping[str, Any]) -> dict[str, Any]:
    scores = {**plan["scores"], **{one["table"]: one["score"] for one in plan["waiting"]}}
    return {
        "measured": plan["measured"],
        "waiting_for_budget": plan["waiting"][:_LISTED],
        "unhealthy": [name for name, score in scores.items() if score is None or score < _UNHEALTHY][:_LISTED],
    }


def _figures(night: TableOutcome) -> dict[str, Any]:
    details = {step: result["details"] for step, result in night.done.items()}
    compacted = details.get("compact", {})
    tags = [details[step] for step in ("trigger_tag_automatic_creation", "expire_tags") if step in details]
    snapshots = details.get("expire_snapshots", {})
    orphans = details.get("remove_orphan_files", {})
    deleted = [one["deleted"] for one in (*tags, snapshots) if one]
    kinds = ("data_files", "changelog_files", "metadata_files")
    return {
        "table": night.table,
        "compacted_files": compacted.get("files_before", 0),
        "compacted_to": compacted.get("files_after", 0),
        "compacted_on": night.done.get("compact", {}).get("ran_on"),
        "partitions": details.get("expire_partitions", {}).get("partitions", 0),
        "snapshots": sum(one["snapshots"] for one in snapshots.get("expired", {}).values()),
        "tags": sum(len(names) for one in tags for names in one["expired"].values()),
        "branches": len(details.get("expire_branches", {}).get("expired", ())),
        "freed_files": sum(one[kind] for one in deleted for kind in kinds) + orphans.get("files", 0),
        "freed_bytes": sum(one["bytes"] for one in deleted) + orphans.get("bytes", 0),
        "waiting": snapshots.get("trash", {}).get("entries", 0),
        "skipped": dict(night.skipped),
        "failed": {
            step: f"{error['kind']}: {error['message']}" if error else "see its log"
            for step, error in night.failed.items()
        },
    }


_COUNTED = ("partitions", "snapshots", "tags", "branches", "freed_files")


def render_summary(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return one line and the Markdown of what :func:`summarize` found."""
    would = "would be " if found["dry_run"] else ""
    subject = (
        f"{counted(found['tables'], 'table')}, {found['tables_failed']} failed: "
        f"{counted(found['freed_files'], 'file')} with {found['freed_bytes']:,} bytes {would}deleted"
    )
    if "measured" in found:
        subject = f"{counted(found['measured'], 'table')} measured; worked on: {subject}"
    rows = [
        (
            row["table"],
            f"{row['compacted_files']:,} to {row['compacted_to']:,} ({row['compacted_on']})"
            if row["compacted_files"]
            else None,
            *(row[name] or None for name in (*_COUNTED, "freed_bytes")),
            _notes(row),
        )
        for row in found["by_table"]
    ]
    columns = (
        "table | files compacted | partitions: number | snapshots: number | tags: number | branches: number"
        " | files freed: number | bytes freed: number | notes: markdown"
    )
    soon = [[one[k] for k in ("table", "branch", "owner", "expires_at")] for one in found["expiring_soon"]]
    late = [(one["table"], one["score"], one["why"]) for one in found.get("waiting_for_budget", ())]
    parts = [escape(subject), *titled_table("", columns, rows)]
    if found["tables"] > len(rows):
        parts.append(f"and {counted(found['tables'] - len(rows), 'more table')}")
    parts += titled_table("These branches expire soon", "table | branch | owner | expires at", soon)
    parts += titled_table("These compactions wait for another night", "table | score: number | why", late)
    if found["waiting"]:
        parts.append(f"{counted(found['waiting'], 'snapshot or tag file')} wait in the trash for a later run.")
    return subject, "\n\n".join(parts)


def message_of(found: Mapping[str, Any], subject: str, url: str) -> dict[str, Any]:
    """Return what notifiers hear when a night is over, with the keys that the message of an approval has.

    ``failed``: in words; ``unhealthy``: with a budget, the tables with a score below 60 or that can't be read.
    """
    failed, unhealthy = found["failed"], found.get("unhealthy", [])
    parts = [subject]
    if failed:
        parts.append(f"failed: {'; '.join(failed[:_TOLD])}" + (" ..." if len(failed) > _TOLD else ""))
    if unhealthy:
        parts.append(f"unhealthy: {', '.join(unhealthy[:_TOLD])}" + (" ..." if len(unhealthy) > _TOLD else ""))
    empty = dict.fromkeys(("table", "approved", "approved_by", "until"))
    return {**empty, "event": "maintenance", "subject": subject, "url": url, "failed": failed, "unhealthy": unhealthy,
            "text": f"{'. '.join(parts)}. {url}"}  # fmt: skip


def _notes(row: Mapping[str, Any]) -> str:
    failed = [f"**{escape(step)} failed**: {escape(why)}" for step, why in row["failed"].items()]
    compact = row["skipped"].get("compact")
    compact = None if compact == NOT_DUE else compact
    tags = row["skipped"].get("trigger_tag_automatic_creation")
    tags = None if tags in (NOT_DUE, NO_AUTOMATIC_TAGS) else tags
    notes = [f"not compacted: {escape(compact)}"] if compact else []
    return "; ".join([*failed, *notes, *([f"no automatic tags: {escape(tags)}"] if tags else [])])
