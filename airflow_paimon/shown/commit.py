"""One commit of a history, as a list or a picture shows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PUBLISH, ROLLBACK = "publish", "rollback"
UNREADABLE = "UNREADABLE"
_PUBLISHES = ("merge_branch", "fast_forward", "replace_main")
_WORDS = {
    "merge_branch": "publish",
    "fast_forward": "publish",
    "rollback_to": "rollback",
    "replace_main": "replacement of main",
    "correct_branch": "correction",
    "compact": "compaction",
    "rescale": "rescale",
    "compact_chain_table": "compaction of a chain",
    "expire_partitions": "expiry of partitions",
    "fold": "rewrite before a publish",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One snapshot. ``kind`` is its commit kind, or ``UNREADABLE``; ``rows`` what it changed, ``total`` what there is.

    ``source`` and ``source_id``: the branch that a publish took, ``parts``: its partitions, if not all; ``target``: the
    snapshot that a rollback went back to; ``undone``: the publish that an undo reverted. ``kept_by_tag``: the snapshot
    itself has expired. ``changed``: what became of rows, as the diff before a publish or the statement has counted
    them; empty where nobody has.
    """

    id: int
    millis: int
    kind: str
    identity: str = ""
    operation: str = ""
    user: str = ""
    rows: int | None = None
    total: int | None = None
    schema_id: int | None = None
    approved_by: str = ""
    source: str = ""
    source_id: int | None = None
    parts: tuple[str, ...] = ()
    target: int | None = None
    undone: int | None = None
    tags: tuple[str, ...] = ()
    undo: bool = False
    kept_by_tag: bool = False
    changed: str = ""

    @property
    def role(self) -> str:
        """How it is drawn: publish, rollback, or by its kind."""
        if self.operation in _PUBLISHES:
            return PUBLISH
        return ROLLBACK if self.operation == "rollback_to" else self.kind.lower()

    @property
    def what(self) -> str:
        """The operation in words, with the branch or snapshot that it took; empty if the writer named none."""
        word = _WORDS.get(self.operation, self.operation)
        if self.source:
            parts = f", only {', '.join(self.parts)}" if self.parts else ""
            return f"{word} {'by' if self.operation == 'replace_main' else 'of'} {self.source}{parts}"
        if self.undone is not None:
            return f"undo of snapshot {self.undone}"
        return word if self.target is None else f"{word} to snapshot {self.target}"
