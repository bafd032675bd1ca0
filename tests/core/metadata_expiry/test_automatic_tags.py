"""trigger_tag_automatic_creation: which snapshot gets which tag, which tags go, and what is never touched."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_paimon.core.branches import tag_files, tags
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.snapshot import NO_WATERMARK
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, copied, cut_off, make_table, run
from tests.randomness import moments

TRIGGER = "trigger_tag_automatic_creation"
ZONE = {"sink.process-time-zone": "UTC"}


def millis(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def snapshot_at(table: Table, text: str, *, watermark: str | int | None = None) -> None:
    """One more snapshot, committed at a time (UTC)."""
    append(table, "a")
    path = table.paths.snapshot(table.latest_snapshot_id() or 0)
    mark = millis(watermark) if isinstance(watermark, str) else watermark
    more = {} if mark is None else {"watermark": mark}
    table.store.replace(
        path, json.dumps({**json.loads(table.store.read(path)), "timeMillis": millis(text), **more}).encode()
    )


def tagging(mode: str = "process-time", **options: str) -> Table:
    given = {"tag." + k.replace("_", "-"): v for k, v in options.items()}
    return make_table(f"memory://{uuid.uuid4()}/wh", **{"tag.automatic-creation": mode, **ZONE, **given})


def tagged(table: Table) -> dict[str, int]:
    return {t.name: t.snapshot.id for t in table.tags()}


def test_the_first_snapshot_after_each_day_gets_its_tag() -> None:
    table = tagging()
    for at in ("2026-11-20 10:00", "2026-11-20 12:00", "2026-11-21 00:00", "2026-11-21 23:00", "2026-11-25 01:00"):
        snapshot_at(table, at)
    result = run(table, TRIGGER)
    assert result.changed
    assert tagged(table) == {"2026-11-19": 1, "2026-11-20": 3, "2026-11-24": 5}
    assert result.details["created"][0] == {"tag": "2026-11-19", "snapshot": 1}
    assert (result.details["mode"], result.details["next"]) == ("process-time", "2026-11-25")
    assert not run(table, TRIGGER).changed
    snapshot_at(table, "2026-11-26 02:00")
    run(table, TRIGGER)
    assert tagged(table)["2026-11-25"] == 6


def test_a_delay_lets_late_data_in() -> None:
    table = tagging(creation_delay="30 min", creation_period="hourly")
    for at in ("2026-11-20 10:05", "2026-11-20 11:20", "2026-11-20 12:05"):
        snapshot_at(table, at)
    run(table, TRIGGER)
    assert tagged(table) == {"2026-11-20 09": 1, "2026-11-20 11": 3}


def test_completion_gives_each_missed_period_a_tag() -> None:
    table = tagging(automatic_completion="true")
    for at in ("2026-11-20 10:00", "2026-11-24 10:00", "2026-11-24 11:00", "2026-11-24 12:00"):
        snapshot_at(table, at)
    run(table, TRIGGER)
    assert tagged(table) == {"2026-11-19": 1, "2026-11-20": 2, "2026-11-21": 3, "2026-11-22": 4}


def test_watermarks_decide_where_they_are_to() -> None:
    table = tagging("watermark")
    for mark in (None, NO_WATERMARK, "2026-11-20 23:59", "2026-11-22 00:00", 2**63 - 1):
        snapshot_at(table, "2026-11-26 00:00", watermark=mark)
    run(table, TRIGGER)
    assert tagged(table) == {"2026-11-19": 3, "2026-11-21": 4}


def test_the_oldest_go_when_there_are_too_many_but_for_those_that_something_relies_on() -> None:
    table = tagging(num_retained_max="2")
    for day in (20, 21, 22, 23):
        snapshot_at(table, f"2026-11-{day} 10:00")
    run(table, "create_tag", tag="mine", snapshot=1)
    run(table, "create_tag", tag="2026-11-01", snapshot=1, hold="case 17")
    result = run(table, TRIGGER)
    assert sorted(tagged(table)) == ["2026-11-01", "2026-11-21", "2026-11-22", "mine"]
    assert result.details["expired"] == {"main": ["2026-11-20"]}
    assert "legal hold" in result.details["needed"]["main"]["2026-11-01"]


def test_tags_get_the_tables_retention_and_go_by_it() -> None:
    table = tagging(default_time_retained="7 d")
    snapshot_at(table, "2026-11-20 10:00")
    run(table, TRIGGER, now="2026-11-20T10:00:00+00:00")
    assert str(table.tag("2026-11-19").time_retained) == "7 days, 0:00:00"
    snapshot_at(table, "2026-11-30 10:00")
    result = run(table, TRIGGER, now="2026-11-30T10:00:00+00:00")
    assert tagged(table) == {"2026-11-29": 2}
    assert result.details["expired"] == {"main": ["2026-11-19"]}


def test_without_expiry_by_time_they_stay() -> None:
    table = tagging(default_time_retained="7 d", time_expire_enabled="false")
    snapshot_at(table, "2026-11-20 10:00")
    run(table, TRIGGER, now="2026-11-20T10:00:00+00:00")
    assert not run(table, TRIGGER, now="2026-11-30T10:00:00+00:00").changed


def test_success_files_come_and_go_with_tags() -> None:
    table = tagging(create_success_file="true", num_retained_max="1")
    snapshot_at(table, "2026-11-20 10:00")
    run(table, TRIGGER, now="1000")
    folder = "tag/tag-success-file"
    text = '{\n  "creationTime" : 1000,\n  "modificationTime" : 1000\n}'
    assert table.store.read(f"{folder}/2026-11-19_SUCCESS").decode() == text
    snapshot_at(table, "2026-11-21 10:00")
    run(table, TRIGGER)
    run(table, "create_tag", tag="mine")
    assert table.store.names(folder) == ["2026-11-20_SUCCESS", "mine_SUCCESS"]
    assert tagged(table) == {"2026-11-20": 2, "mine": 2}, "a success file is no tag"
    assert not run(table, "check_table").details["findings"]
    run(table, "remove_orphan_files", older_than="1 h", now="2036-11-21T12:00:00+00:00", dry_run=True)
    run(table, "delete_tag", tag="mine")
    assert table.store.names(folder) == ["2026-11-20_SUCCESS"]


def test_batch_tags_the_latest_snapshot_by_its_day_and_moves_the_tag() -> None:
    table = tagging("batch", num_retained_max="2")
    for at, now in (("2026-11-20 10:00", 1), ("2026-11-20 11:00", 2), ("2026-11-21 10:00", 3), ("2026-11-22 10:00", 4)):
        snapshot_at(table, at)
        assert run(table, TRIGGER).changed, now
        assert not run(table, TRIGGER).changed, now
    assert tagged(table) == {"batch-write-2026-11-21": 3, "batch-write-2026-11-22": 4}
    run(table, "create_tag", tag="mine", snapshot=1)
    run(table, "create_tag", tag="batch-write-2026-11-23", snapshot=2, hold="case 17")
    snapshot_at(table, "2026-11-23 10:00")
    result = run(table, TRIGGER)
    assert "legal hold" in result.details["skipped"]["batch-write-2026-11-23"]
    assert tagged(table)["batch-write-2026-11-23"] == 2 and "mine" in tagged(table)


def test_batch_with_a_name_of_its_own() -> None:
    table = tagging("batch", **{"batch.customized_name": "latest"})
    snapshot_at(table, "2026-11-20 10:00")
    run(table, TRIGGER)
    snapshot_at(table, "2026-11-21 10:00")
    run(table, TRIGGER)
    assert tagged(table) == {"latest": 2}
    other = tagging("batch", **{"batch.customized_name": "airflow-paimon-keep-1"})
    snapshot_at(other, "2026-11-20 10:00")
    with pytest.raises(InvalidInputError, match="set by airflow-paimon itself"):
        run(other, TRIGGER)


def test_without_the_option_nothing_is_made() -> None:
    table = tagging("none")
    snapshot_at(table, "2026-11-20 10:00")
    result = run(table, TRIGGER)
    assert (result.changed, result.details["mode"], result.details["created"]) == (False, "none", [])


def test_tags_that_a_metastore_would_show_as_partitions_are_refused() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh", **{"tag.automatic-creation": "process-time"},
                       **{"metastore.tag-to-partition": "dt"})  # fmt: skip
    snapshot_at(table, "2026-11-20 10:00")
    with pytest.raises(UnsupportedFeatureError, match=r"metastore\.tag-to-partition"):
        run(table, TRIGGER)
    assert not tagged(table)


def test_a_dry_run_says_what_it_would_do() -> None:
    table = tagging(num_retained_max="1", create_success_file="true")
    snapshot_at(table, "2026-11-20 10:00")
    run(table, TRIGGER)
    snapshot_at(table, "2026-11-21 10:00")
    before = {path: table.store.read(path) for path in table.store.walk("")}
    result = run(table, TRIGGER, dry_run=True)
    assert result.details["created"] == [{"tag": "2026-11-20", "snapshot": 2}]
    assert result.details["expired"] == {"main": ["2026-11-19"]}
    assert {a["path"] for a in result.details["plan"]["actions"]} >= {"tag/tag-2026-11-20", "tag/tag-2026-11-19"}
    assert {path: table.store.read(path) for path in table.store.walk("")} == before


@pytest.mark.parametrize("mode", ["process-time", "watermark", "batch", "none"])
def test_health_says_which_tables_get_some(mode: str) -> None:
    """For a night with a budget: a run too many does no harm."""
    table = tagging(mode)
    assert run(table, "table_health").details["retained"]["automatic_tags"] == (mode != "none")
    alter_table(table, [SetOption(key="metastore.tag-to-partition", value="dt")])
    assert not run(table, "table_health").details["retained"]["automatic_tags"]


def test_a_second_automatic_tag_of_a_snapshot_is_refused() -> None:
    """Paimon's committer fails when it is to expire one of two, with each commit from then on."""
    table = tagging()
    snapshot_at(table, "2026-11-20 10:00")
    run(table, TRIGGER)
    run(table, "create_tag", tag="mine")
    for operation, values in (
        ("create_tag", {"tag": "2026-11-18"}),
        ("rename_tag", {"tag": "mine", "to_tag": "2026-11-18"}),
    ):
        with pytest.raises(AlreadyExistsError, match="has the automatic tag '2026-11-19'"):
            run(table, operation, **values)
    run(table, "rename_tag", tag="2026-11-19", to_tag="2026-11-18")
    assert tagged(table) == {"2026-11-18": 1, "mine": 1}


def test_a_snapshot_that_expires_meanwhile_gets_no_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tagging()
    snapshot_at(table, "2026-11-20 10:00")
    snapshot_at(table, "2026-11-21 10:00")
    known = tags.execute

    def late(view: Table, actions: Any) -> None:
        known(view, actions)
        if any(a.path == "tag/tag-2026-11-20" for a in actions):
            view.store.delete("snapshot/snapshot-2")

    monkeypatch.setattr(tags, "execute", late)
    with pytest.raises(ConflictError, match="expired while it was tagged") as error:
        run(table, TRIGGER)
    assert error.value.details["done"] == ["2026-11-19"]
    assert tagged(table) == {"2026-11-19": 1}


def test_a_tag_that_paimons_committer_sets_first_is_its(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tagging(create_success_file="true")
    snapshot_at(table, "2026-11-20 10:00")
    snapshot_at(table, "2026-11-21 10:00")
    known = tags.execute

    def late(view: Table, actions: Any) -> None:
        for action in actions:
            if action.path == "tag/tag-2026-11-20" and not view.store.exists(action.path):
                view.store.create(action.path, b" " + action.data)
        known(view, actions)

    monkeypatch.setattr(tags, "execute", late)
    result = run(table, TRIGGER)
    assert result.details["created"] == [{"tag": "2026-11-19", "snapshot": 1}]
    assert tagged(table) == {"2026-11-19": 1, "2026-11-20": 2}
    assert table.store.names("tag/tag-success-file") == ["2026-11-19_SUCCESS"]


def test_a_hold_that_a_batch_tag_gets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tagging("batch")
    snapshot_at(table, "2026-11-20 10:00")
    run(table, TRIGGER)
    name = "batch-write-2026-11-20"
    snapshot_at(table, "2026-11-20 11:00")
    known, told = tag_files.execute, []

    def late(view: Table, actions: Any) -> None:
        if not told and any(a.path == f"tag/tag-{name}" for a in actions):
            told.append(1)
            run(table, "create_tag", tag=name, snapshot=1, if_exists="skip", hold="case 17")
        known(view, actions)

    monkeypatch.setattr(tag_files, "execute", late)
    with pytest.raises(UnsafeOperationError, match="legal hold"):
        run(table, TRIGGER)
    assert (table.tag(name).legal_hold, table.tag(name).snapshot.id) == ("case 17", 1)


def test_a_run_that_is_killed_is_completed_by_the_next() -> None:
    made = tagging(num_retained_max="2", create_success_file="true")
    for day in (20, 21, 22, 23):
        snapshot_at(made, f"2026-11-{day} 10:00")
    for step in moments(60):
        table = copied(made)
        crashed = cut_off(table, step, TRIGGER)
        assert not run(table, "check_table").details["errors"], step
        run(table, TRIGGER)
        assert tagged(table) == {"2026-11-21": 3, "2026-11-22": 4}, step
        if not crashed:
            assert step > 5
            return
    raise AssertionError("60 steps were not enough")
