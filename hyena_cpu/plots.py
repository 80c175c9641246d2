"""Pictures of tables, drawn by matplotlib: variants, entropy along sequences, recall.

Equal numbers give equal files. What a picture holds in memory does not grow with a sequence.

Shapes: n values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError
from .streams import write_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = NDArray[np.float64]

FORMATS = ("png", "svg", "pdf")
UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
BINS = 2048  # points of a line; a page has fewer dots
MOST_PANELS = 8
MOST_NAMES = 40  # of records, below a picture
MANY_POINTS = 5000  # beyond that points are one image even in svg and pdf
COLORS = ("#1f5f8b", "#c05a1c")
MARKERS = "osv^Dx"


def check(path: Path) -> None:
    """InputError if the picture cannot be drawn: by its suffix, or without matplotlib."""
    if path.suffix[1:].lower() not in FORMATS:
        raise InputError(f"plot is {str(path)!r}, must end in one of {', '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401  whether it is there
    except ImportError:
        raise InputError(
            "plot needs matplotlib, which is not installed: pip install 'hyena-cpu[plot]'"
        ) from None


class Profile:
    """Means of values along positions, in at most BINS bins of `width` positions each."""

    def __init__(self) -> None:
        self.width = 1
        self._sums = np.zeros(BINS)
        self._counts = np.zeros(BINS)

    def add(self, positions: ArrayLike, values: ArrayLike) -> None:
        """Adds n values at n positions, in any order; positions below 0 and NaN count for nothing.

        None is a NaN.
        """
        at, series = np.asarray(positions, np.int64), np.asarray(values, np.float64)
        there = np.isfinite(series) & (at >= 0)
        at, series = at[there], series[there]
        while len(at) and at.max() >= BINS * self.width:
            self._sums, self._counts = _halved(self._sums), _halved(self._counts)
            self.width *= 2
        bins = at // self.width
        self._sums += np.bincount(bins, series, BINS)
        self._counts += np.bincount(bins, minlength=BINS)

    def line(self) -> tuple[Series, Series]:
        """Positions of the bins' middles, and their means; bins without a value are left out."""
        (there,) = self._counts.nonzero()
        middles = there.astype(np.float64) * self.width + (self.width - 1) / 2
        return middles, self._sums[there] / self._counts[there]


class Entropies:
    """Entropy along the first MOST_PANELS sequences of a table with a row per position."""

    def __init__(self) -> None:
        self._panels: dict[tuple[int, str], tuple[str, Profile]] = {}
        self._last: tuple[int, str] | None = None
        self._total = 0

    def add(self, columns: Mapping[str, Any]) -> None:
        """Adds n rows of one sequence: columns index, id, strand, position and entropy, in bits.

        A record's strands are sequences of their own.
        """
        if not len(columns["index"]):
            return
        sequence = int(columns["index"][0]), str(columns["strand"][0])
        self._total += sequence != self._last
        self._last = sequence
        if sequence not in self._panels and len(self._panels) < MOST_PANELS:
            other = ", reverse strand" if sequence[1] == "rc" else ""
            self._panels[sequence] = f"{columns['id'][0]}{other}", Profile()
        if sequence in self._panels:
            self._panels[sequence][1].add(columns["position"], columns["entropy"])

    def draw(self, path: Path) -> None:
        """A panel per sequence. InputError: see `check`; WriteError: the file cannot be written."""
        check(path)
        shown = list(self._panels.values())
        figure = _figure(0.8 + 1.7 * max(1, len(shown)))
        panels = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
        for panel, (label, profile) in zip(panels, shown, strict=False):
            panel.plot(*profile.line(), color=COLORS[0], linewidth=0.8)
            panel.axhline(2, color="0.6", linewidth=0.8, linestyle=":")  # four equally likely bases
            means = f" (means of {profile.width} positions)" if profile.width > 1 else ""
            panel.set_title(f"{label}{means}", loc="left", fontsize=9)
            panel.margins(x=0)
            panel.set_ylim(bottom=0)
        panels[-1].set_xlabel("position, from 0")
        figure.supylabel("entropy of the base, bits", fontsize=10)
        if self._total > len(shown):
            figure.suptitle(f"the first {len(shown)} of {self._total} sequences", fontsize=10)
        _save(figure, path)


def deltas(path: Path, points: Iterable[tuple[str, int, float]]) -> None:
    """Differences of log-likelihood along the reference, a point per variant.

    Args:
        points: (record, position, difference in nats), in any order; records are drawn side by
            side, in the order of their first points.

    Raises:
        InputError: see `check`. WriteError: the file cannot be written.
    """
    check(path)
    records: dict[str, list[tuple[int, float]]] = {}
    for record, position, delta in points:
        records.setdefault(record, []).append((position, delta))
    figure = _figure(4)
    panel = figure.subplots()
    panel.axhline(0, color="0.6", linewidth=0.8)
    _points(panel, records)
    if len(records) == 1:
        from matplotlib.ticker import MaxNLocator

        panel.xaxis.set_major_locator(MaxNLocator(integer=True))  # positions are whole
    panel.set_ylabel("log-likelihood of the allele\nminus that of the reference, nats")
    _save(figure, path)


def recall(path: Path, points: Iterable[tuple[str, int, int, int, float]]) -> None:
    """Accuracy of associative recall by width: a panel per kind of rows, a line per kind of model.

    Args:
        path: the picture.
        points: (kind of model, width, length, pairs, accuracy), in any order. The dotted line is
            chance: guessing among the values of a row.

    Raises:
        InputError: see `check`. WriteError: the file cannot be written.
    """
    check(path)
    found = list(points)
    rows = sorted({(length, pairs) for _, _, length, pairs, _ in found})
    widths = sorted({width for _, width, *_ in found})
    figure = _figure(3.2)
    panels = figure.subplots(1, max(1, len(rows)), sharey=True, squeeze=False)[0]
    for panel, kind in zip(panels, rows, strict=False):
        for i, label in enumerate(dict.fromkeys(label for label, *_ in found)):
            line = sorted((w, a) for name, w, n, d, a in found if (name, n, d) == (label, *kind))
            panel.plot(
                [width for width, _ in line],
                [value for _, value in line],
                color=f"C{i}",
                marker=MARKERS[i % len(MARKERS)],
                label=label,
            )
        panel.axhline(1 / kind[1], color="0.5", linewidth=0.8, linestyle=":")
        panel.set_title(f"length {kind[0]}, {kind[1]} pairs", fontsize=9)
        panel.set_xscale("log", base=2)
        panel.set_xticks(widths, [str(width) for width in widths])
        panel.minorticks_off()
        panel.set_xlabel("width")
        panel.set_ylim(0, 1.04)
    panels[0].set_ylabel("accuracy")
    if found:
        panels[0].legend(fontsize=8)
    _save(figure, path)


def _points(panel: Axes, records: Mapping[str, list[tuple[int, float]]]) -> None:
    many = sum(map(len, records.values())) > MANY_POINTS
    begin, middles = 0.0, []
    for i, found in enumerate(records.values()):
        positions, values = np.array(found, np.float64).T
        shift = begin - positions.min() if len(records) > 1 else 0.0
        x = positions + shift
        panel.scatter(
            x, values, s=8 if many else 16, color=COLORS[i % 2], linewidths=0, rasterized=many
        )
        middles.append((x.min() + x.max()) / 2)
        begin = x.max() + max(1.0, 0.02 * (x.max() - x.min()))
    if len(records) > 1:
        every = -(-len(records) // MOST_NAMES)
        names = list(records)[::every]
        panel.set_xticks(middles[::every], names, rotation=90 if len(names) > MOST_PANELS else 0)
        panel.set_xlabel("record of the reference")
    else:
        panel.ticklabel_format(axis="x", style="plain", useOffset=False)
        panel.set_xlabel(f"position in {next(iter(records))}" if records else "position")


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(9, height), dpi=150, layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    """Under a temporary name first, so that a picture is complete or absent."""
    import matplotlib

    form = path.suffix[1:].lower()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with write_errors(path), matplotlib.rc_context({"svg.hashsalt": "hyena-cpu"}):
            figure.savefig(temporary, format=form, metadata=UNDATED.get(form))
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # after the renaming it is not there
            temporary.unlink()


def _halved(bins: Series) -> Series:
    """Sums of pairs of bins, then empty ones."""
    return np.concatenate([bins.reshape(-1, 2).sum(axis=1), np.zeros(len(bins) // 2)])
