"""Writes the model folder of a finished run, with its measurements and card.

    python tools/text_export.py --data DIR --work RUN --out FOLDER

repeats what train_text.py does last: RUN holds best.safetensors, tokenizer.json and log.jsonl. The
model is `tiny-en`, or with other layers a twin of it, `tiny-en-aaaa` for example.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from exporting import file_hashes, load_model, parse_arguments, read_log, write_json
from text_card import model_card
from text_data import (
    MERGED_VOCAB,
    OUTSIDE,
    STYLES,
    TRAINING,
    encode,
    read_texts,
    style_id,
)
from text_model import Shape, TextModel, total_nats
from tokenizers import Tokenizer
from windows import plain_windows, score_windows

NAME = "tiny-en"
SHAPE = Shape(vocab=MERGED_VOCAB + len(STYLES))
WINDOW = 1024
# Words and repeated phrases about as frequent as in the held-out text: without the penalty three
# times as many phrases repeat.
GENERATION = {
    "temperature": 0.75,
    "top_k": 40,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
    "repetition_last_n": 64,
}
PROBE = "Once upon a time there was a king who had three sons, and the youngest of them was called"
PROBE_STYLE = "tale"
PROMPTS = {
    "play": "ROMEO\t",
    "bible": "1:1 And it came to pass",
    "speech": "My fellow citizens,",
    "tale": "Once upon a time",
    "novel": "It was a dark night, and",
    None: "The old man looked at",
}
PROTOCOL = """\
Weights: the stored float16 values. Arithmetic: float32; softmax over all rows of the logits.
Text: the file's bytes with every CR LF turned to LF; a held-out text is the bytes from `split` \
(counted after that change) to the end. Each text is tokenized on its own, with no token added.
Windows do not overlap, and each begins anew at position 0 with an empty state: the style token, \
then the next 1,023 tokens of the text, fewer in the last window. Every text token is scored, \
the first of a window after the style token alone; the style token is not scored.
`nats` is the sum of -ln p, `bits_per_byte` is nats / ln 2 / bytes, and a total divides the sum \
of nats by the sum of bytes.
`without_style`: windows of 1,024 text tokens and no style token; the first token of each window \
is context only and its bytes are not counted."""


def summary(nats: float, tokens: int, size: int) -> dict[str, Any]:
    bits = nats / math.log(2) / size
    return {"bytes": size, "tokens": tokens, "nats": nats, "bits_per_byte": bits}


def measure(model: TextModel, tokenizer: Tokenizer, data: Path) -> dict[str, Any]:
    """Bits a byte of the held-out parts and of the outside texts, by PROTOCOL."""
    files, plain, outside = [], [], []
    for text in read_texts(data, TRAINING):
        ids = encode(tokenizer, text.held_out)
        windows = score_windows(ids, style_id(text.source.style), WINDOW)
        entry = {
            "file": text.source.path,
            "sha256": text.sha256,
            "style": text.source.style,
            "split": text.split,
            **summary(total_nats(model, *windows), len(ids), len(text.held_out)),
        }
        files.append(entry)
        inputs, targets = plain_windows(ids, WINDOW)
        scored = targets[targets >= 0].tolist()
        # A byte-level token is written with one character a byte.
        size = sum(len(tokenizer.id_to_token(token) or "") for token in scored)
        plain.append(summary(total_nats(model, inputs, targets), len(scored), size))
    for text in read_texts(data, OUTSIDE):
        ids = encode(tokenizer, text.content)
        windows = score_windows(ids, style_id(text.source.style), WINDOW)
        entry = {
            "file": text.source.path,
            "sha256": text.sha256,
            "style": text.source.style,
            **summary(total_nats(model, *windows), len(ids), len(text.content)),
        }
        outside.append(entry)

    def total(entries: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(*(sum(e[key] for e in entries) for key in ("nats", "tokens", "bytes")))

    held_out = {**total(files), "files": files}
    return {"held_out": held_out, "without_style": total(plain), "outside": outside}


@torch.no_grad()
def probe(model: TextModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """Logits of one short sequence, for a check that needs no data."""
    ids = [style_id(PROBE_STYLE), *tokenizer.encode(PROBE).ids][:24]
    values, top = model(torch.tensor([ids]))[0, -1].topk(8)
    return {"ids": ids, "last_top_ids": top.tolist(), "last_top_logits": values.tolist()}


@torch.no_grad()
def sample(model: TextModel, tokenizer: Tokenizer, prompt: str, style: str | None, n: int) -> str:
    """n tokens after a prompt, with the sampling of GENERATION and a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    ids = [] if style is None else [style_id(style)]
    ids += tokenizer.encode(prompt).ids
    for _ in range(n):
        logits = model(torch.tensor([ids]))[0, -1]
        recent = torch.tensor(sorted(set(ids[-int(GENERATION["repetition_last_n"]) :])))
        penalty = GENERATION["repetition_penalty"]
        seen = logits[recent]
        logits[recent] = torch.where(seen > 0, seen / penalty, seen * penalty)
        values, order = (logits / GENERATION["temperature"]).topk(int(GENERATION["top_k"]))
        share = values.softmax(0)
        share[share.cumsum(0) - share >= GENERATION["top_p"]] = 0
        ids.append(int(order[torch.multinomial(share, 1, generator=generator)]))
    return tokenizer.decode(ids)


def write_folder(work: Path, data: Path, out: Path) -> None:
    """Measures the best weights of a run and writes config, weights, tokenizer and card."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work / "best.safetensors", out / "model.safetensors")
    shutil.copyfile(work / "tokenizer.json", out / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    log = read_log(work)
    layers = next(entry["recipe"]["layers"] for entry in reversed(log) if "recipe" in entry)
    name = NAME if layers == SHAPE.layers else f"{NAME}-{layers.lower()}"
    model = load_model(out / "model.safetensors", replace(SHAPE, layers=layers))

    config = model.shape.config(name)
    config["tokenizer"] = {"kind": "hf", "file": "tokenizer.json"}
    styles = {style: style_id(style) for style in STYLES}
    config["special_tokens"] = {"bos": None, "eos": None, "pad": None, "styles": styles}
    reference = {
        "protocol": PROTOCOL,
        "window": WINDOW,
        **measure(model, tokenizer, data),
        "logits": probe(model, tokenizer),
    }
    hashes = file_hashes(out, ["tokenizer.json", "model.safetensors"])
    samples = {
        f"{style or 'no style'}: {prompt!r}": sample(model, tokenizer, prompt, style, 120)
        for style, prompt in PROMPTS.items()
    }
    write_json(
        out,
        {
            "config.json": config,
            "generation_config.json": GENERATION,
            "reference.json": reference,
        },
    )
    size = (out / "model.safetensors").stat().st_size
    card = model_card(name, log, reference, hashes, samples, size)
    (out / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    held_out, alice = reference["held_out"], reference["outside"][0]
    print(f"held out {held_out['bits_per_byte']:.6f}, Alice {alice['bits_per_byte']:.6f} bits/byte")


def main() -> None:
    options = parse_arguments(__doc__)
    write_folder(options.work, options.data, options.out)


if __name__ == "__main__":
    main()
