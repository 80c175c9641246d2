"""Two log-log plots of the measured rows: time and memory against length."""

from __future__ import annotations

from collections.abc import Sequence
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


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes speed-time.svg and speed-memory.svg; returns those that have something to show."""
    plots = [
        (folder / "speed-time.svg", ("prefill", "prefill-long"), "seconds", 1.0),
        (folder / "speed-memory.svg", ("memory", "memory-long"), "MB beyond the loaded model", 1e6),
    ]
    return [path for path, stages, label, unit in plots if _draw(rows, path, stages, label, unit)]


def _draw(
    rows: Sequence[Row], path: Path, stages: tuple[str, ...], label: str, unit: float
) -> bool:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hyena-cpu"  # the same file for the same figures
    from matplotlib import pyplot

    lines = series(rows, stages, lambda row: row["median"])
    if not lines:
        return False
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for side, points in lines.items():
        lengths, values = zip(*points, strict=True)
        scaled = [value / unit for value in values]
        axes.plot(lengths, scaled, "o-", label=side, color=COLOURS.get(side), markersize=4)
    for points in series(rows, stages, lambda row: row["floor"]).values():
        lengths, values = zip(*points, strict=True)
        scaled = [value / unit for value in values]
        axes.plot(lengths, scaled, "k--", label="floor", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
    axes.grid(which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True
