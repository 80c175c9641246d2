"""hyena-cpu info: what a model is and how it will be computed."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from .common import (
    Parser,
    add_log_options,
    add_model_options,
    add_output_options,
    load_model,
    output_format,
    version,
)
from .output import Output, to_json

if TYPE_CHECKING:
    from ..config import ModelConfig
    from ..model import Model


def parser() -> Parser:
    """Options of the command."""
    p = Parser("info", "Prints what a model is and how this machine will compute it.")
    add_model_options(p, memory=False)
    add_output_options(p, ("text", "json"))
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    form = output_format(args, "text")
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    facts = _facts(model, args.threads)
    with Output(args.output) as out:
        if form == "json":
            out.write(to_json(facts, indent=1))
        else:
            out.write("".join(_lines(facts)))
    return 0


def _facts(model: Model, threads: int | None) -> dict[str, Any]:
    import hyena_cpu

    from ..sampling import FILTER_ORDER, resolve
    from ..threads import choose_threads

    config = model.config
    return {
        "version": version(),
        "model": model.name,
        "folder": str(model.folder),
        "fingerprint": model.fingerprint,
        "family": config.family,
        "parameters": model.num_parameters,
        "d_model": config.d_model,
        "vocab_size": config.vocab_size,
        "logits_width": config.logits_width,
        "max_length": model.max_length,
        "causal": model.causal,
        "head": _head(config),
        "filters": _filters(config),
        "layers": [_layer(layer) for layer in config.layers],
        "tokenizer": None if config.tokenizer is None else config.tokenizer.kind,
        "special_tokens": dataclasses.asdict(config.special_tokens),
        "numerics": model.numerics,
        "threads": dataclasses.asdict(choose_threads(threads)),
        "kernels": hyena_cpu.build_info(),
        "sampling": dataclasses.asdict(resolve({}, model.generation)),
        "sampling_order": FILTER_ORDER,
        "notes": list(model.notes),
    }


def _head(config: ModelConfig) -> dict[str, Any]:
    """What comes after the last norm."""
    if config.classifier is not None:
        return {
            "kind": "classifier",
            "labels": config.classifier.labels,
            "pool": config.classifier.pool,
        }
    return {"kind": "language model", "tied": config.tie_embeddings}


def _filters(config: ModelConfig) -> list[dict[str, Any]]:
    """Every sort of long filter in the model: its taps (l_max of HyenaDNA) and window shift."""
    sorts: dict[tuple[Any, ...], dict[str, Any]] = {}
    for i, layer in enumerate(config.layers):
        filter = getattr(layer.mixer, "filter", None)
        if filter is None:
            continue
        windowed = filter.kind == "implicit" and filter.modulate
        row = {
            "kind": filter.kind,
            "taps": filter.taps,
            "modulation_shift": filter.shift if windowed else None,
        }
        sorts.setdefault(tuple(row.values()), {"layers": [], **row})["layers"].append(i)
    return list(sorts.values())


def _layer(layer: Any) -> dict[str, Any]:
    mlp = layer.mlp
    return {
        "mixer": dataclasses.asdict(layer.mixer),
        "mlp": None if mlp is None else dataclasses.asdict(mlp),
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    return [f"{name:<15} {_text(name, value)}\n" for name, value in facts.items()]


def _text(name: str, value: Any) -> str:
    if name == "layers":
        return ", ".join(layer["mixer"]["kind"] for layer in value)
    if name == "filters":
        return "; ".join(map(_filter_text, value)) or "none"
    if name == "threads":
        return f"{value['count']} ({value['reason']})"
    if isinstance(value, dict) and value:
        return ", ".join(f"{k} {_text('', v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, {}) else str(value)


def _filter_text(row: dict[str, Any]) -> str:
    shift = row["modulation_shift"]
    text = f"{row['kind']} of {row['taps']} taps"
    return text if shift is None else f"{text}, modulation shift {shift}"
