"""The measured rows as the README's table: ratios of medians, floors, crossovers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]
COLUMNS = (
    1024,
    8192,
    32_768,
    65_536,
    131_072,
    160_000,
    262_144,
    450_000,
    1_000_000,
)  # those with figures are shown

TITLES = {
    "kernel": "gated long convolution, 1 thread",
    "prefill": "prefill, HyenaDNA-small",
    "prefill-long": "prefill, HyenaDNA-small",
    "prefill-medium": "prefill, HyenaDNA-medium",
    "prefill-million": "prefill, HyenaDNA-medium",
    "allocator": "prefill, HyenaDNA-small",
    "avx2": "prefill, both held to AVX2",
    "bfloat16": "prefill, HyenaDNA-small",
    "decode": "decode after so long a prompt",
    "decode-long": "decode after so long a prompt",
    "state": "what a sequence is kept in",
    "state-long": "what a sequence is kept in",
    "latency": "single tokens after so long a prompt",
    "memory": "memory, HyenaDNA-small",
    "memory-long": "memory, HyenaDNA-small",
    "memory-tiny": "memory, HyenaDNA-tiny",
    "memory-million": "memory, HyenaDNA-medium",
}


def markdown(rows: Sequence[Row]) -> str:
    """The table, the crossovers and what is missing."""
    columns = [n for n in COLUMNS if any(row["length"] == n for row in rows if row["values"])]
    head = ["what", "against", *(f"{n:,}" for n in columns)]
    lines = [
        head,
        ["---"] * len(head),
        *(cells(line, columns) for line in table(rows) if line[2].keys() & set(columns)),
    ]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    below = [*crossovers(rows), *missing(rows)]
    return text + ("\n" + "".join(f"- {line}\n" for line in below) if below else "")


Line = tuple[str, str, dict[int, str]]  # what, against, text by length


def table(rows: Sequence[Row]) -> list[Line]:
    """Ratios for every other side, then our own figure and its floor; stages of one title and side
    are one line.
    """
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for (stage, length), group in grouped(rows).items():
        title, ours = TITLES[stage], group[0]
        for row in group[1:]:
            if row["median"] is not None and ours["median"] is not None:
                ratio = row["median"] / ours["median"]
                lines.setdefault((title, row["side"]), {})[length] = times(ratio)
        if ours["median"] is not None:
            for name, value in own(ours).items():
                lines.setdefault((title, name), {})[length] = value
    return [(title, against, found) for (title, against), found in lines.items()]


def times(ratio: float) -> str:
    """A ratio with a digit behind the point while that says something."""
    return f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def own(row: Row) -> dict[str, str]:
    """Our figure itself, by what it is called."""
    if row["unit"] == "bytes":
        return {f"{row['side']} itself": f"{row['median'] / 1e6:.3g} MB"}
    if "p99" in row:
        figures = (f"{1e3 * row[name]:.3g}" for name in ("median", "p99", "max"))
        return {f"{row['side']}: median, 99 %, slowest, ms": " / ".join(figures)}
    found = {f"{row['side']} itself": f"{1e3 * row['median']:.3g} ms"}
    if row["floor"]:
        found[f"{row['side']} over its floor"] = f"{row['median'] / row['floor']:.1f}"
    return found


def cells(line: Line, columns: Iterable[int]) -> list[str]:
    """A line of the table."""
    title, against, found = line
    return [title, against, *(found.get(n, "") for n in columns)]


def crossovers(rows: Sequence[Row]) -> list[str]:
    """From which length on we are faster than each other side of the prefill."""
    found = []
    groups = [group for (stage, _), group in grouped(rows).items() if stage == "prefill"]
    for name in dict.fromkeys(row["side"] for group in groups for row in group[1:]):
        pairs = [
            (row["length"], row["median"] > group[0]["median"])
            for group in groups
            for row in group[1:]
            if row["side"] == name and None not in (row["median"], group[0]["median"])
        ]
        if pairs:
            found.append(f"{name}: {_crossing(sorted(pairs))}")
    return found


def _crossing(pairs: list[tuple[int, bool]]) -> str:
    at = None
    for length, faster in reversed(pairs):
        if not faster:
            break
        at = length
    if at is None:
        return f"hyena-cpu is not faster at {pairs[-1][0]:,}, the longest length tried"
    if at == pairs[0][0]:
        return f"hyena-cpu is faster from {at:,} on, the shortest length tried"
    return f"hyena-cpu is faster from {at:,} on"


def missing(rows: Sequence[Row]) -> list[str]:
    """Sides without figures, and why."""
    return list(
        dict.fromkeys(
            f"not measured: {row['side']}: {row['absent']}" for row in rows if row["absent"]
        )
    )


def grouped(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows of one comparison together, ours first."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["stage"], row["length"]), []).append(row)
    return found


def series(rows: Sequence[Row], stages: Sequence[str], key: Callable[[Row], Any]) -> dict:
    """(length, figure) of each side over stages, for a plot; sides that were tuned are left out."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        value = key(row)
        if row["stage"] in stages and not row["environment"] and value is not None:
            found.setdefault(row["side"], {})[row["length"]] = value
    return {side: sorted(points.items()) for side, points in found.items()}
