"""What lies beside an unfinished FILE: `FILE.part`, and `FILE.part.json`, which says what it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..streams import write_errors
from .rows import Whole

VERSION = 1
Settings = Mapping[str, Any]  # whatever decides the rows, as JSON


class Partial:
    """The two files of an unfinished table; `settings` decide whether it may be continued.

    `exact`: the partial file is used as a whole; else what is after its last record is cut off.
    """

    def __init__(self, target: Path, settings: Settings, *, exact: bool) -> None:
        self.target = target
        self.part = target.with_name(target.name + ".part")
        self.sidecar = target.with_name(target.name + ".part.json")
        self._fresh = target.with_name(target.name + ".part.json.tmp")
        self._exact = exact
        self._settings = json.loads(json.dumps({**settings, "version": VERSION}))

    def begin(self, *, resume: bool) -> Whole:
        """What is there to go on from: nothing, unless a run to resume left something.

        Raises:
            InputError: there are files of an unfinished run, and they are not to be resumed or
                cannot be: written with other settings, or damaged. The table is complete already.
        """
        try:
            self._fresh.exists()  # the longest of them
            begun = self.part.exists() or self.sidecar.exists()
        except OSError as error:  # of names that are too long with their endings
            raise InputError(f"{self.target} cannot be written: {error.strerror}") from None
        if not begun:
            if resume and self.target.exists():
                raise InputError(
                    f"{self.target} is complete, so there is nothing to resume: remove it to begin "
                    "anew"
                )
            return Whole()
        if not self.sidecar.exists() and not self.part.stat().st_size:
            return Whole()  # killed as it began
        whole = self._read()
        if not whole.records:
            return Whole()
        if not resume:
            raise InputError(
                f"{self.part} holds {whole.records} records of an unfinished run: continue it with "
                "--resume, or remove it to begin anew"
            )
        return whole

    def note(self, whole: Whole) -> None:
        """States how much of the partial file counts; the old statement stays until then."""
        text = json.dumps({**asdict(whole), "settings": self._settings}, indent=1)
        try:
            with write_errors(self.sidecar):
                self._fresh.write_text(text + "\n", encoding="utf-8")
                os.replace(self._fresh, self.sidecar)
        finally:
            self._fresh.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes both files."""
        self.part.unlink(missing_ok=True)
        self.sidecar.unlink(missing_ok=True)

    def _read(self) -> Whole:
        """The statement, if it is one and the file agrees with it."""
        remedy = f"remove {self.part} and {self.sidecar} to begin anew"
        try:
            stated = json.loads(self.sidecar.read_text(encoding="utf-8"))
            whole = Whole(*(int(stated[name]) for name in ("records", "failed", "size")))
            settings = dict(stated["settings"])
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError(
                f"{self.sidecar} is absent or damaged, so {self.part} cannot be used: {remedy}"
            ) from None
        if whole.records:
            self._compare(settings)
            size = self.part.stat().st_size if self.part.exists() else 0
            if size < whole.size or (self._exact and size > whole.size):
                raise InputError(
                    f"{self.part} has {size} bytes, {self.sidecar.name} says {whole.size}: {remedy}"
                )
        return whole

    def _compare(self, settings: dict[str, Any]) -> None:
        names = {**settings, **self._settings}
        differing = [n for n in names if settings.get(n) != self._settings.get(n)]
        if differing:
            listed = "; ".join(
                f"{n} was {_shown(settings.get(n))} and is {_shown(self._settings.get(n))}"
                for n in differing
            )
            raise InputError(
                f"{self.part} was begun with other settings: {listed}; "
                "repeat them, or remove the file to begin anew"
            )


def _shown(value: Any) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False)
