"""The model card of `tiny-en` or of a twin, filled in from the log and measurements of a run."""

from __future__ import annotations

from typing import Any

from exporting import curve_rows, table
from text_data import OUTSIDE, TRAINING

CARD = """\
# {name}

A small English text model for `hyena-cpu`: {parameters:,} parameters, {size:.1f} MB in float16.
{purpose}

Good for: trying generation, scoring and streaming, tests and benchmarks with trained weights,
text in the manner of its sources. Not good for: facts, answers, instructions, modern English,
any language but English, or anything that matters. It holds a sentence and a layout, and loses
its subject after one or two sentences. Its sources are old books and speeches, and it repeats
their views.

## Model

Blocks of width 192: {blocks}.
{mixers}
Every block has a SwiGLU MLP of 512; norms are RMSNorm; embedding and head are tied.
The tokenizer is a byte-level BPE of 2,048 entries trained on the training text, about 3 bytes a
token, followed by five style tokens: `<|play|>`, `<|bible|>`, `<|speech|>`, `<|tale|>` and
`<|novel|>`. A style token, if any, goes first. One training window in ten had none, so the model
also runs without.

## Data

CR LF was turned to LF. The last 5 % of each file, from the next line on, was held out.

| file | style | bytes | split | licence | sha256 |
| --- | --- | --- | --- | --- | --- |
{data}

Not trained on, from the Canterbury corpus:

| file | licence | sha256 |
| --- | --- | --- |
{outside_data}

The King James Bible is public domain outside the United Kingdom, where its printing is reserved
to the Crown. The weights are under the licence of `hyena-cpu`, Apache-2.0.

## Training

{tokens:,} tokens ({passes:.1f} passes) in {steps:,} steps of {batch:,} tokens.
Trained on {device} in {minutes:.0f} minutes{of_what}; the same command runs on any machine.
Muon at {muon_lr} for the projections, AdamW at {adam_lr} for the rest; {warmup} steps of warm-up,
flat for {flat_percent:.0f} % of the run, then linear to 5 %; context {context}, and {long_context}
for the last {long_percent:.0f} % of the tokens; dropout {dropout}, weight decay {weight_decay},
gradient norm clipped at {clip}; {precision} products, filters and FFTs in float32; seed {seed}.

The weights are those with the lowest held-out loss of the run, measured at every row below and
reached at {best_tokens:,} tokens.{choice}

| tokens | training loss, nats/token | held out, bits/byte |
| --- | --- | --- |
{curve}

The training loss is under dropout, averaged over the steps just before.

## Measured

Bits per byte in float32 from the stored float16 weights. `reference.json` has the exact protocol,
byte counts and more digits.

| text | style | bits/byte |
| --- | --- | --- |
{measured}

Files with CR LF line ends were read as LF, and the figures hold for that. With the engine:

    tr -d '\\r' < alice29.txt | hyena-cpu score -f - --style novel --window 1024

gives the {alice} of Alice.{gate}

## Samples

First draws at the defaults of `generation_config.json`, seed 0; style token, prompt, then the text.

{samples}

## How to reproduce

    pip install .[train]
    python tools/train_text.py --data DIR --out FOLDER{options}

The windows and their order are the same on every machine; sums differ in rounding, and dropout
follows the device's own random numbers, so figures repeat to about two decimals, not bit for bit.

| file | sha256 |
| --- | --- |
{hashes}
"""
PURPOSE = "It shows the engine at work and gives it a text of its own to check itself on."
TWIN = "A twin of `tiny-en` with other layers, for `hyena-cpu recall --against`."
CHOICE = """ Learning rates and dropout were chosen between a few runs by
the same figure, which is a little optimistic for that; the outside texts took no part in it."""
GATE = "\n\nGate: at most 1.80 held out and at most 2.40 on Alice."
BLOCKS = {"H": "Hyena", "A": "attention"}
MIXERS = {
    "H": "The Hyena mixers are of order 2 with implicit filters of 1,024 taps.",
    "A": "Attention has 3 heads of 64 with rotary positions and a window of 1,024.",
}


def model_card(
    name: str,
    log: list[dict[str, Any]],
    reference: dict[str, Any],
    hashes: dict[str, str],
    samples: dict[str, str],
    size: int,
) -> str:
    """The card as Markdown; `log` is the run's, `size` the bytes of model.safetensors."""
    twin = name != "tiny-en"
    start = next(entry for entry in reversed(log) if "recipe" in entry)
    recipe = start["recipe"]
    evaluations = [entry for entry in log if "held_out_bits_per_byte" in entry]
    best = min(evaluations, key=lambda entry: entry["held_out_bits_per_byte"])
    held_out, outside = reference["held_out"], reference["outside"]
    licences = {source.path: source.licence for source in (*TRAINING, *OUTSIDE)}

    data = [
        [
            f"`{e['file']}`",
            e["style"],
            f"{e['split'] + e['bytes']:,}",
            f"{e['split']:,}",
            licences[e["file"]],
            f"`{e['sha256']}`",
        ]
        for e in held_out["files"]
    ]
    measured = [
        [f"`{e['file']}`, held out", e["style"], f"{e['bits_per_byte']:.4f}"]
        for e in held_out["files"]
    ]
    measured.append(["**all held out**", "as above", f"**{held_out['bits_per_byte']:.4f}**"])
    plain = f"{reference['without_style']['bits_per_byte']:.4f}"
    measured.append(["all held out, first token of a window unscored", "none", plain])
    measured += [[f"`{e['file']}`", e["style"], f"{e['bits_per_byte']:.4f}"] for e in outside]
    cpu = start["device"].startswith("CPU")
    threads = f"{start['threads']} thread{'s' * (start['threads'] > 1)}"
    device = f"{threads} of a CPU" if cpu else f"one {start['device']} GPU"
    indented = {
        name: "\n".join(f"    {line}".rstrip() for line in text.splitlines())
        for name, text in samples.items()
    }
    layers = recipe["layers"]
    options = "".join(f" --{key.replace('_', '-')} {value}" for key, value in recipe.items())
    return CARD.format(
        **{key: value for key, value in recipe.items() if key != "tokens"},
        name=name,
        purpose=TWIN if twin else PURPOSE,
        blocks=", ".join(BLOCKS[kind] for kind in layers),
        mixers="\n".join(text for kind, text in MIXERS.items() if kind in layers),
        choice="" if twin else CHOICE,
        gate="" if twin else GATE,
        options=options if twin else "",
        flat_percent=100 * recipe["flat_share"],
        long_percent=100 * recipe["long_share"],
        parameters=start["parameters"],
        device=device,
        of_what=" of processor time" if cpu else "",
        size=size / 1e6,
        data=table(data),
        outside_data=table(
            [[f"`{e['file']}`", licences[e["file"]], f"`{e['sha256']}`"] for e in outside]
        ),
        tokens=evaluations[-1]["tokens"],
        passes=evaluations[-1]["tokens"] / start["training_tokens"],
        steps=evaluations[-1]["step"],
        minutes=evaluations[-1]["seconds"] / 60,
        best_tokens=best["tokens"],
        curve=table(curve_rows(log, "held_out_bits_per_byte")),
        measured=table(measured),
        alice=next(
            f"{e['bits_per_byte']:.4f}" for e in outside if e["file"].endswith("alice29.txt")
        ),
        samples="\n\n".join(f"{name}\n\n{text}" for name, text in indented.items()),
        hashes=table([[f"`{name}`", f"`{digest}`"] for name, digest in hashes.items()]),
    )
