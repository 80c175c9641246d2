"""Sequences to vectors: hidden states of a layer, every position or pooled to one vector each.

A vector depends on the tokens of its own sequence and on nothing else: not on what was computed
beside it, not on the order, not on the threads.

Shapes: T tokens, D width.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import planner, pooling
from .errors import HyenaError, InputError, LimitError, NumericError
from .sequences import DnaPolicy, Record, clean, reverse_complement
from .tokenizers.dna import add_special

if TYPE_CHECKING:
    from .arrays import Arrays
    from .model import Model

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Pool = Literal["mean", "last"]
Strand = Literal["fwd", "rc"]
Special = Literal["hf", "cls-sep"]

GROUP_TOKENS = 1 << 16  # short sequences that are computed together have so many tokens at most


@dataclass(frozen=True)
class Item:
    """One sequence to embed. `length` counts letters (bytes of a text), `ids` are its T tokens.

    A sequence that cannot be embedded has no ids, but the error that says why.
    """

    index: int
    id: str
    length: int
    ids: Ids | None
    error: HyenaError | None = None

    @property
    def status(self) -> str:
        """What tables say of it: ok, or what is wrong."""
        return "ok" if self.error is None else f"error: {self.error}"


def embed(
    model: Model,
    sequences: str | bytes | ArrayLike | Sequence[str | bytes | ArrayLike],
    layer: int = -1,
    pool: Pool | None = "mean",
) -> Floats | list[Floats]:
    """Hidden states of each text or array of ids, in order: [B, D], or a list of [T, D].

    Raises:
        InputError: layer or pool is unknown, a sequence is empty, or ids are unknown to the model.
        LimitError: a sequence is longer than the model or `max_memory` allows.
        NumericError: a hidden state is not finite.
    """
    check(model, layer, pool)
    texts = [sequences] if isinstance(sequences, str | bytes) else sequences
    items = [
        Item(i, str(i), 0, checked(model, _tokens(model, text)))
        for i, text in enumerate(texts)  # type: ignore[arg-type]
    ]
    arrays = [_joined(blocks) for _, blocks in embedded(model, items, layer, pool)]
    if pool is None:
        return arrays
    return np.concatenate(arrays) if arrays else np.zeros((0, model.config.d_model), np.float32)


def check(model: Model, layer: int, pool: str | None) -> None:
    """InputError unless the model has the layer and the pooling is known."""
    if pool not in ("mean", "last", None):
        raise InputError(f"pool is {pool!r}, must be mean, last or None")
    depth = len(model.config.layers)
    if not -1 <= layer <= depth:
        raise InputError(f"layer is {layer}, must be in 0..{depth}, or -1 for the last norm")


def checked(model: Model, ids: ArrayLike) -> Ids:
    """ids as int32 [T]; InputError or LimitError if the model cannot take them in."""
    tokens = model.check_ids(ids)
    model.check_length(len(tokens))
    return tokens


def prepared(
    model: Model,
    records: Iterable[Record],
    policy: DnaPolicy,
    strand: Strand = "fwd",
    special: Special | None = None,
) -> Iterator[Item]:
    """The records as items, in order; those that the policy or the model refuses say why.

    The vectors of strand rc are those of the reverse complement, read in its own direction.
    """
    for record in records:
        length = len(record.sequence)
        try:
            dna = clean(record.sequence, policy).sequence
            letters = dna if strand == "fwd" else reverse_complement(dna)
            ids = model.check_ids(model.tokenizer.encode(letters))
            ids = checked(model, ids if special is None else add_special(ids, special))
            yield Item(record.index, record.id, length, ids)
        except (InputError, LimitError) as error:
            yield Item(record.index, record.id, length, None, error)


def embedded(
    model: Model, items: Iterable[Item], layer: int = -1, pool: Pool | None = "mean"
) -> Iterator[tuple[Item, Iterator[Floats]]]:
    """Each item, in order, with its rows in blocks: 1 row if pooled, else T, none without ids.

    Blocks float32 [n, D] are computed as they are taken: take those of one item before the next.
    """
    for group in grouped(items, group_tokens(model)):
        hidden = _hidden(model, [item.ids for item in group if item.ids is not None], layer)
        for item in group:
            if item.ids is None:
                yield item, iter(())
                continue
            blocks = _finite(next(hidden), model, item)
            yield item, blocks if pool is None else _pooled(blocks, pool)


def save(
    model: Model, items: Iterator[Item], arrays: Arrays, layer: int = -1, pool: Pool | None = "mean"
) -> Iterator[Item]:
    """Writes the items that `arrays` lacks; each comes back once it is written.

    Errors are those of `embed`, but an item that has one itself is written as failed.
    """
    for item in itertools.islice(items, arrays.done):
        arrays.skip(item)
        yield item
    for item, blocks in embedded(model, items, layer, pool):
        arrays.put(item, blocks)
        yield item


def largest(model: Model, items: Iterable[Item]) -> planner.Plan:
    """Memory of the largest call that `embedded` makes for these items; none if all fail."""
    tokens, several = 0, False
    for group in grouped(items, group_tokens(model)):
        lengths = [len(item.ids) for item in group if item.ids is not None]
        if sum(lengths) > tokens:
            tokens, several = sum(lengths), len(lengths) > 1
    if not tokens:
        return planner.Plan(())
    held = 4 * model.config.d_model * tokens if several else 0
    return planner.Plan((*planner.plan(model, tokens).rows, ("hidden states", held)))


def group_tokens(model: Model) -> int:
    """Most tokens of short sequences computed together: GROUP_TOKENS, or what memory allows."""
    tokens = GROUP_TOKENS
    if model.max_memory is not None:
        row = 4 * model.config.d_model  # all hidden states of a group are there at once
        while tokens > 1 and planner.plan(model, tokens).total + row * tokens > model.max_memory:
            tokens //= 2
    return tokens


def grouped(items: Iterable[Item], limit: int) -> Iterator[list[Item]]:
    """Consecutive items of at most `limit` tokens together; a longer one is alone.

    An error of the source comes after the items before it.
    """
    group: list[Item] = []
    tokens = 0
    try:
        for item in items:
            length = 1 if item.ids is None else len(item.ids)
            if group and tokens + length > limit:
                yield group
                group, tokens = [], 0
            group.append(item)
            tokens += length
    except HyenaError:
        if group:
            yield group
        raise
    if group:
        yield group


def _tokens(model: Model, text: str | bytes | ArrayLike) -> ArrayLike:
    return model.tokenizer.encode(text) if isinstance(text, str | bytes) else text


def _hidden(model: Model, sequences: list[Ids], layer: int) -> Iterator[Iterator[Floats]]:
    """Blocks of each sequence, cut as pooling cuts them."""
    if len(sequences) == 1:
        yield iter(model.hidden_blocks(sequences[0], layer, pooling.BLOCK_ROWS))
    elif sequences:
        yield from map(pooling.blocks_of, model.hidden_each(sequences, layer))


def _finite(blocks: Iterable[Floats], model: Model, item: Item) -> Iterator[Floats]:
    for block in blocks:
        if not np.isfinite(block).all():
            raise NumericError(
                f"{model.name}: hidden states of record {item.index + 1} ({item.id!r}) are not "
                "finite"
            )
        yield block


def _pooled(blocks: Iterable[Floats], pool: Pool) -> Iterator[Floats]:
    yield (pooling.mean(blocks) if pool == "mean" else pooling.last(blocks))[None]


def _joined(blocks: Iterable[Floats]) -> Floats:
    parts = list(blocks)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
