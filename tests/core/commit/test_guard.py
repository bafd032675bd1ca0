"""Guards run before every commit, whatever was imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.core.chain.tables import add, build, make_chain


def test_a_commit_is_guarded_when_only_the_committer_was_imported(tmp_path: Path) -> None:
    """Dropping the one anchor that a later delta builds on is refused, though nobody imported chain tables."""
    table = make_chain(tmp_path)
    add(table.branch("delta"), "20250101")
    build(table, "20250101", None, ["20250101"])
    add(table.branch("delta"), "20250102")
    add(table.branch("delta"), "20250103")
    code = f"""
        import sys
        from airflow_paimon.core.commit.committer import Draft, commit
        from airflow_paimon.core.errors import UnsafeOperationError
        from airflow_paimon.core.table.live_entries import live_entries
        from airflow_paimon.core.format.snapshot import CommitKind
        from airflow_paimon.core.table.table import open_table

        assert not [name for name in sys.modules if "core.chain" in name]
        branch = open_table({str(tmp_path)!r}, "d.t", branch="snapshot")

        def drop_all(head):
            gone = [entry.deleted() for entry in live_entries(branch, head).values()]
            return Draft(kind=CommitKind.OVERWRITE, entries=gone, schema=branch.schema())

        try:
            commit(branch, drop_all)
        except UnsafeOperationError as error:
            print("refused:", error.message)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "refused: d.t: snapshot partition dt=20250101 can't be dropped" in done.stdout
    assert table.branch("snapshot").latest_snapshot_id() == 1
