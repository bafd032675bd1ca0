"""The names of automatic tags and the times that they stand for, by the options ``tag.*`` (Paimon's TagPeriodHandler).

Times are without a zone: the snapshot's time in ``sink.process-time-zone``, or its watermark in
``sink.watermark-time-zone``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.options import TableOptions, parse_duration

MODE, PROCESS_TIME, WATERMARK, BATCH, NONE = (
    "tag.automatic-creation", "process-time", "watermark", "batch", "none"
)  # fmt: skip
_DAY, _EPOCH, _MILLI = timedelta(days=1), datetime(1970, 1, 1), timedelta(milliseconds=1)
_FORMATS = {
    ("daily", "with_dashes"): "%Y-%m-%d",
    ("daily", "without_dashes"): "%Y%m%d",
    ("daily", "without_dashes_and_spaces"): "%Y%m%d",
    ("hourly", "with_dashes"): "%Y-%m-%d %H",
    ("hourly", "without_dashes"): "%Y%m%d %H",
    ("hourly", "without_dashes_and_spaces"): "%Y%m%d%H",
}
_HOURS = {"hourly": timedelta(hours=1), "two-hours": timedelta(hours=2)}
_MINUTES = "%Y%m%d%H%M"
_DIGITS = {"%Y": r"\d{4}", "%m": r"\d{2}", "%d": r"\d{2}", "%H": r"\d{2}", "%M": r"\d{2}"}
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPeriods:
    """One tag for each period. ``form``: of the names, as ``strftime`` takes it.

    ``first_word``: only the part of a name before the first space counts, as Paimon reads daily ones.
    """

    length: timedelta
    form: str
    first_word: bool = False

    def time_of(self, name: str) -> datetime | None:
        """Return the start of the period that a tag stands for; None: the name is not that of an automatic tag."""
        text = name.split(" ")[0] if self.first_word else name
        pattern = re.sub("%.", lambda letter: _DIGITS[letter[0]], self.form)
        if not re.fullmatch(pattern, text, re.ASCII):
            return None
        try:
            return datetime.strptime(text, self.form)
        except ValueError:
            return None

    def name_of(self, time: datetime) -> str:
        """Return the name of the tag of a period."""
        letters = {"%Y": f"{time.year:04}", "%m": f"{time.month:02}", "%d": f"{time.day:02}",
                   "%H": f"{time.hour:02}", "%M": f"{time.minute:02}"}  # fmt: skip
        return re.sub("%.", lambda letter: letters[letter[0]], self.form)

    def before(self, time: datetime) -> datetime:
        """Return the start of the last period that is over at a time; periods count from the year 1970."""
        millis, length = (time - _EPOCH) // _MILLI, self.length // _MILLI
        whole = millis // length if millis >= 0 else -(-millis // length)  # Java cuts off towards zero
        return _EPOCH + whole * length * _MILLI - self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRules:
    """What the options of a table say about automatic tags.

    Attributes:
        mode: One of the modes above.
        periods: None in the modes batch and none.
        delay: How long after the end of a period its tag comes.
        most: How many automatic tags stay; None: all.
        retained: The retention that they get; None: none.
        complete: Periods without a snapshot get tags as well, one for each later snapshot.
        zone: Of the snapshots' times; None: that of this machine.
        batch_name: ``tag.batch.customized-name``.
        expire: Tags whose retention has passed go.
    """

    mode: str
    periods: TagPeriods | None = None
    delay: timedelta = timedelta()
    most: int | None = None
    retained: timedelta | None = None
    complete: bool = False
    zone: tzinfo | None = None
    batch_name: str | None = None
    expire: bool = True

    def is_automatic(self, name: str) -> bool:
        """Whether a tag of that name is an automatic one."""
        if self.mode == BATCH:
            return name == self.batch_name or (self.batch_name is None and BATCH_NAMES.fullmatch(name) is not None)
        return self.periods is not None and self.periods.time_of(name) is not None


BATCH_PREFIX = "batch-write-"
BATCH_NAMES = re.compile(rf"{BATCH_PREFIX}\d{{4}}-\d{{2}}-\d{{2}}", re.ASCII)
"""Tags of the mode batch, without a name of the table's own."""


def tag_rules(options: TableOptions, table: str) -> TagRules:
    """Read the options; ``table``: for messages.

    Raises:
        InvalidInputError: one has a value that Paimon would not take, or they contradict each other.
    """
    mode = _choice(options, table, MODE, NONE, (NONE, PROCESS_TIME, WATERMARK, BATCH))
    zone_option = "sink.watermark-time-zone" if mode == WATERMARK else "sink.process-time-zone"
    zone = options.text(zone_option, "UTC" if mode == WATERMARK else "")
    retained = options.text("tag.default-time-retained")
    most = options.number("tag.num-retained-max", -1)
    rules = TagRules(
        mode=mode,
        periods=_periods(options, table) if mode in (PROCESS_TIME, WATERMARK) else None,
        delay=_duration(options, "tag.creation-delay", "0 ms"),
        most=None if options.given("tag.num-retained-max") is None else most,
        retained=_duration(options, "tag.default-time-retained", "") if retained else None,
        complete=options.flag("tag.automatic-completion"),
        zone=_zone(zone, f"{table}: table option {zone_option}") if zone else None,
        batch_name=options.text("tag.batch.customized-name") or None,
        expire=options.flag("tag.time-expire-enabled", True),
    )
    if rules.periods is not None and rules.delay >= rules.periods.length:
        raise InvalidInputError(
            f"{table}: table option tag.creation-delay must be shorter than the period of a tag "
            f"({rules.periods.length}), it is {options.text('tag.creation-delay')!r}"
        )
    return rules


def _choice(options: TableOptions, table: str, key: str, default: str, choices: tuple[str, ...]) -> str:
    value = options.text(key, default).lower()
    if value not in choices:
        raise InvalidInputError(f"{table}: table option {key} must be one of {', '.join(choices)}, it is {value!r}")
    return value


def _duration(options: TableOptions, key: str, default: str) -> timedelta:
    return parse_duration(options.text(key, default), f"Table option {key}")


def _periods(options: TableOptions, table: str) -> TagPeriods:
    if options.text("tag.creation-period-duration"):
        length = _duration(options, "tag.creation-period-duration", "")
        if length < _MILLI:
            raise InvalidInputError(f"{table}: table option tag.creation-period-duration must be greater than 0")
        return TagPeriods(length=length, form=_MINUTES)
    period = _choice(options, table, "tag.creation-period", "daily", ("daily", "hourly", "two-hours"))
    dashes = ("with_dashes", "without_dashes", "without_dashes_and_spaces")
    formatter = _choice(options, table, "tag.period-formatter", dashes[0], dashes)
    if period == "daily":
        return TagPeriods(length=_DAY, form=_FORMATS[period, formatter], first_word=True)
    # Paimon's tags of two hours are written with dashes, whatever the formatter
    form = _FORMATS["hourly", formatter if period == "hourly" else dashes[0]]
    return TagPeriods(length=_HOURS[period], form=form)


def _zone(text: str, name: str) -> tzinfo:
    """Read a zone as Java's ``ZoneId.of`` does: a region, ``Z``, or an offset with or without GMT or UTC."""
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    offset = _OFFSET.fullmatch(text)
    if offset is not None:
        by = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        if by <= timedelta(hours=18):
            return timezone(-by if offset[1] == "-" else by)
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInputError(
            f"{name} must be a time zone such as America/Los_Angeles or GMT-08:00, it is {text!r}"
        ) from None


def local_time(millis: int, zone: tzinfo | None) -> datetime | None:
    """Return a time (epoch milliseconds) in a zone, without the zone; None: later than the year 9999, or too early."""
    try:
        seconds = datetime.fromtimestamp(millis // 1000, zone).replace(tzinfo=None)
        return seconds + (millis % 1000) * _MILLI
    except (ValueError, OverflowError, OSError):
        return None
