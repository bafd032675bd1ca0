"""Which partitions of a chain table must keep a row when rows of some keys are erased. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_paimon.core.chain.layout import ChainBranch, ChainLayout, Partitions, TimeLines, Values


def why_needed(layout: ChainLayout, held: Partitions, emptied: Mapping[ChainBranch, frozenset[Values]]) -> list[str]:
    """Return why partitions must not lose all their rows: a partition that exists hides others, or is one of the days.

    ``emptied``: those whose rows would all go. Nothing speaks against it where its whole group goes.
    """
    gone = {branch: emptied.get(branch, frozenset()) for branch in ChainBranch}
    left = Partitions(
        main=held.main - gone[ChainBranch.MAIN],
        snapshot=held.snapshot - gone[ChainBranch.SNAPSHOT],
        delta=held.delta - gone[ChainBranch.DELTA],
    )
    living = {layout.group_of(v) for v in left.all}
    deltas, anchors = TimeLines(layout, left.delta), TimeLines(layout, left.snapshot)
    text = layout.text_of
    found = []
    for values in sorted(gone[ChainBranch.MAIN], key=text):
        if values in left.snapshot | left.delta:
            found.append(
                f"{text(values)} of main, which hides that of the other branches: drop theirs, or correct main's rows"
            )
    for values in sorted(gone[ChainBranch.SNAPSHOT], key=text):
        moment = layout.parsed_time(values)
        line = deltas.of(layout.group_of(values))
        end = None if moment is None else anchors.of(layout.group_of(values)).time_after(moment)
        if moment is not None and line.between(moment, end):
            found.append(
                f"{text(values)} of branch {layout.snapshot_branch}, on which later deltas build: make the first delta "
                f"after it full (compact_chain_table), and drop it"
            )
    for values in sorted(gone[ChainBranch.DELTA], key=text):
        if values not in left.main | left.snapshot and layout.group_of(values) in living:
            found.append(
                f"{text(values)} of branch {layout.delta_branch}, without which that day has no rows at all: make it "
                f"full first (compact_chain_table)"
            )
    return found
