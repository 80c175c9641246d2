"""Trains the small recall models: mixers x lengths x widths, cell by cell.

    pip install .[train]
    python tools/train_mqar.py --work RUN
    python tools/train_mqar.py --work RUN --only base_conv:64:128 --seconds 600

A cell is one mixer, length N, width d, learning rate and seed. It leaves a line in
RUN/cells.jsonl and weights in RUN/weights/, and is passed over when its line is there, so the tool
may be stopped at any time; an unfinished cell begins anew. Seconds are CPU seconds of the process:
pauses and other work do not count. The rate of a mixer is chosen at N = 64, d = 64: the first that
solves it, else the one with the highest accuracy.

The number of steps follows from --seconds and the speed of this machine, measured at the start of
a cell, and is written down; with --steps the cell repeats elsewhere, up to rounding.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from mqar_batches import RowSampler
from mqar_model import MIXERS, RecallModel, recall_shape
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from training import replace_file

from hyena_cpu.mqar import UNSCORED, Setting, generate

PAIRS = {64: 4, 128: 8, 256: 16}
VOCABULARIES = {64: 256, 128: 256, 256: 512}  # larger than the length
WIDTHS = (64, 32, 128)
RATES = (3e-3, 1e-3, 1e-2)
CHOICE = (64, 64)  # N and d where the learning rate is chosen
TOKENS = 8192  # in a batch: 512 queries at every length
WARMUP = 100  # steps
WEIGHT_DECAY = 0.1
STOP = 0.995  # accuracy that ends a cell
EVALUATIONS = 18
VALIDATION_ROWS = 1000
VALIDATION_SEED = 843828734
TIMED_STEPS = 12


@dataclass(frozen=True)
class Cell:
    """One training run."""

    mixer: str
    length: int
    width: int
    rate: float
    seed: int
    seconds: float

    @property
    def pairs(self) -> int:
        return PAIRS[self.length]

    @property
    def setting(self) -> Setting:
        return Setting(VOCABULARIES[self.length], self.length, self.pairs)

    @property
    def name(self) -> str:
        return (
            f"{self.mixer}-N{self.length}-d{self.width}-lr{self.rate:g}-seed{self.seed}"
            f"-{self.seconds:g}s"
        )


def rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then linear to a tenth."""
    return min(1.0, (step + 1) / WARMUP) * (1 - 0.9 * step / steps)


class CellTrainer:
    """Model, optimizer and rows of one cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        torch.manual_seed(cell.seed)
        vocabulary = cell.setting.vocab_size
        self.model = RecallModel(recall_shape(cell.mixer, vocabulary, cell.length, cell.width))
        self.sampler = RowSampler(cell.setting, cell.seed)
        self.batch = TOKENS // cell.length
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=cell.rate,
            weight_decay=WEIGHT_DECAY,
            betas=(0.9, 0.98),
            fused=True,
        )

    def step(self, factor: float) -> float:
        """One step at this part of the rate; its loss in nats a query."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.cell.rate * factor
        inputs, labels = self.sampler.draw(self.batch)
        chosen = labels != UNSCORED
        loss = functional.cross_entropy(self.model(inputs, chosen), labels[chosen])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(f"{self.cell.name}: loss is {value}")
        return value

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, labels: Tensor) -> float:
        """Share of the queries whose likeliest token is the value; every row has as many."""
        right = total = 0
        for x, y in zip(inputs.split(self.batch), labels.split(self.batch), strict=True):
            chosen = y != UNSCORED
            found = self.model(x, chosen).argmax(dim=-1) == y[chosen]
            right, total = right + int(found.sum()), total + found.numel()
        return right / total


def planned_steps(cell: Cell) -> int:
    """Steps that fit the seconds of a cell, two digits of it: measured on a copy thrown away."""
    trainer = CellTrainer(cell)
    trainer.step(0.0)
    clock = time.process_time()
    for _ in range(TIMED_STEPS):
        trainer.step(0.0)
    steps = cell.seconds * TIMED_STEPS / (time.process_time() - clock)
    digits = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return max(EVALUATIONS, int(steps // digits * digits))


def run_cell(cell: Cell, steps: int | None, work: Path) -> dict[str, Any]:
    """Trains a cell, keeps its weights and returns its line."""
    steps = steps or planned_steps(cell)
    trainer = CellTrainer(cell)
    held_out = [
        torch.from_numpy(a) for a in generate(cell.setting, VALIDATION_ROWS, VALIDATION_SEED)
    ]
    spacing, clock, loss = max(1, steps // EVALUATIONS), time.process_time(), 0.0
    curve: list[list[float]] = []
    done = 0
    while done < steps:
        part = trainer.step(rate_factor(done, steps))
        loss = part if done == 0 else 0.98 * loss + 0.02 * part
        done += 1
        if done % spacing == 0 or done == steps:
            accuracy = trainer.accuracy(*held_out)
            seconds = time.process_time() - clock
            curve.append([done * trainer.batch, round(seconds, 1), round(accuracy, 5)])
            print(
                f"{cell.name} {done}/{steps} {seconds:.1f}s {loss:.4f} {accuracy:.4f}", flush=True
            )
            if accuracy >= STOP:
                break
    weights = {n: v.contiguous() for n, v in trainer.model.state_dict().items()}
    path = work / "weights" / f"{cell.name}.safetensors"
    replace_file(path, lambda part: save_file(weights, part))
    return {
        **asdict(cell),
        "pairs": cell.pairs,
        "vocabulary": cell.setting.vocab_size,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "batch": trainer.batch,
        "steps_planned": steps,
        "steps": done,
        "sequences": done * trainer.batch,
        "cpu_seconds": curve[-1][1],
        "loss": round(loss, 4),
        "accuracy": curve[-1][2],
        "curve": curve,
        "weights": path.name,
    }


def read_cells(work: Path) -> list[dict[str, Any]]:
    """The lines of the finished cells."""
    path = work / "cells.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def chosen_rate(lines: list[dict[str, Any]], mixer: str) -> float:
    """The rate with the highest accuracy at CHOICE."""
    rate: float = max(tried_rates(lines, mixer), key=lambda line: line["accuracy"])["rate"]
    return rate


def tried_rates(lines: list[dict[str, Any]], mixer: str) -> list[dict[str, Any]]:
    """The lines of a mixer at CHOICE."""
    at = [line for line in lines if (line["length"], line["width"]) == CHOICE]
    return [line for line in at if line["mixer"] == mixer]


def grid(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells in order: the choice of rates, then the other widths and lengths."""

    def cell(mixer: str, length: int, width: int, rate: float) -> Cell:
        return Cell(mixer, length, width, rate, options.seed, options.seconds)

    for rate in RATES:
        for mixer in MIXERS:
            tried = tried_rates(read_cells(options.work), mixer)
            if all(line["accuracy"] < STOP for line in tried):
                yield cell(mixer, *CHOICE, rate)
    for length in PAIRS:
        for width in WIDTHS:
            for mixer in MIXERS:
                if (length, width) != CHOICE:
                    yield cell(mixer, length, width, chosen_rate(read_cells(options.work), mixer))


def only(options: argparse.Namespace) -> Iterator[Cell]:
    """The one cell of --only, at the chosen rate unless --rate is given."""
    mixer, length, width = options.only.split(":")
    rate = options.rate or chosen_rate(read_cells(options.work), mixer)
    yield Cell(mixer, int(length), int(width), rate, options.seed, options.seconds)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, help="results, weights")
    add("--seconds", type=float, default=90.0, help="CPU seconds of a cell")
    add("--steps", type=int, help="steps of a cell, instead of measuring what fits --seconds")
    add("--seed", type=int, default=0)
    add("--only", metavar="MIXER:N:d", help="one cell instead of the grid")
    add("--rate", type=float, help="learning rate of --only (default: the chosen one)")
    options = parser.parse_args()
    if options.rate is not None and options.only is None:
        parser.error("--rate acts on --only alone: the grid chooses its rates")
    return options


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    (options.work / "weights").mkdir(parents=True, exist_ok=True)
    for cell in only(options) if options.only else grid(options):
        done = {line["weights"] for line in read_cells(options.work)}
        if f"{cell.name}.safetensors" in done:
            continue
        line = run_cell(cell, options.steps, options.work)
        with (options.work / "cells.jsonl").open("a") as stream:
            print(json.dumps(line), file=stream)
            stream.flush()
            os.fsync(stream.fileno())


if __name__ == "__main__":
    main()
