"""Is a model computed as it should be? Checks that need nothing but its own folder.

Worked numbers in float64 (`worked`), steps against the whole sequence, threads and batches against
one, and outputs of the original where the folder ships them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from . import config_json, worked
from .errors import ModelError
from .model import Model
from .weights import Weights, detect_family, load_folder
from .worked import Check, compared, scaled, tokens

__all__ = ["Check", "finite", "verify"]

STEP_BOUND = 1e-4  # times the largest logit, or 1
STORED_BOUND = 2e-5  # likewise
TOKENS = 300


def verify(model: Model, weights: Weights | None = None) -> list[Check]:
    """Runs every check that the model allows, on sequences of a few hundred tokens.

    Args:
        model: from `hyena_cpu.load`.
        weights: what it was made of; None reads them from its folder again.

    Returns:
        Checks in a fixed order, failed and skipped ones among them. If a weight is not finite,
        the tensors that hold such values and nothing else.

    Raises:
        ModelError: the folder or its reference.json cannot be read, or the folder no longer holds
            this model.
    """
    weights = _read_again(model) if weights is None else weights
    found = finite(weights)
    if all(check.ok for check in found):
        found += worked.filters(model, weights)
        found.append(worked.forward(model, weights))
        found += worked.classifier(model, weights)
        found.append(_steps(model))
        found.append(_threads(model, weights))
        found += _batch(model)
        found.append(_stored(model))
    return found


def finite(weights: Weights) -> list[Check]:
    """One failed check for every tensor with NaN or infinities, or one that says there is none."""
    name = "values that are not finite"
    bad = {
        tensor: int(value.size - np.isfinite(value).sum())
        for tensor, value in weights.tensors.items()
        if not np.isfinite(value).all()
    }
    if not bad:
        return [Check(name, 0.0, 0.0, True, f"{len(weights.tensors)} tensors")]
    return [Check(name, float(count), 0.0, False, tensor) for tensor, count in bad.items()]


def _read_again(model: Model) -> Weights:
    """The weights of the model's folder, read with what `load` may have been told."""
    where = model.folder / "config.json"
    native = detect_family(config_json.read(where), str(where)) == "native"
    filters = [filter for _, filter in worked.mlp_filters(model.config)]
    shifts = {f.shift for f in filters if f.kind == "implicit" and f.modulate}
    weights = load_folder(
        model.folder,
        family="native" if native else model.config.family,
        modulation_shift=shifts.pop() if len(shifts) == 1 else None,
        allow_nonfinite=True,
    )
    if weights.fingerprint != model.fingerprint:
        raise ModelError(f"{model.folder}: no longer holds the model that was loaded from it")
    return weights


def _steps(model: Model) -> Check:
    """A prompt and single steps against the whole sequence at once."""
    name = "token by token against the whole"
    if (why := _no_steps(model)) is not None:
        return Check(name, None, STEP_BOUND, None, why)
    ids = tokens(model, TOKENS)
    half = max(1, len(ids) // 2)
    state = model.prefill(ids[:half], max_new_tokens=len(ids) - half)
    rows = np.stack([model.step(state, int(token)) for token in ids[half:]])
    error = scaled(rows, model.logits(ids)[half:])
    return compared(name, error, STEP_BOUND, f"{half} tokens, then {len(ids) - half}")


def _threads(model: Model, weights: Weights) -> Check:
    """A second model of the same weights with another number of threads."""
    other = Model(weights, None, threads=3 if model.threads == 1 else 1, compat=model.compat)
    ids = tokens(model, TOKENS)
    unequal = np.count_nonzero(model.hidden(ids) != other.hidden(ids))
    name = f"bits with {model.threads} and with {other.threads} threads"
    return compared(name, float(unequal), 0.0, "values that differ")


def _batch(model: Model) -> Iterator[Check]:
    """Sequences of unequal lengths in a batch against each alone."""
    ids = tokens(model, TOKENS)
    pieces = [ids[: max(1, len(ids) // n)] for n in (1, 3, 2)]
    if model.config.classifier is not None:
        together, alone = list(model.classify(pieces)), [model.classify([p])[0] for p in pieces]
    else:
        together, alone = model.hidden_each(pieces), [model.hidden(p) for p in pieces]
    unequal = sum(np.count_nonzero(a != b) for a, b in zip(together, alone, strict=True))
    yield compared("bits alone and in a batch", float(unequal), 0.0, "values that differ")
    name = "bits of steps alone and in a batch"
    if (why := _no_steps(model)) is not None:
        yield Check(name, None, 0.0, None, why)
        return
    starts = [piece[: max(1, len(piece) // 2)] for piece in pieces]
    last = [int(start[-1]) for start in starts]
    rows = model.step([model.prefill(start) for start in starts], last)
    single = [model.step(model.prefill(s), t) for s, t in zip(starts, last, strict=True)]
    unequal = np.count_nonzero(rows != np.stack(single))
    yield compared(name, float(unequal), 0.0, "values that differ")


def _no_steps(model: Model) -> str | None:
    """Why a model has no steps to look at, or None."""
    if not model.causal:
        return "not causal: a layer reads the whole sequence at once"
    if model.config.classifier is not None:
        return "a classifier has no next token"
    if (model.max_length or TOKENS) < 2:
        return "the model takes one token only"
    return "compat keeps no state" if model.compat else None


def _stored(model: Model) -> Check:
    """reference.json: some logits of the original after some ids (docs/formats.md)."""
    name, path = "logits of the original", model.folder / "reference.json"
    if not path.is_file():
        return Check(name, None, STORED_BOUND, None, "the folder has no reference.json")
    ids, rows, want = _reference_logits(path)
    if max(rows) >= model.logits_width:
        raise ModelError(
            f"{path}: logits: last_top_ids has {max(rows)}, the head has {model.logits_width} rows"
        )
    error = scaled(model.logits(ids)[-1][rows], np.array(want))
    note = f"reference.json: {len(rows)} logits after {len(ids)} tokens"
    return compared(name, error, STORED_BOUND, note)


def _reference_logits(path: Path) -> tuple[list[int], list[int], list[float]]:
    """ids, rows of the last logits, and their values."""
    data = config_json.read(path)
    found = data.get("logits") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise ModelError(f"{path}: logits must be an object")
    lists = []
    for key, kinds in (("ids", {int}), ("last_top_ids", {int}), ("last_top_logits", {int, float})):
        values = found.get(key)
        if not isinstance(values, list) or not values or {type(x) for x in values} - kinds:
            raise ModelError(f"{path}: logits: {key} must be a list of numbers")
        lists.append(values)
    ids, rows, want = lists
    if len(rows) != len(want) or min(rows) < 0:
        raise ModelError(f"{path}: logits: last_top_ids and last_top_logits do not belong together")
    return ids, rows, want
