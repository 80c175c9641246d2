"""What the exports of the bundled models share."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from text_model import Shape, TextModel

Json = dict[str, Any]


def parse_arguments(description: str | None) -> argparse.Namespace:
    """Data, run and model folder."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HYENA_CPU_DATA"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the data folder: --data DIR, or HYENA_CPU_DATA in the environment")
    return options


def load_model(path: Path, shape: Shape) -> TextModel:
    """The float32 model of a float16 file."""
    model = TextModel(shape)
    model.load_state_dict({name: value.float() for name, value in load_file(path).items()})
    return model.eval()


def read_log(work: Path) -> list[Json]:
    return [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]


def file_hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """sha256 by file name."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def write_json(folder: Path, files: Mapping[str, Json]) -> None:
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")


def table(rows: Iterable[Iterable[str]]) -> str:
    """Rows of a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def curve_rows(log: list[Json], key: str) -> list[list[str]]:
    """Tokens, training loss just before, and held-out bits (`key`) of every measurement."""
    rows = []
    loss = ""
    for entry in log:
        loss = f"{entry['loss']:.3f}" if "loss" in entry else loss
        if key in entry:
            rows.append([f"{entry['tokens']:,}", loss, f"{entry[key]:.4f}"])
    return rows
