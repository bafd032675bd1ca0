"""What is asked of the plans and expressions that Spark's JVM holds."""

from __future__ import annotations

from typing import Any


def kind_of(node: Any) -> str:
    """Return the name of a plan's or an expression's class."""
    return str(node.getClass().getSimpleName())


def sequence_items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]
