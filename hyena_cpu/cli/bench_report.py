"""The tables of `hyena-cpu bench`: rows written as they are measured, as md, json, jsonl or csv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..planner import readable
from ..tables import csv_text
from .output import Output, to_json

Row = dict[str, Any]
Column = tuple[str, int, Callable[[Row], str]]  # heading, least width, text of a row


def numbers(values: Sequence[float]) -> str:
    """Each to four digits."""
    return " ".join(f"{value:.4g}" for value in values)


def size(value: int | None) -> str:
    """Bytes as a person writes them, NA where they are not known."""
    return "NA" if value is None else readable(value)


MODEL_COLUMNS: tuple[Column, ...] = (
    ("test", 12, lambda row: row["test"]),
    ("tokens/s", 9, lambda row: f"{row['tokens_per_second']:.4g}"),
    ("each repetition", 36, lambda row: numbers(row["each_tokens_per_second"])),
    ("first call s", 12, lambda row: f"{row['first_seconds']:.3g}"),
    ("memory planned", 14, lambda row: size(row["planned_bytes"])),
    ("measured", 10, lambda row: size(row["measured_bytes"])),
)
MIXER_COLUMNS: tuple[Column, ...] = (
    ("mixer", 15, lambda row: row["mixer"]),
    ("N", 7, lambda row: str(row["length"])),
    ("ms", 8, lambda row: f"{row['milliseconds']:.4g}"),
    ("each repetition", 36, lambda row: numbers(row["each_milliseconds"])),
    ("GFLOP", 7, lambda row: f"{row['operations'] / 1e9:.3g}"),
    ("GFLOP/s", 7, lambda row: f"{row['gflops']:.3g}"),
    ("N / log2 N", 10, lambda row: f"{row['n_over_log2_n']:.4g}"),
    ("state", 10, lambda row: size(row["state_bytes"])),
)
RECALL_COLUMNS: tuple[Column, ...] = (
    ("model", 22, lambda row: row["model"]),
    ("mixers", 20, lambda row: row["mixers"]),
    ("parameters", 10, lambda row: f"{row['parameters']:,}"),
    ("accuracy", 8, lambda row: f"{row['accuracy']:.3f}"),
    ("chance", 6, lambda row: f"{row['chance']:.3g}"),
    ("pp1024 t/s", 10, lambda row: f"{row['prompt_rate']:.4g}"),
    ("tg64 t/s", 8, lambda row: f"{row['step_rate']:.4g}"),
    ("tg64 @ d4096", 12, lambda row: f"{row['deep_step_rate']:.4g}"),
)


class Report:
    """Rows to an Output. `facts` belong to all of them: nested in json, in every row of jsonl and
    csv as far as they are plain (`shared`), in a line below the md table.
    """

    def __init__(self, out: Output, form: str, columns: Sequence[Column], facts: Row) -> None:
        self._out, self._form, self._columns, self._facts = out, form, columns, facts
        self._rows: list[Row] = []
        self._crossovers: list[Row] = []

    def add(self, row: Row) -> None:
        """A row, or a crossover, now rather than at the end (json alone is written at the end)."""
        if "crossover" in row:
            self._crossovers.append(row)
            if self._form == "jsonl":
                self._out.write(to_json(self._facts["shared"] | row))
            return
        self._rows.append(row)
        if self._form == "md":
            lines = _header(self._columns) if len(self._rows) == 1 else ""
            self._out.write(
                lines + _line([text(row) for _, _, text in self._columns], self._columns)
            )
        elif self._form == "jsonl":
            self._out.write(to_json(self._facts["shared"] | row))
        elif self._form == "csv":
            line = self._facts["shared"] | row
            self._out.write(_csv(line, header=len(self._rows) == 1))

    def finish(self, *, interrupted: bool) -> None:
        """What stands below the rows."""
        if self._form == "json":
            facts = {k: v for k, v in self._facts.items() if k != "shared"}
            rows = {"rows": self._rows, "crossovers": self._crossovers}
            if not self._crossovers:
                del rows["crossovers"]
            self._out.write(to_json({**facts, **rows, "interrupted": interrupted}, indent=1))
        elif self._form == "md":
            below = [", ".join(f"{k} {v}" for k, v in self._facts["shared"].items())]
            below += [_sentence(row) for row in self._crossovers]
            if interrupted:
                below.append("interrupted: the rows that are complete")
            self._out.write("\n" + "".join(f"{line}\n" for line in below))


def _header(columns: Sequence[Column]) -> str:
    rule = "|".join("-" * (width + 1) + ":" for _, width, _ in _wide(columns))
    return _line([heading for heading, _, _ in columns], columns) + f"|{rule}|\n"


def _line(texts: Sequence[str], columns: Sequence[Column]) -> str:
    cells = [text.rjust(width) for text, (_, width, _) in zip(texts, _wide(columns), strict=True)]
    return f"| {' | '.join(cells)} |\n"


def _wide(columns: Sequence[Column]) -> list[Column]:
    return [(heading, max(width, len(heading)), text) for heading, width, text in columns]


def _csv(row: Row, *, header: bool) -> str:
    cells = [
        " ".join(map(str, v)) if isinstance(v, list) else "NA" if v is None else v
        for v in row.values()
    ]
    return csv_text([row, cells] if header else [cells])


def _sentence(row: Row) -> str:
    """What a crossover says."""
    first, second, at = row["first"], row["second"], row["at"]
    tried = f"of {row['lengths'][0]} .. {row['lengths'][-1]} tried"
    if at is None:
        return f"{second} is not faster than {first} at the longest length {tried}"
    return f"{second} is faster than {first} from a length of {at} on ({tried})"
