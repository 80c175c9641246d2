"""The model card of `tiny-dna`, filled in from the log and the measurements of a run."""

from __future__ import annotations

from dna_data import OUTSIDE, TRAINING
from exporting import Json, curve_rows, table

GATE = 1.94  # bits a base, held out
CARD = """\
# tiny-dna

A small DNA model for `hyena-cpu`: {parameters:,} parameters, {size:.1f} MB in float16, trained on
one bacterial genome. Every DNA command runs with it and nothing to download, and it is the
bundled model with no attention at all: its state does not grow with the length of a sequence.

Good for: trying scoring, generation and the other DNA commands, tests and benchmarks with
trained weights, runs over whole genomes in constant memory. Not good for: any conclusion about
biology or medicine. Most of what it knows of *Escherichia coli*, a table of letter counts after
{order} letters knows too: {markov} bits a base against its {held_out}, of 2 for equal frequencies.
On organisms far from its own it is worth little (see below). Differences between alleles of a
human gene mean nothing here.

## Model

Four blocks of width 128, each an order-2 Hyena mixer with an implicit filter of 1,024 taps and a
SwiGLU MLP of 320; norms are RMSNorm; embedding and head are tied. Four such mixers reach 4,100
letters back; there is no longest sequence.

The tokenizer is the built-in `dna`: one token a letter, in the numbering of HyenaDNA. Trained are
`A` `C` `G` `T` `N` and `[BOS]`, the begin token. Nine training windows in ten began with `[BOS]`,
so the model runs with it (`--bos`) and without. The other names ([CLS], [SEP], [MASK], [PAD],
[RESERVED], [UNK]) never occurred: what follows one of them, and the score of one, means nothing,
so `--special` and `--case keep` have no use with this model. The training sequence has no N;
{n_percent:.0f} % of its letters were covered by random runs of 1 to 128 N, so that an N is read as
a gap. An N costs much where a run begins and little after: leave N out when comparing scores.

## Data

| file | what | letters | sha256 |
| --- | --- | --- | --- |
{data}

All are unrestricted sequence records. Trained on the first {split:,} letters of the first file,
both strands; its last 5 % were held out on both strands, the other files altogether. The
weights are under the licence of `hyena-cpu`, Apache-2.0.

## Training

{tokens:,} tokens of {planned:,.0f} planned ({passes:.1f} passes over both strands), in {steps:,}
steps of {batch:,} tokens.
Trained on {device} in {minutes:.0f} minutes of its own time.
Muon at {muon_lr} for the projections, AdamW at {adam_lr} for the rest; {warmup} steps of warm-up,
flat for {flat_percent:.0f} % of the run, then linear to 5 %; context {context}, and {long_context}
for the last {long_percent:.0f} % of the tokens; dropout {dropout}, weight decay {weight_decay},
gradient norm clipped at {clip}; {precision}; seed {seed}.

The weights are those with the lowest held-out loss of the run, measured at every row below and
reached at {best_tokens:,} tokens, which makes the held-out figure a little optimistic, as does
the batch size, chosen between two short runs by the same figure. The outside genomes took no part
in any choice. The length of the run followed from the time at hand.

| tokens | training loss, nats/token | held out, bits/base |
| --- | --- | --- |
{curve}

The training loss is over both strands with their runs of N, averaged over the steps just before.

## Measured

Bits per base in float32 from the stored float16 weights, windows of 1,024 that begin with `[BOS]`
and do not overlap. `reference.json` has the exact protocol and more digits. Equal frequencies
are 2 bits.

| sequence | bits/base |
| --- | --- |
{measured}

For comparison, tables of letter counts over the same training strands, the best of orders
{orders}: {markov} bits per base on the held-out part, at order {order}.

Gate: at most {gate:.2f} held out.

With the engine, for lambda:

    hyena-cpu score -m tiny-dna --fasta lambda.fa --bos --window 1024

## How to reproduce

    pip install .[train]
    python tools/train_dna.py --data DIR --out FOLDER

The windows and their order are the same on every machine; sums differ in rounding, so figures
repeat to about three decimals, not bit for bit.

| file | sha256 |
| --- | --- |
{hashes}
"""


def model_card(log: list[Json], reference: Json, hashes: dict[str, str], size: int) -> str:
    """The card as Markdown; `log` is the run's, `size` the bytes of model.safetensors."""
    start = next(entry for entry in reversed(log) if "recipe" in entry)
    recipe = start["recipe"]
    evaluations = [entry for entry in log if "held_out_bits_per_base" in entry]
    best = min(evaluations, key=lambda entry: entry["held_out_bits_per_base"])
    held_out, outside = reference["held_out"], reference["outside"]
    what = {source.path: source.what for source in (TRAINING, *OUTSIDE)}
    letters = held_out["split"] + held_out["bases"]
    data = [(held_out["file"], letters, held_out["sha256"])]
    data += [(e["file"], e["letters"], e["sha256"]) for e in outside]
    measured = [
        (f"**{TRAINING.what}, held out**", held_out),
        ("its first {:,} letters".format(held_out["slice"]["bases"]), held_out["slice"]),
        ("the other strand of these", held_out["other_strand"]),
        *((f"{what[e['file']]}: {e['bases']:,} letters", e) for e in outside),
    ]
    order, markov = min(reference["markov"].items(), key=lambda item: item[1])
    device = "one CPU thread" if start["device"] == "CPU" else f"one {start['device']} GPU"
    return CARD.format(
        **{key: value for key, value in recipe.items() if key != "tokens"},
        flat_percent=100 * recipe["flat_share"],
        long_percent=100 * recipe["long_share"],
        n_percent=100 * recipe["n_share"],
        parameters=start["parameters"],
        device=device,
        size=size / 1e6,
        held_out=f"{held_out['bits_per_base']:.4f}",
        data=table([f"`{f}`", what[f], f"{n:,}", f"`{sha}`"] for f, n, sha in data),
        split=held_out["split"],
        tokens=evaluations[-1]["tokens"],
        planned=recipe["tokens"],
        passes=evaluations[-1]["tokens"] / start["training_tokens"],
        steps=evaluations[-1]["step"],
        minutes=evaluations[-1]["seconds"] / 60,
        best_tokens=best["tokens"],
        curve=table(curve_rows(log, "held_out_bits_per_base")),
        measured=table([name, f"{e['bits_per_base']:.4f}"] for name, e in measured),
        orders=", ".join(map(str, reference["markov"])),
        order=order,
        markov=f"{markov:.4f}",
        gate=GATE,
        hashes=table([f"`{name}`", f"`{digest}`"] for name, digest in hashes.items()),
    )
