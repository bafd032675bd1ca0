"""The fields of the runbooks' trigger forms: how each kind is made, and those that several forms have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Param

from airflow_paimon import settings
from airflow_paimon.core.errors import InvalidInputError

__all__ = ["choice", "number", "shared", "switch", "text", "texts"]


def text(title: str, description: str, default: str | None = None, **schema: Any) -> Param:
    """Make a field with a text; without a default it may stay empty."""
    kind: Any = ["null", "string"] if default is None else "string"
    return Param(default, title=title, description=description, **{"type": kind, **schema})


def texts(title: str, description: str, **schema: Any) -> Param:
    """Make a field with texts, one a line, that may stay empty."""
    return Param(None, title=title, description=description, type=["null", "array"], items={"type": "string"}, **schema)


def switch(title: str, description: str, *, on: bool = False, **schema: Any) -> Param:
    """Make a field that is on or off."""
    return Param(on, title=title, description=description, type="boolean", **schema)


def choice(title: str, description: str, options: Sequence[str], default: str | None = None, **schema: Any) -> Param:
    """Make a field with one of several words; the first, if none is the default.

    Raises:
        InvalidInputError: there is no word to choose.
    """
    if not options:
        raise InvalidInputError(f"Field {title!r}: a choice needs at least one option")
    return Param(default or options[0], title=title, description=description, enum=list(options), **schema)


def number(title: str, description: str, default: int | None = None, minimum: int = 1, **schema: Any) -> Param:
    """Make a field with a whole number; without a default it may stay empty."""
    kind: Any = ["null", "integer"] if default is None else "integer"
    return Param(default, title=title, description=description, minimum=minimum, **{"type": kind, **schema})


def shared(*names: str, section: str | None = None) -> dict[str, Param]:
    """Make fields that several forms have."""
    within: dict[str, Any] = {} if section is None else {"section": section}
    found = {name: _SHARED[name] for name in names}
    return {n: Param(p.value, p.description, **p.schema, **within) for n, p in found.items()}


_SHARED = {
    "table": Param(type="string", minLength=3, title="Table", description="The table, as database.table"),
    "reason": text("Reason", "Why, or a ticket's number; kept with the branch."),
    "checks": text(
        "Checks",
        "Rules for the corrected rows, in YAML, in addition to those that the table requires. For example: "
        "[{not_null: [amount]}, {row_limits: {deleted: 0, changed: 10 %}}, {sql: SELECT * FROM diff WHERE amount < 0, "
        "severity: warn}]",
        format="multiline",
    ),
    "sample_rows": number(
        "Sample rows",
        "Rows that the diff shows for each partition and kind of change.",
        settings.SAMPLE,
        minimum=0,
        maximum=50,
    ),
    "notify": texts(
        "Notify",
        "Who is notified of the approval and its answer: names from the Paimon connection's extra notify, one a line. "
        "Empty: all of them.",
    ),
    "remind_before": text(
        "Remind before",
        "How long before the approval times out they are notified again, such as 2 h; or: never. Empty: the Paimon "
        "connection's setting, or a quarter of the time.",
    ),
    "approvers": texts(
        "Approvers",
        "Ids of the users who may answer, one a line, from the Paimon connection's approvers. Empty: all of those, or "
        "every user if it names none.",
    ),
    "four_eyes": switch(
        "Four-eyes rule",
        "Another person than the one who triggered this run must approve it. The Paimon "
        "connection or the table may always require this.",
    ),
    "revert_compaction": switch(
        "Revert conflicting compaction",
        "Tables without keys: if a compaction of main conflicts, revert it.",
    ),
    "keep_appended": switch(
        "Keep appended rows",
        "Tables without keys: keep rows that main received meanwhile in replaced partitions. Otherwise they are a "
        "conflict.",
    ),
    "on_overlap": choice(
        "Keys changed on both sides",
        "Tables with keys: when main has changed a key meanwhile that the branch changed, too, take the branch's row "
        "(branch) or leave main's (main); fail lists such keys.",
        ["fail", "branch", "main"],
    ),
    "writers_stopped": switch(
        "Writers are stopped",
        "Confirm that no writer of main stays open during the publish.",
    ),
    "wait_for_quiet": text(
        "Wait: open buckets",
        "How long to wait, right before main changes, until running Flink jobs leave the buckets alone that are to be "
        "replaced, such as 1 h. 0 s: fail immediately if one may have them open.",
        "1 h",
    ),
    "approval": switch(
        "Ask for approval", "Wait until the changes were reviewed and approved. Off: publish without approval.", on=True
    ),
    "undo_retention": text("Undo window", "How long the publish can be undone, such as 7 d; or: forever.", "7 d"),
    "branch": text("Branch", "Name of the new branch; empty: derived from this run. Letters, digits, '_' and '-'."),
    "keep_branch": switch(
        "Keep the branch",
        "Keep the branch and the tag of each table after publishing. They keep files: remove them later with the "
        "clean-up DAG.",
    ),
    "clean_up": switch(
        "Clean up when it fails or is rejected",
        "Delete the branch and the tag of each table then, unless a publish may have succeeded, or another job has "
        "written a branch. Off: they stay, and a failed task can be cleared instead of the whole run.",
        on=True,
    ),
    "tag_retention": text(
        "Keep the tag for",
        "The longest life of the tag on the snapshot that the run starts from, such as 30 d; or: forever. The branch "
        "protects its files itself.",
        "30 d",
    ),
    "paimon_conn_id": text("Paimon connection", "Airflow connection with the warehouse.", settings.CONN_ID),
    "spark_conn_id": text(
        "Spark connection", "Where Spark jobs run. Empty: the Paimon connection's setting, or the deployment's default."
    ),
    "in_spark": switch(
        "All in Spark",
        "Submit small diffs and checks to Spark, too. SQL always runs there.",
    ),
    "spark_conf": Param(
        {},
        type="object",
        title="Spark settings",
        description='Such as {"spark.executor.cores": "4"}, added to those of the Paimon connection.',
    ),
    "spark_options": Param(
        {},
        type="object",
        title="Spark options",
        description='Such as {"driver_memory": "4g", "num_executors": 8}. Options that could run code are '
        "refused here, unless the Paimon connection allows them.",
    ),
}
