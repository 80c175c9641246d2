"""The model card of `tiny-recall`, filled in from the lines of its cells."""

from __future__ import annotations

from exporting import Json, table
from mqar_results import NAMES

CARD = """\
# tiny-recall

Four small models for `hyena-cpu`, trained on multi-query associative recall (MQAR) alone: the same
two-layer model with four choices of mixers. They show, with trained weights and within a minute on
one core, what attention is for: naming a value that the text gave a key. They know nothing else.

| name | layers | parameters | bytes | accuracy |
| --- | --- | --- | --- | --- |
{models}

Accuracy is on {rows:,} held-out rows; chance, guessing among the values of a row, is {chance}. A
model at chance knows which values the row has and not which one belongs to the key. That a model
did not solve the task says so for this budget, width and learning rate, and no more: with far more
training the authors of the task report gated convolutions that solve it where the width reaches
the length of the rows.

## Model

Width {width}, two layers of `x += mixer(norm(x))` without MLPs, LayerNorm, embedding and head tied,
a vocabulary of {vocabulary} ids and no tokenizer. BaseConv has first 3 taps, then a filter of
{length} taps made by a ReLU network; Hyena has order 2 and filters of {length} taps; attention has
one head and rotary positions. There is no longest sequence, but filters end after {length} taps and
all training rows had {length} tokens.

## Data

Rows of N = {length} tokens with {pairs} pairs and {vocabulary} ids, as `hyena-cpu mqar data` writes
them: generated, without limit, from no text. Training rows come from a generator of their own with
the same distribution, validation rows from seed {validation_seed}, test rows from seed {test_seed}.
The weights are under the licence of `hyena-cpu`, Apache-2.0.

## Training

AdamW (weight decay {weight_decay}, betas 0.9 and 0.98), {warmup} steps of warm-up, then linear to a
tenth; {batch} rows a step; gradient norm clipped at 1; float32; one CPU thread; seed {seed}. A run
was planned for {seconds:.0f} CPU seconds and ended at a validation accuracy of {stop}. The loss is
averaged over about the last 50 steps.

| name | learning rate | steps, of planned | rows | CPU seconds | loss, nats | validation |
| --- | --- | --- | --- | --- | --- | --- |
{training}

The rate is the first of 3e-3, 1e-3 and 1e-2 that solved the task in this budget, or else the one
with the highest validation accuracy. One seed was run.

## Measured

Test accuracy in the first table: from the stored weights (float16, long filters float32), by
PyTorch; `reference.json` has the protocol. With the engine:

    hyena-cpu mqar eval -m tiny-recall/hybrid --also tiny-recall/base_conv --seed {test_seed}

Other lengths and widths: `docs/recall.md`.

## How to reproduce

    pip install .[train,plot]
    python tools/train_mqar.py --work RUN
    python tools/mqar_export.py --work RUN --out FOLDER --docs docs

One run again: `--only MIXER:{length}:{width} --rate RATE --steps PLANNED`. Rows and their order are
the same on every machine; sums differ in rounding, so figures repeat closely, not bit for bit.

| file | sha256 |
| --- | --- |
{hashes}
"""


def model_card(cells: list[Json], hashes: dict[str, str], facts: Json) -> str:
    """The card as Markdown.

    Args:
        cells: lines of the bundled models with `stored_accuracy` and `bytes`.
        hashes: sha256 by file name.
        facts: further numbers of the text.
    """
    first = cells[0]
    models = [
        [
            f"`tiny-recall/{c['mixer']}`",
            NAMES[c["mixer"]],
            f"{c['parameters']:,}",
            f"{c['bytes']:,}",
            f"{c['stored_accuracy']:.4f}",
        ]
        for c in cells
    ]
    training = [
        [
            f"`{c['mixer']}`",
            f"{c['rate']:g}",
            f"{c['steps']:,} of {c['steps_planned']:,}",
            f"{c['sequences']:,}",
            f"{c['cpu_seconds']:.0f}",
            f"{c['loss']:.3f}",
            f"{c['accuracy']:.4f}",
        ]
        for c in cells
    ]
    shared = ("width", "length", "pairs", "vocabulary", "batch", "seed", "seconds", "chance")
    return CARD.format(
        **{key: first[key] for key in shared},
        **facts,
        models=table(models),
        training=table(training),
        hashes=table([f"`{name}`", f"`{digest}`"] for name, digest in hashes.items()),
    )
