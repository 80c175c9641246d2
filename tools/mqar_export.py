"""Measures finished cells with the engine; writes the models `tiny-recall` and the results.

    python tools/mqar_export.py --work RUN --out hyena_cpu/assets/tiny-recall --docs docs

RUN is what train_mqar.py left. OUT gets one folder per mixer, those of N = 64 and d = 64, and the
model card; DOCS gets the table of results in recall.md (between its marks), recall.png and
recall.jsonl, one line per cell. Cells that have not run are absent from all of these.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from exporting import Json, file_hashes, write_json
from mqar_card import model_card
from mqar_model import MIXERS, RecallModel, config, recall_shape
from mqar_results import chosen, grid_cells, replace_results
from safetensors.torch import load_file
from text_model import Shape
from train_mqar import CHOICE, STOP, VALIDATION_SEED, WARMUP, WEIGHT_DECAY, read_cells

import hyena_cpu
from hyena_cpu import plots
from hyena_cpu.mqar import UNSCORED, Setting, accuracy, generate
from hyena_cpu.weights import save_folder

TEST_ROWS = 1000
TEST_SEED = 3062119789  # the authors' test rows for N = 64 and their seed 123
FACTS = {
    "rows": TEST_ROWS,
    "test_seed": TEST_SEED,
    "validation_seed": VALIDATION_SEED,
    "stop": STOP,
    "warmup": WARMUP,
    "weight_decay": WEIGHT_DECAY,
}
PROTOCOL = """\
Weights: the stored float16 values, those of long filters float32. Arithmetic: float32. Rows: \
hyena_cpu.mqar.generate(Setting(vocab_size, length, pairs), rows, seed), which no training row \
comes from. Accuracy: argmax over all rows of the head equals the label, mean over the labelled \
positions of a row, then over the rows; by PyTorch."""


def setting_of(line: Json) -> Setting:
    return Setting(line["vocabulary"], line["length"], line["pairs"])


def shape_of(line: Json) -> Shape:
    return recall_shape(line["mixer"], line["vocabulary"], line["length"], line["width"])


def write_model(line: Json, work: Path, folder: Path, name: str, dtype: Any) -> None:
    """The native folder of a cell."""
    weights = load_file(work / "weights" / line["weights"])
    shape = shape_of(line)
    tensors = {name: value.numpy() for name, value in weights.items()}
    shutil.rmtree(folder, ignore_errors=True)
    save_folder(folder, config(name, shape), tensors, dtype=dtype)


def measured(line: Json, work: Path) -> Json:
    """The line of a cell with the accuracy that the engine finds on held-out rows."""
    with tempfile.TemporaryDirectory() as home:
        write_model(line, work, Path(home) / "cell", "cell", "float32")
        model = hyena_cpu.load(Path(home) / "cell", threads=1)
        found = accuracy(model, *generate(setting_of(line), TEST_ROWS, TEST_SEED))
    test = {"test_accuracy": round(found, 5), "test_rows": TEST_ROWS, "test_seed": TEST_SEED}
    return {**line, **test, "chance": 1 / line["pairs"]}


@torch.no_grad()
def reference(line: Json, folder: Path) -> Json:
    """What PyTorch makes of the stored weights."""
    model = RecallModel(shape_of(line))
    stored = load_file(folder / "model.safetensors")
    model.load_state_dict({name: value.float() for name, value in stored.items()})
    rows = generate(setting_of(line), TEST_ROWS, TEST_SEED)
    inputs, labels = (torch.from_numpy(array) for array in rows)
    asked = labels != UNSCORED
    right = model(inputs, asked).argmax(dim=-1) == labels[asked]
    probe = inputs[0, : 1 + int(asked[0].nonzero()[0])]  # up to its first question
    last = model(probe[None], torch.ones(1, len(probe), dtype=torch.bool))[-1]
    return {
        "protocol": PROTOCOL,
        "vocab_size": line["vocabulary"],
        "length": line["length"],
        "pairs": line["pairs"],
        "rows": TEST_ROWS,
        "seed": TEST_SEED,
        "accuracy": float(right.float().mean()),
        "chance": 1 / line["pairs"],
        "logits": {
            "ids": probe.tolist(),
            "last_top_ids": list(range(len(last))),
            "last_top_logits": last.tolist(),
        },
    }


def write_bundled(lines: list[Json], work: Path, out: Path) -> None:
    """The folders of the bundled models, and their card."""
    out.mkdir(parents=True, exist_ok=True)
    rows, hashes = [], {}
    for mixer in MIXERS:
        line = chosen(lines, mixer, *CHOICE)
        if line is None:
            raise SystemExit(f"{mixer} has not been trained at N, d = {CHOICE}")
        folder = out / mixer
        write_model(line, work, folder, f"tiny-recall/{mixer}", "float16")
        found = reference(line, folder)
        write_json(folder, {"reference.json": found})
        size = (folder / "model.safetensors").stat().st_size
        rows.append({**line, "stored_accuracy": found["accuracy"], "bytes": size})
        hashes |= file_hashes(out, [f"{mixer}/model.safetensors"])
    (out / "MODEL_CARD.md").write_text(model_card(rows, hashes, FACTS), encoding="utf-8")


def write_results(lines: list[Json], docs: Path) -> None:
    """The table, the picture and the lines of all cells."""
    with (docs / "recall.jsonl").open("w") as stream:
        for line in lines:
            print(json.dumps(line), file=stream)
    page = docs / "recall.md"
    page.write_text(replace_results(page.read_text(), lines, STOP))
    points = [
        (c["mixer"], c["width"], c["length"], c["pairs"], c["test_accuracy"])
        for c in grid_cells(lines)
    ]
    plots.recall(docs / "recall.png", points)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--docs", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [measured(line, options.work) for line in read_cells(options.work)]
    write_bundled(lines, options.work, options.out)
    write_results(lines, options.docs)


if __name__ == "__main__":
    main()
