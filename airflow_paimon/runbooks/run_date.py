"""A run's date in the fields of a form, so that a schedule or a backfill works on one partition after the other.

A form's texts are never templates. ``{ds}`` and its kin are all that is filled in: digits and what is between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_paimon.core.errors import InvalidInputError

DATED_FIELDS = frozenset({"branch", "checks", "date", "partitions", "reason", "sql", "views", "wait_partitions"})
_FORMATS = {"ds": "%Y-%m-%d", "ds_nodash": "%Y%m%d"}
_DATE = re.compile(
    r"(?<!\{)\{(?:(?P<name>ds|ds_nodash)|logical_date(?=[^{}]*:))(?P<shift>[+-][0-9]{1,4}[dh]?)?"
    r"(?::(?P<format>[%A-Za-z0-9 /._:-]+))?\}(?!\})"
)


def with_run_date(form: Mapping[str, Any], date: datetime | None) -> dict[str, Any]:
    """Fill the run's date into the fields of a form that may name it (``DATED_FIELDS``).

    ``{ds}`` is ``2026-11-18`` and ``{ds_nodash}`` is ``20261118``, as in Airflow's templates.
    ``{logical_date:FORMAT}``, like the other two, takes a format of ``strftime``. Before it may stand a shift in days
    or hours: ``{ds-1}``, ``{logical_date-3h:%Y-%m-%dT%H:00:00}``. ``date``: the run's logical date, in UTC; None = it
    has none.

    Raises:
        InvalidInputError: a field names the run's date, and the run has none.
    """
    return {name: _filled(value, name, date) if name in DATED_FIELDS else value for name, value in form.items()}


def _filled(value: Any, name: str, date: datetime | None) -> Any:
    if isinstance(value, list):
        return [_filled(item, name, date) for item in value]
    return _DATE.sub(lambda found: _text(found, name, date), value) if isinstance(value, str) else value


def _text(found: re.Match[str], field: str, date: datetime | None) -> str:
    if date is None:
        raise InvalidInputError(
            f"The field {field} names the run's date by {found[0]}, and this run has no logical date: give it one, or "
            f"write the date itself"
        )
    shift = found["shift"] or "+0"
    unit = "hours" if shift.endswith("h") else "days"
    try:
        moment = date + timedelta(**{unit: int(shift.rstrip("dh"))})
        return moment.strftime(found["format"] or _FORMATS[found["name"]])
    except (OverflowError, ValueError) as error:
        raise InvalidInputError(f"The field {field}: {found[0]} is not a date ({error})") from None
