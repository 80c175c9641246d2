"""A reference to cut windows out of, in any order, without holding it in memory.

Records are read once, as a stream. Their letters go to a temporary file that stays in memory while
it is small, so a compressed FASTA, or one with ragged lines, is as good as an indexed one.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Container, Iterable

from .closing import Closing
from .errors import InputError, LimitError
from .sequences import Record

log = logging.getLogger(__name__)

MOST_IN_MEMORY = 256 << 20  # bases; chromosome 1 of human is 249 million
NAMES_SHOWN = 3
_UPPER = bytes(byte for byte in range(256) if not ord("a") <= byte <= ord("z"))


class Genome(Closing):
    """Sequences by record id. A context manager: leaving it drops the temporary file.

    names: ids of all records, in order. n_lower: lower-case letters of the records kept.

    Args:
        records: such as those of `sequences.read_fasta`.
        wanted: ids whose letters are kept; None keeps all.

    Raises:
        LimitError: the temporary file has no room.
        Whatever reading the records raises.
    """

    def __init__(self, records: Iterable[Record], wanted: Container[str] | None = None) -> None:
        self.names: list[str] = []
        self.n_lower = 0
        self._places: dict[str, tuple[int, int]] = {}  # id -> (first letter in the file, length)
        self._repeated: set[str] = set()
        self._store = tempfile.SpooledTemporaryFile(MOST_IN_MEMORY)  # noqa: SIM115  see close
        try:
            for record in records:
                self.names.append(record.id)
                if wanted is None or record.id in wanted:
                    self._keep(record)
        except BaseException:
            self.close()
            raise

    def only(self) -> str:
        """The id of the only record; InputError if there are several."""
        if len(self.names) != 1:
            raise InputError(
                f"the reference has {len(self.names)} records ({self._some()}), so a table of "
                "variants needs a column chrom"
            )
        return self.names[0]

    def length(self, name: str) -> int:
        """Letters of a record; InputError if its id is unknown or not unique."""
        if name in self._repeated:
            raise InputError(f"the reference has several records named {name!r}")
        if name not in self._places:
            raise InputError(f"the reference has no record {name!r}: it has {self._some()}")
        return self._places[name][1]

    def fetch(self, name: str, start: int, stop: int) -> str:
        """Letters start .. stop - 1 of a record, counted from 0, as they are in the file."""
        length = self.length(name)
        if not 0 <= start <= stop <= length:
            raise InputError(f"{name} has {length} bases: none at {start}..{stop}")
        self._store.seek(self._places[name][0] + start)
        return self._store.read(stop - start).decode("latin-1")

    def close(self) -> None:
        """Drops the temporary file. May be called twice."""
        self._store.close()

    def _keep(self, record: Record) -> None:
        if record.id in self._places:
            self._repeated.add(record.id)
            return
        letters = record.sequence.encode("latin-1", "replace")
        self.n_lower += len(letters.translate(None, _UPPER))
        try:
            self._places[record.id] = (self._store.tell(), len(letters))
            self._store.write(letters)
            self._store.flush()
        except OSError as error:
            raise LimitError(
                f"the reference does not fit a temporary file in {tempfile.gettempdir()}: "
                f"{error.strerror}; the variable TMPDIR names another folder"
            ) from None

    def _some(self) -> str:
        shown = ", ".join(self.names[:NAMES_SHOWN])
        more = len(self.names) - NAMES_SHOWN
        return f"{shown} and {more} more" if more > 0 else shown
