"""The fields of the runbooks' trigger forms: how each kind is made, and those that several forms have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Param

from airflow_paimon import settings
from airflow_paimon.core.errors import InvalidInputError

__all__ = ["choice", "number", "shared", "shared_by_undos", "switch", "text", "texts"]


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
    return _made(_SHARED, names, section)


def shared_by_undos(*names: str, section: str | None = None) -> dict[str, Param]:
    """Make fields that the forms of undos have."""
    return _made(_SHARED | _UNDO, names, section)


def _made(known: Mapping[str, Param], names: Sequence[str], section: str | None) -> dict[str, Param]:
    within: dict[str, Any] = {} if section is None else {"section": section}
    found = {name: known[name] for name in names}
    return {n: Param(p.value, p.description, **p.schema, **within) for n, p in found.items()}


_SHARED = {
    "table": Param(type="string", minLength=3, title="Table", description="The table, as database.table"),
    "reason": text("Reason", "Why, or a ticket's number; kept with the branch."),
    "checks": text(
        "Checks",
        "Rules that the corrected rows must keep, in YAML, besides those that the table requires. For example: "
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
        "Who hears that the approval waits, and who answered it: names from the Paimon connection's extra notify, one "
        "a line. Left empty: all of them.",
    ),
    "remind_before": text(
        "Remind before",
        "How long before the approval runs out they hear again, such as 2 h; or: never. Left empty: the Paimon "
        "connection's, or a quarter of the time.",
    ),
    "approvers": texts(
        "Approvers",
        "Ids of the users who may answer, one a line; some of the Paimon connection's approvers. Left empty: all of "
        "those, or everybody if it names none.",
    ),
    "four_eyes": switch(
        "Four eyes", "Whoever triggered this run can't approve it. The Paimon connection may ask for it always."
    ),
    "rewrite": switch(
        "Take back a compaction",
        "Tables without keys: when a compaction of main is in the way, take it back.",
    ),
    "keep_appended": switch(
        "Keep appended rows",
        "Tables without keys: rows that main got meanwhile in partitions that are replaced stay beside the new ones; "
        "otherwise they are a conflict.",
    ),
    "writers_stopped": switch(
        "Writers are stopped",
        "Promise that no writer of main stays open over the publish: then sequence numbers don't matter.",
    ),
    "paimon_conn_id": text("Paimon connection", "Airflow connection with the warehouse.", settings.CONN_ID),
    "spark_conn_id": text(
        "Spark connection", "Where Spark jobs run. Empty: as the Paimon connection says, or the deployment's default."
    ),
    "in_spark": switch(
        "All in Spark",
        "Submit diffs and checks to Spark, too, even if they are small. What SQL says is computed there anyway.",
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
        description='Such as {"driver_memory": "4g", "num_executors": 8}. What could run code is refused here; the '
        "Paimon connection may open it.",
    ),
}
_UNDO = {
    "writers_stopped": switch(
        "Writers are stopped",
        "Promise that no writer of main stays open over the undo: needed where a table with dynamic buckets "
        "(bucket=-1) loses the keys that the publish brought.",
    ),
    "reason": text("Reason", "Shown to the approver."),
    "approval": switch(
        "Ask for approval",
        "Wait until somebody has looked at what would change and approved it. Where the Paimon connection asks for "
        "four eyes, it is asked always.",
        on=True,
    ),
    "skip_checks": switch(
        "Skip checks",
        "Undo although a check that the table requires fails for the rows that come back, or can't run. The snapshot "
        "says so.",
    ),
    "undo_retention": text("Undo for", "How long the undo itself can be undone, such as 7 d; or: forever.", "7 d"),
}
