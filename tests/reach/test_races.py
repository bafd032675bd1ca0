"""Processes that commit to one table at the same time, on each storage and through each catalog."""

from __future__ import annotations

import pytest

from tests.core.store.lives import assert_race
from tests.core.tables import COLUMNS
from tests.places import PLACES, Servers

COMMITS = 40
_SECONDS = 1500


@pytest.mark.parametrize("name", PLACES)
def test_no_commit_is_lost_and_no_id_left_out(servers: Servers, name: str) -> None:
    place = servers.place(name)
    table = place.create("t", COLUMNS, partition_keys=["dt"], options={"bucket": "-1"})
    assert_race(table, COMMITS, _SECONDS)
