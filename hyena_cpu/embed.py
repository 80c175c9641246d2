"""Sequences to vectors: hidden states of a layer, every position or pooled to one vector each.

A vector depends on the tokens of its own sequence and on nothing else: not on what was computed
beside it, not on the order, not on the threads.

Shapes: T tokens, D width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import planner, pooling
from .batches import grouped
from .errors import HyenaError, InputError, LimitError, NumericError
from .ids import several
from .sequences import DnaPolicy, Record, clean, reverse_complement
from .tokenizers.dna import Special, add_special

if TYPE_CHECKING:
    from .arrays import Arrays
    from .model import Model

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Pool = Literal["mean", "last"]
Strand = Literal["fwd", "rc"]

OnProgress = Callable[[int, int], None]  # tokens embedded, of so many


@dataclass(frozen=True)
class Item:
    """One sequence to embed. `length` counts letters (bytes of a text), `ids` are its T tokens.

    A sequence that cannot be embedded has no ids, but the error that says why. Token k stands at
    `first + step * k` of the record as given, special tokens before and after it.
    """

    index: int
    id: str
    length: int
    ids: Ids | None
    error: HyenaError | None = None
    first: int = 0
    step: Literal[1, -1] = 1

    @property
    def n_tokens(self) -> int:
        """T, 0 without ids."""
        return 0 if self.ids is None else len(self.ids)

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
    items = [
        Item(i, str(i), 0, checked(model, _tokens(model, text), layer))
        for i, text in enumerate(several(sequences))
    ]
    arrays = [_joined(blocks) for _, blocks in embedded(model, items, layer, pool)]
    if pool is None:
        return arrays
    return np.concatenate(arrays) if arrays else np.zeros((0, model.config.d_model), np.float32)


def check(model: Model, layer: int, pool: str | None) -> None:
    """InputError unless the model has the layer and the pooling is known."""
    if pool not in ("mean", "last", None):
        raise InputError(f"pool is {pool!r}, must be mean, last or None")
    model.depth_of(layer)


def checked(model: Model, ids: ArrayLike, layer: int) -> Ids:
    """ids as int32 [T]; InputError or LimitError if the model cannot take them in up to a layer."""
    tokens, depth = model.check_ids(ids), model.depth_of(layer)
    rows = min(len(tokens), pooling.BLOCK_ROWS)
    model.check_length(len(tokens), hidden_rows=rows, depth=depth)
    return tokens


def prepared(
    model: Model,
    records: Iterable[Record],
    policy: DnaPolicy,
    strand: Strand = "fwd",
    special: Special | None = None,
    layer: int = -1,
) -> Iterator[Item]:
    """The records as items for a layer, in order; those that the policy or the model refuses say
    why.

    The vectors of strand rc are those of the reverse complement, read in its own direction.
    """
    for record in records:
        length = len(record.sequence)
        try:
            dna = clean(record.sequence, policy).sequence
            letters = dna if strand == "fwd" else reverse_complement(dna)
            ids = model.check_ids(model.tokenizer.encode(letters))
            ids = checked(model, ids if special is None else add_special(ids, special), layer)
            yield Item(record.index, record.id, length, ids, None, *_places(ids, strand, special))
        except (InputError, LimitError) as error:
            yield Item(record.index, record.id, length, None, error)


def embedded(
    model: Model,
    items: Iterable[Item],
    layer: int = -1,
    pool: Pool | None = "mean",
    on_progress: OnProgress | None = None,
) -> Iterator[tuple[Item, Iterator[Floats]]]:
    """Each item, in order, with its rows in blocks: 1 row if pooled, else T, none without ids.

    Blocks float32 [n, D] are computed as they are taken: take those of one item before the next.
    Short sequences are read ahead and computed together. on_progress gets tokens done and to do,
    of those that are computed together.
    """
    report = on_progress or (lambda _done, _total: None)
    for group in grouped(items, _size, planner.batch_rows(model)):
        total = sum(item.n_tokens for item in group)
        report(0, total)
        hidden = _hidden(model, [item.ids for item in group if item.ids is not None], layer)
        for item in group:
            if item.ids is None:
                yield item, iter(())
                continue
            blocks = _finite(next(hidden), model, item)
            yield item, blocks if pool is None else _pooled(blocks, pool)
        report(total, total)


def save(
    model: Model,
    items: Iterator[Item],
    arrays: Arrays,
    layer: int = -1,
    pool: Pool | None = "mean",
    on_progress: OnProgress | None = None,
) -> None:
    """Writes the items that `arrays` lacks.

    Errors are those of `embed`, but an item that has one itself is written as failed.
    """
    for item in itertools.islice(items, arrays.done):
        arrays.skip(item)
    for item, blocks in embedded(model, items, layer, pool, on_progress):
        arrays.put(item, blocks)


def _size(item: Item) -> int:
    return max(item.n_tokens, 1)  # so that a group ends even where all fail


def _places(ids: Ids, strand: Strand, special: Special | None) -> tuple[int, Literal[1, -1]]:
    """`first` and `step` of an item."""
    before = int(special == "cls-sep")
    if strand == "fwd":
        return -before, 1
    return len(ids) - 1 - int(special is not None), -1


def _tokens(model: Model, text: str | bytes | ArrayLike) -> ArrayLike:
    return model.tokenizer.encode(text) if isinstance(text, str | bytes) else text


def _hidden(model: Model, sequences: list[Ids], layer: int) -> Iterator[Iterator[Floats]]:
    """Blocks of each sequence, cut as pooling cuts them."""
    if len(sequences) > 1:
        try:
            yield from map(pooling.blocks_of, model.hidden_each(sequences, layer))
            return
        except LimitError:
            pass  # together they need more memory than is allowed; each has been checked
    for ids in sequences:
        yield iter(model.hidden_blocks(ids, layer, pooling.BLOCK_ROWS))


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
