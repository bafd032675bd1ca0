"""What the arguments of a replay mean: snapshots, and when it has caught up. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_paimon.core.errors import InvalidInputError


def named_snapshots(flag: str, texts: Sequence[str], sources: Sequence[str]) -> dict[str, int]:
    """Read ``[name=]ID``, as snapshot ids by source; without a name there must be one source.

    Raises:
        InvalidInputError: not of that form, an unknown source, or one that is given twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, equals, number = (part.strip() for part in text.rpartition("="))
        if not equals and len(sources) == 1:
            name = sources[0]
        if name not in sources:
            names = ", ".join(sources) or "--source"
            raise InvalidInputError(f"{flag} {text!r} names no source; write name=ID, with a name of {names}")
        if not (number.isascii() and number.isdigit() and int(number) > 0) or name in found:
            raise InvalidInputError(f"{flag} {text!r}: give one snapshot id for each source, such as {name}=7")
        found[name] = int(number)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """When a source counts as caught up with: snapshot ids by source, and a watermark (epoch milliseconds) for all."""

    snapshots: Mapping[str, int] = field(default_factory=dict)
    watermark: int | None = None

    def missing(self, heads: Mapping[str, tuple[int, int | None]]) -> list[str]:
        """Say which sources have not come that far; ``heads``: newest snapshot id and watermark of each."""
        out = []
        for name, (head, watermark) in heads.items():
            wanted = self.snapshots.get(name, 0)
            if head < wanted:
                out.append(f"{name} is at snapshot {head} of {wanted}")
            elif self.watermark is not None and (watermark is None or watermark < self.watermark):
                out.append(f"{name} has the watermark {watermark}, not yet {self.watermark}")
        return out
