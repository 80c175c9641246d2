"""`score` and `embed` over more records than one machine can take, through Ray Data.

`read_fasta` makes a data set of records; `Score` and `Embed` are classes for its `map_batches`,
which loads the model once in every worker. Rows are those of the command line, with the name of
the file in front; Ray hands them on in any order unless it is told to keep it. See docs/scale.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import load
from .arrays import ABOUT, PLACE, about, places, row_of
from .embed import Item, Pool, check, embedded, prepared
from .errors import InputError
from .score import BASE_COLUMNS, COLUMNS, Setup, base_parts, score_fasta, values
from .score import check as check_setup
from .sequences import DnaPolicy, Record
from .sequences import read_fasta as read_file
from .tables import Vector, arrow_table

if TYPE_CHECKING:
    import pyarrow
    import ray.data

    from .linear import Dtype
    from .model import Model

log = logging.getLogger(__name__)

Batch = dict[str, NDArray[Any]]
Floats = NDArray[np.float32]
Found = Iterator[tuple[Item, Iterator[Floats]]]

RECORD = ("file", "index", "id", "sequence")  # columns of a data set of records
BLOCK_LETTERS = 1 << 21  # records are handed to workers in blocks of so many letters or more


def read_fasta(
    paths: str | Path | Iterable[str | Path], *, strict: bool = False, readers: int = 4
) -> ray.data.Dataset:
    """The records of FASTA files, plain or gzip, as a data set.

    Columns: file (the path as given), index (in that file), id, sequence.

    Args:
        paths: by which every worker can reach the files.
        strict: as of `sequences.read_fasta`, file by file.
        readers: files read at the same time, beside the workers. Records of one file go to
            several workers.

    Raises:
        InputError: ray is not installed. That a file cannot be read is an error of the data set.
    """
    try:
        import ray.data
    except ImportError:
        raise InputError("ray is not installed: pip install 'hyena-cpu[ray]'") from None
    files = [paths] if isinstance(paths, str | Path) else paths
    found = ray.data.from_items([{"file": str(path)} for path in files]).map_batches(
        _read,
        batch_size=1,
        batch_format="numpy",
        fn_kwargs={"strict": strict},
        concurrency=readers,
        num_cpus=0,  # so that Ray keeps the reading apart, and workers may have all CPUs
    )
    found.context.target_max_block_size = BLOCK_LETTERS
    return found


class Score:
    """Rows of `hyena-cpu score` for batches of records.

    Args:
        model: as for `hyena_cpu.load`; every worker loads it from this path.
        threads: of each worker; None: as many as Ray gives it CPUs.
        max_memory: bytes, as for `hyena_cpu.load`.
        per_position: a row per base.
        strand, window, stride, bos, style, special, alphabet: as on the command line.
        case, ambiguous, rna: what becomes of letters, as on the command line.
    """

    def __init__(
        self,
        model: str | Path = "tiny-dna",
        *,
        threads: int | None = None,
        dtype: Dtype | None = None,
        max_memory: int | None = None,
        per_position: bool = False,
        strand: Any = "fwd",
        case: Any = "upper",
        ambiguous: Any = None,
        rna: Any = "convert",
        **setup: Any,
    ) -> None:
        self._model = load(model, threads=threads, dtype=dtype, max_memory=max_memory)
        self._setup = Setup(**setup)
        check_setup(self._model, self._setup)
        self._policy = DnaPolicy(case, ambiguous or _ambiguous(self._model), rna)
        self._strand, self._per_position = strand, per_position

    def __call__(self, batch: Batch) -> Iterator[pyarrow.Table]:
        """Columns of RECORD -> tables with those of the command, in the batch's order."""
        files, records = _records(batch)
        if self._per_position:
            for file, record in zip(files, records, strict=True):
                yield from self._positions(file, record)
            return
        rows = [values(row) for row in score_fasta(self._model, iter(records), *self._how)]
        columns = {name: [row[name] for row in rows] for name in COLUMNS}
        yield arrow_table({"file": files, **columns}, {"file": str, **COLUMNS})

    @property
    def _how(self) -> tuple[Any, ...]:
        return self._setup, self._policy, self._strand

    def _positions(self, file: str, record: Record) -> Iterator[pyarrow.Table]:
        for part in base_parts(self._model, [record], *self._how):
            n = len(part.columns["index"])
            if part.problem is not None:
                log.warning("%s: %s", file, part.problem)
            yield arrow_table({"file": [file] * n, **part.columns}, {"file": str, **BASE_COLUMNS})


class Embed:
    """Rows of `hyena-cpu embed`, as its parquet files have them, for batches of records.

    Args:
        model, threads, dtype, max_memory, case, ambiguous, rna: as for `Score`.
        layer: as of `Model.hidden`.
        pool: mean, last, or None for a row per position.
        strand, special: as on the command line.
    """

    def __init__(
        self,
        model: str | Path = "tiny-dna",
        *,
        threads: int | None = None,
        dtype: Dtype | None = None,
        max_memory: int | None = None,
        layer: int = -1,
        pool: Pool | None = "mean",
        strand: Any = "fwd",
        special: Any = None,
        case: Any = "upper",
        ambiguous: Any = None,
        rna: Any = "convert",
    ) -> None:
        self._model = load(model, threads=threads, dtype=dtype, max_memory=max_memory)
        check(self._model, layer, pool)
        policy = DnaPolicy(case, ambiguous or _ambiguous(self._model), rna)
        self._letters = policy, strand, special
        self._layer, self._pool = layer, pool

    def __call__(self, batch: Batch) -> Iterator[pyarrow.Table]:
        """Columns of RECORD -> tables with those of the command, in the batch's order."""
        files, records = _records(batch)
        items = prepared(self._model, records, *self._letters, self._layer)
        found = embedded(self._model, items, self._layer, self._pool)
        if self._pool is not None:
            yield self._vectors(files, found)
            return
        for file, (item, blocks) in zip(files, found, strict=True):
            yield from self._positions(file, item, blocks)

    def _vectors(self, files: list[str], found: Found) -> pyarrow.Table:
        width = self._model.config.d_model
        rows = [(about(item), row_of(blocks, width)) for item, blocks in found]
        columns: dict[str, Any] = {"file": files}
        columns |= {name: [named[name][0] for named, _ in rows] for name in ABOUT}
        columns["vector"] = np.concatenate([row for _, row in rows])
        return arrow_table(columns, {"file": str, **ABOUT, "vector": Vector(width)})

    def _positions(
        self, file: str, item: Item, blocks: Iterator[Floats]
    ) -> Iterator[pyarrow.Table]:
        if item.error is not None:
            log.warning("%s: record %d (%r): %s", file, item.index + 1, item.id, item.error)
        types = {"file": str, **PLACE, "vector": Vector(self._model.config.d_model)}
        first = 0
        for block in blocks:
            named = {"file": [file] * len(block), **places(item, first, len(block))}
            yield arrow_table({**named, "vector": block}, types)
            first += len(block)


def _read(batch: Batch, strict: bool) -> Iterator[Batch]:
    """The records of the files in a batch, in blocks."""
    for file in batch["file"]:
        records: list[Record] = []
        letters = 0
        for record in read_file(Path(file), strict=strict):
            records.append(record)
            letters += len(record.sequence) + len(record.id)
            if letters >= BLOCK_LETTERS:
                yield _block(file, records)
                records, letters = [], 0
        if records:
            yield _block(file, records)


def _block(file: str, records: list[Record]) -> Batch:
    # Texts as objects: an array of characters would be as wide as the longest of them.
    return {
        "file": np.array([file] * len(records), object),
        "index": np.array([record.index for record in records]),
        "id": np.array([record.id for record in records], object),
        "sequence": np.array([record.sequence for record in records], object),
    }


def _records(batch: Batch) -> tuple[list[str], list[Record]]:
    """Names of the files, and the records of a batch."""
    missing = [name for name in RECORD if name not in batch]
    if missing:
        raise InputError(
            f"the data set has no column {missing[0]!r}: records have {', '.join(RECORD)}, as "
            "read_fasta makes them"
        )
    rows = zip(batch["index"], batch["id"], batch["sequence"], strict=True)
    records = [Record(int(index), str(id), str(sequence)) for index, id, sequence in rows]
    return [str(file) for file in batch["file"]], records


def _ambiguous(model: Model) -> Any:
    """What becomes of IUPAC codes where nothing is said, as on the command line."""
    dna = model.config.tokenizer is not None and model.tokenizer.kind == "dna"
    return "n" if dna else "keep"
