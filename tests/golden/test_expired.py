"""Every golden table, all its branches expired down to one snapshot: what is left names the same files, and has them.

A table of which Paimon has broken a snapshot or branch is refused, with nothing deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.table.table import open_table
from tests.core.tables import run
from tests.oracles.golden import golden_index
from tests.soundness import files_on_disk, named_files

Golden = Callable[[str], Path]

ARCHIVES = ("paimon-2.0.0", "paimon-0.9.0", "table-fuzz", "row-tracking-fuzz", "chain-fuzz")
EVERYTHING = {
    "older_than": "0 s",
    "retain_min": 1,
    "grace": "0 s",
    "writers_stopped": True,
    "all_branches": True,
    "retry_window": "0 s",
}


@pytest.mark.parametrize("archive", ARCHIVES)
@pytest.mark.every(2)
def test_what_is_left_of_a_golden_table(golden: Golden, tmp_path: Path, archive: str) -> None:
    shutil.copytree(golden(archive) / "wh", tmp_path / "wh")
    expired = freed = refused = 0
    for name in sorted({entry["table"] for entry in golden_index(archive)})[:15]:
        table = open_table(str(tmp_path / "wh"), name)
        there = files_on_disk(table)
        try:
            named = named_files(table)
        except FormatError:
            with pytest.raises(FormatError):
                run(table, "expire_snapshots", **EVERYTHING)
            assert files_on_disk(table) == there
            refused += 1
            continue
        result = run(table, "expire_snapshots", **EVERYTHING)
        left = named_files(table)
        assert {root: named[root] for root in left if root in named} == {r: left[r] for r in left if r in named}
        lost = there - files_on_disk(table)
        assert lost.isdisjoint(set().union(*left.values())), name
        assert not (set().union(*named.values()) & files_on_disk(table)) - set().union(*left.values()), name
        expired += len(result.details["expired"])
        freed += len(lost)
    assert expired > 0
    assert freed > 0
    assert refused < 5
