"""Where a stream starts, how far it has read, and which snapshots lie between two positions. Pure: no store, no clock.

Snapshot ids alone repeat after a rollback or a fast-forward by another engine, so a position also holds the identity
of its snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.errors import FormatError, InvalidInputError

ALL = -1
"""All units of a snapshot."""

LATEST_FULL, LATEST = "latest-full", "latest"
FROM_SNAPSHOT, FROM_SNAPSHOT_FULL, AFTER_SNAPSHOT = "from-snapshot", "from-snapshot-full", "after-snapshot"
FROM_TIMESTAMP = "from-timestamp"
MODES = (LATEST_FULL, LATEST, FROM_SNAPSHOT, FROM_SNAPSHOT_FULL, AFTER_SNAPSHOT, FROM_TIMESTAMP)
_AT_A_SNAPSHOT = (FROM_SNAPSHOT, FROM_SNAPSHOT_FULL, AFTER_SNAPSHOT)
START_OPTIONS = ("scan.mode", "scan.snapshot-id", "scan.tag-name", "scan.timestamp", "scan.timestamp-millis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a new stream starts; ``timestamp``: ISO text with an offset, or epoch milliseconds."""

    mode: str = LATEST_FULL
    snapshot_id: int | None = None
    tag: str | None = None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Everything before it has been read.

    Attributes:
        snapshot: The snapshot that was read last, or partly; 0 = nothing yet.
        identity: ``Snapshot.identity``; empty where that snapshot had expired when the stream started.
        full: Of this snapshot all rows of the table are read, not its changes.
        units: How many of its units have been read.
    """

    snapshot: int = 0
    identity: str = ""
    full: bool = False
    units: int = ALL

    @property
    def is_complete(self) -> bool:
        return self.units == ALL

    @property
    def needs(self) -> int:
        """The oldest snapshot that is needed to go on.

        Its own shows that the history is still the same. The changes of one that is read in part may be its difference
        to the one before.
        """
        return self.snapshot if self.is_complete or self.full else self.snapshot - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The units ``first`` <= number < ``last`` (``ALL`` = to the end) of one snapshot."""

    snapshot: int
    identity: str = ""
    full: bool = False
    first: int = 0
    last: int = ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A position as Spark's checkpoint keeps it, with the position at which the stream started.

    Spark does not log the start of the first batch and asks for it anew when it repeats that batch. ``at`` None is
    what it gets then: the true start is in the batch's end.
    """

    branch: str
    at: Position | None = None
    origin: Position = Position()

    def to_json(self) -> dict[str, Any]:
        """Return texts, whole numbers and booleans, always in the same order: Spark compares offsets as text."""
        if self.at is None:
            return {"branch": self.branch, "snapshot": ALL}
        return {
            "branch": self.branch,
            "snapshot": self.at.snapshot,
            "identity": self.at.identity,
            "full": self.at.full,
            "units": self.at.units,
            "origin_snapshot": self.origin.snapshot,
            "origin_identity": self.origin.identity,
            "origin_full": self.origin.full,
        }


def parse_offset(value: Mapping[str, Any], branch: str) -> Offset:
    """Parse the output of ``Offset.to_json``.

    Raises:
        InvalidInputError: it is of another branch. FormatError: not an offset of this source.
    """
    try:
        found, snapshot = str(value["branch"]), int(value["snapshot"])
        if found != branch:
            raise InvalidInputError(
                f"The checkpoint belongs to a stream of branch {found!r}, not of {branch!r}: use a new checkpoint "
                f"location"
            )
        if snapshot == ALL:
            return Offset(branch=found)
        origin_full = bool(value["origin_full"])
        return Offset(
            branch=found,
            at=Position(
                snapshot=snapshot,
                identity=str(value["identity"]),
                full=bool(value["full"]),
                units=int(value["units"]),
            ),
            origin=Position(
                snapshot=int(value["origin_snapshot"]),
                identity=str(value["origin_identity"]),
                full=origin_full,
                units=0 if origin_full else ALL,
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise FormatError(
            f"The checkpoint holds an offset that is not of a stream of this source: {str(dict(value))[:200]}"
        ) from None


def parse_start(options: Mapping[str, str]) -> Start:
    """Read the starting point from a stream's options, with Paimon's names and defaults (docs/reference/spark.md).

    Raises:
        InvalidInputError: an unknown mode, or options that contradict each other or the mode.
    """
    given = {k: options[k].strip() for k in START_OPTIONS if k in options}
    timestamp = given.get("scan.timestamp", given.get("scan.timestamp-millis"))
    snapshot, tag = given.get("scan.snapshot-id"), given.get("scan.tag-name")
    points = [k for k in START_OPTIONS[1:] if k in given]
    if len(points) > 1:
        raise InvalidInputError(f"The options {' and '.join(points)} contradict each other: give one of them")
    if snapshot is not None and not (snapshot.isdigit() and int(snapshot) > 0):
        raise InvalidInputError(f"The option scan.snapshot-id is a snapshot id, not {snapshot!r}")
    mode = given.get("scan.mode", "default").lower()
    if mode == "default":
        mode = (FROM_SNAPSHOT if snapshot else FROM_SNAPSHOT_FULL if tag else FROM_TIMESTAMP) if points else LATEST_FULL
    mode = LATEST_FULL if mode == "full" else mode
    if mode not in MODES:
        raise InvalidInputError(f"The option scan.mode is one of {', '.join(MODES)}, not {mode!r}")
    needed = {FROM_TIMESTAMP: ("scan.timestamp", "scan.timestamp-millis")}
    needed |= dict.fromkeys(_AT_A_SNAPSHOT, ("scan.snapshot-id", "scan.tag-name"))
    fits = needed.get(mode, ())
    if bool(points) != bool(fits) or any(p not in fits for p in points):
        what = f"needs {' or '.join(fits)}" if fits else f"takes no {points[0]}"
        raise InvalidInputError(f"The option scan.mode={mode} {what}")
    return Start(mode=mode, snapshot_id=int(snapshot) if snapshot else None, tag=tag, timestamp=timestamp)


def steps_between(start: Position, end: Position) -> list[Step]:
    """List what lies after ``start`` up to ``end``, in order.

    Raises:
        FormatError: ``end`` lies before ``start``: the checkpoint was edited.
    """
    if end.snapshot < start.snapshot:
        raise FormatError(f"The checkpoint goes back from snapshot {start.snapshot} to {end.snapshot}")
    if end.snapshot == start.snapshot:
        if start.is_complete or start.units == end.units:
            return []
        return [_step(end, start.units, end.units)]
    steps = [] if start.is_complete else [_step(start, start.units, ALL)]
    steps += [Step(snapshot=i) for i in range(start.snapshot + 1, end.snapshot)]
    return [*steps, _step(end, 0, end.units)]


def _step(at: Position, first: int, last: int) -> Step:
    return Step(snapshot=at.snapshot, identity=at.identity, full=at.full, first=first, last=last)
