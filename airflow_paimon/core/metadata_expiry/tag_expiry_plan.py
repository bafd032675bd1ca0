"""Which tags expire. Pure. Times are local ones without a zone, as Paimon stores them in tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_paimon.core.metadata_expiry.root_values import Root
from airflow_paimon.core.table.paths import RESERVED_TAG_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRule:
    """Tags whose own retention ends before ``at`` expire, and with ``older_than`` those created before it.

    A tag without a retention counts only with ``include_unlimited``, and by the time of its file. A tag that this
    package made (``airflow-paimon-...``) expires by its own retention only.
    """

    at: datetime
    older_than: datetime | None = None
    prefix: str = ""
    include_unlimited: bool = False


def expired_tags(tags: Sequence[Root], rule: TagRule, file_times: Mapping[str, datetime]) -> list[Root]:
    """Choose the tags of one branch that expire; whether something needs them is not decided here."""
    return [r for r in tags if r.name.startswith(rule.prefix) and _expires(r, rule, file_times.get(r.name))]


def _expires(root: Root, rule: TagRule, file_time: datetime | None) -> bool:
    tag = root.tag
    assert tag is not None
    end = tag.expires_at()
    if end is not None and end < rule.at:
        return True
    if rule.older_than is None or root.name.startswith(RESERVED_TAG_PREFIX):
        return False
    if tag.time_retained is not None:
        return tag.create_time is not None and tag.create_time < rule.older_than
    return rule.include_unlimited and file_time is not None and file_time < rule.older_than
