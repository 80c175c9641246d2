"""Log-log plots of the measured rows: time and memory against length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from summary import series

Row = dict[str, Any]

COLOURS = {
    "hyena-cpu": "#0072b2",
    "PyTorch Hyena": "#d55e00",
    "PyTorch attention": "#009e73",
    "llama.cpp": "#cc79a7",
}


OPERATIONS = "operations at the rate of a matrix product"


@dataclass(frozen=True)
class Plot:
    """A file, the stages in it, its vertical axis, and what its floor is."""

    file: str
    stages: tuple[str, ...]
    label: str
    unit: float
    floor: str = ""


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes the plots that have something to show, and returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = (
        Plot("speed-time.svg", ("prefill", "prefill-long"), "seconds", 1.0, OPERATIONS),
        Plot("speed-memory.svg", ("memory", "memory-long"), "MB", 1e6, "the residual stream alone"),
        Plot("speed-decode.svg", ("decode", "decode-long"), "milliseconds a token", 1e-3),
    )
    return [folder / plot.file for plot in plots if _draw(rows, plot, folder)]


def _draw(rows: Sequence[Row], plot: Plot, folder: Path) -> bool:
    """Writes one plot; False if there is nothing to show."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hyena-cpu"  # the same file for the same figures
    from matplotlib import pyplot

    lines = series(rows, plot.stages, lambda row: row["median"])
    if not lines:
        return False
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for side, points in lines.items():
        _line(axes, points, plot.unit, "o-", label=side, color=COLOURS.get(side), markersize=4)
    for points in series(rows, plot.stages, lambda row: row["floor"]).values():
        _line(axes, points, plot.unit, "k--", label=plot.floor, linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=plot.label)
    axes.grid(which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(folder / plot.file, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _line(
    axes: Any, points: Sequence[tuple[int, float]], unit: float, style: str, **how: Any
) -> None:
    lengths, values = zip(*points, strict=True)
    axes.plot(lengths, [value / unit for value in values], style, **how)
