"""The results of the recall grid as Markdown, from the lines of its cells."""

from __future__ import annotations

from exporting import Json, table
from train_mqar import CHOICE, MIXERS, PAIRS, VOCABULARIES, WIDTHS, chosen_rate

BEGIN, END = "<!-- results: written by tools/mqar_export.py -->", "<!-- end of the results -->"
SOLVED = 0.99  # accuracy on the test rows
NAMES = {
    "attention": "attention, attention",
    "hybrid": "BaseConv (3 taps), attention",
    "base_conv": "BaseConv (3 taps), BaseConv (long)",
    "hyena": "Hyena, Hyena",
}


def grid_seconds(lines: list[Json]) -> float:
    """CPU seconds that a cell of the grid was planned for: the smallest budget."""
    return min(line["seconds"] for line in lines)


def chosen(lines: list[Json], mixer: str, length: int, width: int) -> Json | None:
    """The cell of the grid with the chosen learning rate, if it has run."""
    found = [
        line
        for line in lines
        if (line["mixer"], line["length"], line["width"]) == (mixer, length, width)
        and line["seconds"] == grid_seconds(lines)
        and line["rate"] == chosen_rate(lines, mixer)
    ]
    return found[0] if found else None


def grid_cells(lines: list[Json]) -> list[Json]:
    """The cells of the grid that have run, mixer after mixer."""
    places = [(m, n, d) for m in MIXERS for n in PAIRS for d in sorted(WIDTHS)]
    cells = [chosen(lines, *place) for place in places]
    return [cell for cell in cells if cell is not None]


def replace_results(page: str, lines: list[Json], stop: float) -> str:
    """The page with its results between the marks written anew."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{results(lines, stop)}\n{END}{after}"


def results(lines: list[Json], stop: float) -> str:
    """The tables."""
    seconds, cells = grid_seconds(lines), grid_cells(lines)
    spent = sum(line["cpu_seconds"] for line in lines) / 60
    longer = [line for line in lines if line["seconds"] > seconds]
    parts = [
        f"Accuracy on {cells[0]['test_rows']:,} held-out rows, by this engine, at a budget of "
        f"{seconds:.0f} CPU seconds a cell; in brackets the CPU seconds and the training rows it "
        f"took. A cell ends at {stop} on other held-out rows. {len(cells)} of "
        f"{len(MIXERS) * len(PAIRS) * len(WIDTHS)} cells have run; all runs of this page together "
        f"took {spent:.0f} CPU minutes of one thread.",
        f"At {SOLVED} or more: {solved(cells)}.",
        grid_table(lines),
    ]
    if longer:
        parts += ["Longer runs:", longer_table(longer)]
    parts += [
        "Learning rates, tried in this order at N = {}, d = {} until one solves it; otherwise the "
        "most accurate on the validation rows is taken:".format(*CHOICE),
        rate_table(lines),
    ]
    return "\n\n".join(parts)


def solved(cells: list[Json]) -> str:
    """How many cells of each model are solved, of those that have run."""
    counts = []
    for mixer in MIXERS:
        own = [cell["test_accuracy"] for cell in cells if cell["mixer"] == mixer]
        counts.append(f"{NAMES[mixer]}: {sum(a >= SOLVED for a in own)} of {len(own)}")
    return "; ".join(counts)


def grid_table(lines: list[Json]) -> str:
    widths = sorted(WIDTHS)
    rows = [["N", "V", "pairs", "chance", "layers", *(f"d = {d}" for d in widths)]]
    rows.append(["---"] * len(rows[0]))
    for length, pairs in PAIRS.items():
        for mixer in MIXERS:
            cells = [chosen(lines, mixer, length, width) for width in widths]
            about = [str(length), str(VOCABULARIES[length]), str(pairs), f"{1 / pairs:.4g}"]
            about.append(NAMES[mixer])
            rows.append(about + [entry(cell) for cell in cells])
    return table(rows)


def longer_table(lines: list[Json]) -> str:
    rows = [["N", "pairs", "chance", "layers", "d", "learning rate", "accuracy"]]
    rows.append(["---"] * len(rows[0]))
    for line in lines:
        about = [str(line[key]) for key in ("length", "pairs", "chance")]
        more = [NAMES[line["mixer"]], str(line["width"]), f"{line['rate']:g}", entry(line)]
        rows.append(about + more)
    return table(rows)


def rate_table(lines: list[Json]) -> str:
    at = [
        line
        for line in lines
        if (line["length"], line["width"]) == CHOICE and line["seconds"] == grid_seconds(lines)
    ]
    rows = [["layers", "learning rate", "validation", "test", "loss, nats"], ["---"] * 5]
    for mixer in MIXERS:
        for line in (line for line in at if line["mixer"] == mixer):
            mark = " (chosen)" if line["rate"] == chosen_rate(lines, mixer) else ""
            scores = [f"{line[key]:.4f}" for key in ("accuracy", "test_accuracy")]
            rate = f"{line['rate']:g}{mark}"
            rows.append([NAMES[mixer], rate, *scores, f"{line['loss']:.3f}"])
    return table(rows)


def entry(cell: Json | None) -> str:
    """Accuracy, CPU seconds and training rows of a cell."""
    if cell is None:
        return "not run"
    rows = f"{cell['sequences'] / 1000:.0f}k"
    return f"{cell['test_accuracy']:.3f} ({cell['cpu_seconds']:.0f} s, {rows})"
