"""How messages name what is special about a branch. Pure."""

from __future__ import annotations

from airflow_paimon.core.table.lineage import Lineage


def protection_text(record: Lineage) -> str:
    """Say who protected a branch and why: ``protected by ann (month-end audit)``."""
    by = f"protected by {record.protected_by}" if record.protected_by else "protected"
    return f"{by} ({record.reason})" if record.reason else by
