"""The base class and the fields of requests.

A field's metadata describes its flag: ``help``, ``choices``, ``repeat`` (a tuple of texts), ``minimum`` (of a
number), ``may_be_blank`` (a text for people: blank = not given). A bool is a switch. The flag is the field's name with
dashes, without a trailing one (``from_`` is ``--from``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

IF_EXISTS = ("fail", "skip", "replace")
IF_MISSING = ("fail", "skip")
TAG_CONFLICT = ("fail", "keep-main", "rename")
ENGINES = ("embedded", "connector")


def flag(
    help_text: str,
    default: Any = None,
    *,
    choices: tuple[str, ...] | None = None,
    repeat: bool = False,
    minimum: int | None = None,
    may_be_blank: bool = False,
) -> Any:
    """Define a field of a request."""
    metadata: dict[str, Any] = {"help": help_text, "choices": choices, "repeat": repeat, "minimum": minimum}
    metadata["may_be_blank"] = may_be_blank
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Fields common to all operations (docs/design.md, One result)."""

    operation: ClassVar[str] = ""
    needs_table: ClassVar[bool] = True
    """False: the operation may create the table."""

    warehouse: str = flag("Warehouse folder or URI, e.g. s3://bucket/warehouse", "")
    table: str = flag("Table as db.table", "")
    engine: str = flag(
        "Who reads and writes rows: this package, or Paimon's connector",
        "embedded",
        choices=ENGINES,
    )
    storage_options: Mapping[str, Any] | None = flag("JSON file with fsspec storage options (may hold secrets)")
    operation_id: str | None = flag("Identity of this operation: a retry with the same id does not do the work twice")
    now: str | None = flag("The time to take as now, ISO with an offset; for tests and re-runs", may_be_blank=True)
    dry_run: bool = flag("Print the plan, change nothing", False)


def flag_name(field_name: str) -> str:
    """Return a field's flag."""
    return "--" + field_name.rstrip("_").replace("_", "-")
