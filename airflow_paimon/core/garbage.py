"""Garbage collection in the processes that this package starts; other processes are the user's."""

import gc


def collect_seldom() -> None:
    """Search for garbage seldom in this process: a plan makes millions of objects that stay, and the search took half
    of its time (measured).
    """
    gc.set_threshold(50_000, 20, 20)
