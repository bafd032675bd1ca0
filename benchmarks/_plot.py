"""Line plots of the documentation, as SVG files that are the same for the same figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Points = Sequence[tuple[float, float]]
_COLOURS = 10


def draw(path: Path, series: Mapping[str, Points], *, title: str, x: str, y: str, log: bool = True) -> None:
    """Draw lines of (x, y) by their names into an SVG file. ``log``: both axes are logarithmic.

    Needs the extra ``bench`` (matplotlib), which ``make bench`` installs.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = title
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for number, (name, points) in enumerate(series.items()):
        style = "-" if number < _COLOURS else "--"
        axes.plot(*zip(*points, strict=True), style, marker="o", markersize=4, label=name)
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(True, which="major", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
