"""The kinds of this package's own files in a table: where each lies, how it ages, and what a damaged one endangers.

Operation records, their marks and results, and checks go ``records_older_than`` after they were put, those of streams
and replays once they can't be continued either (``remove_orphan_files``). All others go with what they are about: the
branch, the grace time of an expiry, the publish that is running (a week after it, if it was killed). Audits and proofs
stay.
"""

from __future__ import annotations

from airflow_paimon.core.format.records import RecordKind
from airflow_paimon.core.format.snapshot import RESTORE
from airflow_paimon.core.table.paths import PRIVATE_DIR


def _kind(folder: str, at_risk: str, way_out: str = RESTORE) -> RecordKind:
    return RecordKind(folder=f"{PRIVATE_DIR}/{folder}", at_risk=at_risk, way_out=way_out)


MARKS = _kind("retried", "nothing")
EXPIRY_PLANS = _kind(
    "expiry_plans", "a retry of that expiry fails", "delete it and run the expiry again, with a new plan"
)
OPERATIONS = _kind(
    "operations",
    "a retry of that operation fails, and so do expiries and orphan cleaning",
    "check whether the operation was committed (its id is the commit user), then delete the file",
)
RESULTS = _kind("results", "nothing: a retry checks what the operation has done", "delete it")
CHECKS = _kind("checks", "a publish that requires that check fails", "delete it and check the branch again")
STREAMS = _kind(
    "streams",
    "the next batch of that stream fails, and so do expiries and orphan cleaning",
    "check which of its batches were committed (the file's name is the commit user), then delete the file",
)
REPLAYS = _kind("replays", "that replay can't be continued", "roll the branch back, then delete the file")
HOLDS = _kind(
    "holds",
    "expiries and orphan cleaning fail, and so may publishes of its branch",
    "delete it once no publish or rollback is running",
)
TRASH_ENTRIES = _kind(
    "trash", "expiries and orphan cleaning fail", f"{RESTORE}, or delete it: orphan cleaning takes its files"
)
BRANCHES = _kind("branches", "origin, owner and protection of that branch are unknown")
AUDIT = _kind("audit", "audits of the table fail", f"{RESTORE}, or delete it: repair_table may put it again")
ERASURES = _kind("erasures", "nothing else proves that erasure")
CHAIN = _kind("chain", "it is not visible when that partition becomes stale, or that it can be rebuilt")
DROPPING = RecordKind(
    folder=PRIVATE_DIR, at_risk="the drop of the table can neither continue nor be undone", way_out=RESTORE
)
SETS = _kind("sets", "that version of the table set can't be read")  # in the warehouse
